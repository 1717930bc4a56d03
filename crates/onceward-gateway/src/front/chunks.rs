//! A chunked body: sizes, data and trailers, read strictly.

use super::fields::{self, LINE_END, MAX_FIELDS, Next};
use super::refusal::Refusal;

/// The hexadecimal digits that fit 64 bits.
const MAX_SIZE_DIGITS: u8 = 16;

/// Bytes that trailers may have. hyper allows twice as many.
const MAX_TRAILER_BYTES: usize = 8 << 10;

/// The position in a chunked body.
#[derive(Debug)]
pub(super) enum Chunks {
    /// Among the digits of a size.
    Size { digits: u8, size: u64 },
    /// After the CR that ends a size.
    SizeEnd { size: u64 },
    /// In a chunk's data, with so many bytes left.
    Data(u64),
    /// Before the CR that ends data.
    DataEnd,
    /// After that CR.
    DataLineEnd,
}

/// How far the bytes were read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All bytes are part of chunks, and more chunks follow.
    Continues,
    /// The last chunk ended after so many bytes. Trailers follow, or the empty line in their place.
    Last(usize),
    /// After so many bytes there is a malformed one.
    Malformed(usize),
}

impl Default for Chunks {
    fn default() -> Self {
        Self::Size { digits: 0, size: 0 }
    }
}

impl Chunks {
    /// Reads the next bytes.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Progress {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if let Self::Data(left) = self {
                let here = (bytes.len() - at) as u64;
                let taken = here.min(*left);
                *left -= taken;
                if *left == 0 {
                    *self = Self::DataEnd;
                }
                at = if taken == here { bytes.len() } else { at + usize::try_from(taken).unwrap_or(0) };
                continue;
            }
            match self.line_byte(byte) {
                Some(next) => *self = next,
                None => return Progress::Malformed(at),
            }
            at += 1;
            if matches!(self, Self::Data(0)) {
                return Progress::Last(at);
            }
        }
        Progress::Continues
    }

    /// The position after one byte of the lines between data; `None` where that byte is malformed. Chunk extensions are: no
    /// client needs them, and parsers differ about them.
    fn line_byte(&self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Size { digits: 1.., size }, b'\r') => Some(Self::SizeEnd { size: *size }),
            (Self::Size { digits, size }, _) if *digits < MAX_SIZE_DIGITS => {
                let digit = char::from(byte).to_digit(16)?;
                Some(Self::Size { digits: digits + 1, size: size << 4 | u64::from(digit) })
            }
            (Self::SizeEnd { size }, b'\n') => Some(Self::Data(*size)),
            (Self::DataEnd, b'\r') => Some(Self::DataLineEnd),
            (Self::DataLineEnd, b'\n') => Some(Self::default()),
            (
                Self::Size { .. } | Self::SizeEnd { .. } | Self::Data(_) | Self::DataEnd | Self::DataLineEnd,
                _,
            ) => None,
        }
    }
}

/// The position in trailers.
#[derive(Debug, Default)]
pub(super) struct Trailers {
    line: usize,
    fields: usize,
}

impl Trailers {
    /// Reads on in bytes that begin with the trailers' first. Returns their length with the empty line, or `None` while they are
    /// incomplete.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        loop {
            let next = fields::next(&bytes[self.line..]).map_err(|_| Refusal::Trailers)?;
            match next {
                Next::Incomplete if bytes.len() > MAX_TRAILER_BYTES => return Err(Refusal::Trailers),
                Next::Incomplete => return Ok(None),
                Next::Field(field) => {
                    self.line += field.length;
                    self.fields += 1;
                    let frames = [b"content-length".as_slice(), b"transfer-encoding", b"host"];
                    if self.fields > MAX_FIELDS
                        || self.line > MAX_TRAILER_BYTES
                        || frames.iter().any(|name| field.name.eq_ignore_ascii_case(name))
                    {
                        return Err(Refusal::Trailers);
                    }
                }
                Next::End => return Ok(Some(self.line + LINE_END)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_followed_to_the_last_wherever_they_are_cut() {
        let body = b"5\r\nhello\r\n00c\r\n0\r\n\r\nGET / H\r\n0\r\n\r\n";
        for cut in 0..body.len() - 2 {
            let mut chunks = Chunks::default();
            let (first, second) = body.split_at(cut);
            assert_eq!(chunks.read(first), Progress::Continues, "{cut}");
            assert_eq!(chunks.read(second), Progress::Last(second.len() - 2), "{cut}");
        }
    }

    #[test]
    fn malformed_chunks_are_stopped_at_the_byte_that_is_wrong() {
        let cases: [(&[u8], usize); 12] = [
            (b"\r\n", 0),
            (b"5\nhello", 1),
            (b"5\rhello", 2),
            (b"0x5\r\nhello", 1),
            (b"+5\r\nhello", 0),
            (b"-5\r\nhello", 0),
            (b" 5\r\nhello", 0),
            (b"5 \r\nhello", 1),
            (b"5;a=b\r\nhello", 1),
            (b"5_0\r\nhello", 1),
            (b"00000000000000005\r\nhello", 16),
            (b"5\r\nhelloo\r\n", 8),
        ];
        for (body, wrong) in cases {
            assert_eq!(Chunks::default().read(body), Progress::Malformed(wrong), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn trailers_that_would_frame_or_have_no_end_are_refused() {
        assert_eq!(Trailers::default().read(b"a: b\r\n\r\nGET"), Ok(Some(8)));
        assert_eq!(Trailers::default().read(b"a: b\r\n"), Ok(None));
        for trailers in
            [b"Content-Length: 5\r\n\r\n".as_slice(), b"a : b\r\n\r\n", b"a: b\n\n", b" a\r\n\r\n"]
        {
            assert_eq!(Trailers::default().read(trailers), Err(Refusal::Trailers));
        }
        assert_eq!(Trailers::default().read(&b"a: b\r\n".repeat(MAX_FIELDS + 1)), Err(Refusal::Trailers));
        assert_eq!(Trailers::default().read(&[b'a'; MAX_TRAILER_BYTES + 1]), Err(Refusal::Trailers));
    }
}
