//! Recognises, by the first bytes of an upstream, that it does not speak HTTP/1.1.

use std::{fmt, io};

use rustls::{AlertDescription, InvalidMessage};

/// A protocol that takes no HTTP/1.1 request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherProtocol {
    /// The first frame is SETTINGS, which RFC 9113 requires of every server. gRPC servers are such.
    Http2,
    /// A TLS alert in answer to plain text.
    Tls,
    /// Something else than TLS in answer to a TLS handshake.
    Plain,
}

/// A frame header after its length: type SETTINGS, no flags, stream 0.
const SETTINGS: [u8; 6] = [4, 0, 0, 0, 0, 0];

impl OtherProtocol {
    /// Reads the first bytes that came on a connection. `None` where they prove nothing.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [_, _, _, frame @ ..] if frame.starts_with(&SETTINGS) => Some(Self::Http2),
            // An alert record, of any version, with its two bytes.
            [21, 3, _, 0, 2, _, _, ..] => Some(Self::Tls),
            _ => None,
        }
    }

    /// Reads how a TLS handshake failed. A request is sent only after it.
    pub(super) fn of_handshake(error: &io::Error) -> Option<Self> {
        let known = [
            // No protocol but HTTP/1.1 was offered.
            (rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol), Self::Http2),
            (rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType), Self::Plain),
        ];
        let error: &rustls::Error = error.get_ref()?.downcast_ref()?;
        known.into_iter().find_map(|(known, speaks)| (known == *error).then_some(speaks))
    }
}

impl fmt::Display for OtherProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http2 => "speaks HTTP/2 only, and Onceward sends HTTP/1.1",
            Self::Tls => "expects TLS: write https:// in `upstream`",
            Self::Plain => "does not speak TLS: write http:// in `upstream`",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_bytes_of_another_protocol_prove_that_no_request_was_taken() {
        let settings = [0, 0, 18, 4, 0, 0, 0, 0, 0, 0, 3];
        assert_eq!(OtherProtocol::of(&settings), Some(OtherProtocol::Http2));
        let alert = [0x15, 3, 1, 0, 2, 2, 70];
        assert_eq!(OtherProtocol::of(&alert), Some(OtherProtocol::Tls));
        for proves_nothing in [
            &b"HTTP/1.1 200 OK\r\n"[..],
            b"HTTP/2 200\r\n",
            b"Traceback (most recent call last)",
            b"",
            &settings[..8],
            // GOAWAY, and an answer to SETTINGS: a server begins with neither.
            &[0, 0, 8, 7, 0, 0, 0, 0, 0],
            &[0, 0, 0, 4, 1, 0, 0, 0, 0],
            // A handshake record.
            &[0x16, 3, 1, 0, 2, 2, 70],
        ] {
            assert_eq!(OtherProtocol::of(proves_nothing), None, "{proves_nothing:?}");
        }
    }
}
