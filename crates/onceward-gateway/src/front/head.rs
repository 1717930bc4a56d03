//! A request's head: complete or not, strictly formed or refused, and how its body is framed.

use onceward::http::is_miscased;

use super::fields::{self, LINE_END, MAX_FIELDS, Next, is_host, is_target, is_token};
use super::refusal::{self, Refusal};

/// How large a head may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadLimits {
    /// Its bytes, the empty line included.
    pub head: usize,
    /// The bytes of the request's target: path and query.
    pub target: usize,
}

/// Longer than any registered method. With the limit on the target it bounds a request line.
const MAX_METHOD: usize = 32;

/// As many digits as always fit 63 bits.
const MAX_LENGTH_DIGITS: usize = 18;

const VERSION_LENGTH: usize = b"HTTP/1.1".len();

/// A head while it comes in. It is read line by line, and no line twice.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// Where the first unread line begins.
    line: usize,
    /// How many bytes were searched for that line's end.
    searched: usize,
    version: Option<Version>,
    fields: usize,
    host: Option<()>,
    length: Option<u64>,
    chunked: Option<()>,
    upgrade: Upgrade,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

/// A head that is complete and valid.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CompleteHead {
    /// Its bytes, the empty line included.
    pub length: usize,
    /// How long its body is.
    pub body: BodyLength,
    /// Whether it asks for an upgrade.
    pub upgrade: Upgrade,
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyLength {
    /// So many bytes; zero where there is no body.
    Known(u64),
    /// It ends with its last chunk.
    Chunked,
}

/// Whether a head asks to go on with another protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Upgrade {
    #[default]
    No,
    Asked,
}

impl Head {
    /// Reads on in bytes that begin with the head's first. `None` while the head is incomplete.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        limits: &HeadLimits,
    ) -> Result<Option<CompleteHead>, Refusal> {
        // A long line that comes byte by byte would otherwise be read from its beginning each time. This shortcut holds only in
        // the middle of a field, for bytes that may stand anywhere in one: a byte that must be refused is refused at once.
        let (seen, fresh) = bytes.split_at(self.searched.min(bytes.len()));
        let in_a_field = self.version.is_some() && seen.len() > self.line && !seen.ends_with(b"\r");
        if in_a_field && fresh.iter().all(|byte| is_token(*byte)) {
            return self.incomplete(bytes, limits);
        }
        if self.version.is_none() && !self.request_line(bytes, limits)? {
            return self.incomplete(bytes, limits);
        }
        loop {
            match fields::next(&bytes[self.line..])? {
                Next::Incomplete => return self.incomplete(bytes, limits),
                Next::Field(field) => {
                    self.line += field.length;
                    self.fields += 1;
                    if self.fields > MAX_FIELDS {
                        return Err(Refusal::TooManyFields);
                    }
                    self.field(field.name, field.value)?;
                }
                Next::End => {
                    let length = self.line + LINE_END;
                    if length > limits.head {
                        return Err(Refusal::HeadTooLarge { limit: limits.head });
                    }
                    return self.complete(length).map(Some);
                }
            }
        }
    }

    fn incomplete(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<Option<CompleteHead>, Refusal> {
        self.searched = bytes.len();
        let in_request_line = self.version.is_none();
        let line_limit = limits.target + MAX_METHOD + VERSION_LENGTH + b"  \r\n".len();
        if in_request_line && bytes.len() > line_limit.min(limits.head) {
            return Err(Refusal::TargetTooLong { limit: limits.target });
        }
        if bytes.len() > limits.head {
            return Err(Refusal::HeadTooLarge { limit: limits.head });
        }
        Ok(None)
    }

    /// Reads the request line, if all of it is there.
    fn request_line(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<bool, Refusal> {
        // RFC 9112 wants an empty line ignored here: some clients send one after a body.
        let start = match bytes {
            [b'\r', rest @ ..] => match rest.first() {
                Some(b'\n') => LINE_END,
                Some(_) => return Err(Refusal::LineEnd),
                None => return Ok(false),
            },
            _ => 0,
        };
        let line = &bytes[start..];
        let method = fields::count(line, is_token);
        if method > MAX_METHOD {
            return Err(Refusal::RequestLine);
        }
        match line.get(method) {
            None => return Ok(false),
            Some(b' ') if method > 0 => {}
            Some(_) => {
                return fields::misplaced(&line[method..], Refusal::RequestLine).map_or(Ok(false), Err);
            }
        }
        if is_miscased(&line[..method]) {
            return Err(Refusal::MethodCase);
        }
        let target = fields::count(&line[method + 1..], is_target);
        if target > limits.target {
            return Err(Refusal::TargetTooLong { limit: limits.target });
        }
        let after = method + 1 + target;
        match line.get(after) {
            None => return Ok(false),
            Some(b' ') if target > 0 => {}
            Some(_) => return fields::misplaced(&line[after..], Refusal::RequestLine).map_or(Ok(false), Err),
        }
        let version = &line[after + 1..];
        let version_end = version.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let Some(version_end) = version_end else {
            let too_long = version.len() > VERSION_LENGTH;
            return if too_long { Err(Refusal::RequestLine) } else { Ok(false) };
        };
        let parsed = match &version[..version_end] {
            b"HTTP/1.1" => Version::Http11,
            b"HTTP/1.0" => Version::Http10,
            _ => return Err(Refusal::RequestLine),
        };
        if version[version_end] == b'\n' {
            return Err(Refusal::LineEnd);
        }
        if !fields::line_end(&version[version_end..])? {
            return Ok(false);
        }
        if &line[..method] == refusal::METHOD.as_bytes() {
            return Err(Refusal::RequestLine);
        }
        self.version = Some(parsed);
        self.line = start + after + 1 + version_end + LINE_END;
        Ok(true)
    }

    /// Records the few headers that frame a request.
    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
        // Most names are told apart by their length.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                if self.host.replace(()).is_some() {
                    return Err(Refusal::HostRepeated);
                }
                if !value.iter().all(|byte| is_host(*byte)) {
                    return Err(Refusal::HostMalformed);
                }
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => self.upgrade = Upgrade::Asked,
            14 if name.eq_ignore_ascii_case(b"content-length") => self.length(value)?,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.encoding(value)?,
            _ => {}
        }
        Ok(())
    }

    fn length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        match self.length.replace(length(value)?) {
            None => Ok(()),
            Some(_) => Err(Refusal::LengthRepeated),
        }
    }

    fn encoding(&mut self, value: &[u8]) -> Result<(), Refusal> {
        match self.chunked.replace(()) {
            None if value == b"chunked" => Ok(()),
            None | Some(()) => Err(Refusal::Encoding),
        }
    }

    /// Checks what concerns a head as a whole.
    fn complete(&self, length: usize) -> Result<CompleteHead, Refusal> {
        if self.host.is_none() && self.version == Some(Version::Http11) {
            return Err(Refusal::HostMissing);
        }
        let body = match (self.length, self.chunked) {
            (Some(_), Some(())) => return Err(Refusal::LengthAndEncoding),
            (None, Some(())) if self.version == Some(Version::Http10) => return Err(Refusal::EncodingOld),
            (None, Some(())) => BodyLength::Chunked,
            (length, None) => BodyLength::Known(length.unwrap_or(0)),
        };
        Ok(CompleteHead { length, body, upgrade: self.upgrade })
    }
}

/// Digits and nothing else: neither a sign nor a list.
fn length(value: &[u8]) -> Result<u64, Refusal> {
    if value.is_empty() || value.len() > MAX_LENGTH_DIGITS || !value.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::LengthMalformed);
    }
    Ok(value.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0')))
}
