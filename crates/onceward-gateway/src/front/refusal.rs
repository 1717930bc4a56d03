//! The reasons for which a request is refused before it reaches the service, and the answers to the client.

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Response, StatusCode};
use onceward::http::header::{OUTCOME, SHOULD_RETRY};
use onceward::http::{Flavor, Problem, ProblemJson};
use serde_json::Map;

/// The guard replaces a refused request with one that has this method, so that answers stay in order. It refuses the method to
/// clients.
pub(super) const METHOD: &str = "ONCEWARD-REFUSED";

/// The whole of that request.
pub(super) const STAND_IN: &[u8] = b"ONCEWARD-REFUSED / HTTP/1.1\r\nhost: refused.invalid\r\n\r\n";

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A line ends in something else than CRLF, or a CR or LF stands within one.
    #[error(
        "A line of the request's head has a CR or LF alone. Each line must end in CRLF, and have neither before."
    )]
    LineEnd,
    /// A control character, such as NUL.
    #[error("The request's head has a control character, such as NUL. Encode it, or leave it out.")]
    Control,
    /// The first line is not a method, a target and a version.
    #[error(
        "The first line must be a method, a target and HTTP/1.1 or HTTP/1.0, with one space between each two. \
         A target has neither spaces nor a fragment."
    )]
    RequestLine,
    /// The method differs from a registered one only in case.
    #[error(
        "The method is in another case than the registered one. Write it in capital letters, such as POST."
    )]
    MethodCase,
    /// A header's name is malformed, or is not followed by its colon at once.
    #[error(
        "A header's name is malformed, or has no colon right after it. There must be no space between the two."
    )]
    FieldName,
    /// A header goes on in a second line.
    #[error("A header goes on in a second line. Put it in one.")]
    Folded,
    /// There is no Host.
    #[error("There is no Host header. Send one.")]
    HostMissing,
    /// There are several Host headers.
    #[error("There are several Host headers. Send one.")]
    HostRepeated,
    /// Host, or the host that the target names, is not a host and a port.
    #[error(
        "The Host header, or the host in the target, is not a host, with or without a port and without a user."
    )]
    HostMalformed,
    /// Host differs from the host that the request is for.
    #[error("The Host header differs from :authority. Send one of them, or the same in both.")]
    HostDiffers,
    /// There are several lengths.
    #[error("There are several Content-Length headers. Send one, even where they are equal.")]
    LengthRepeated,
    /// A length is not a number.
    #[error("The Content-Length is not a plain number of at most 18 digits.")]
    LengthMalformed,
    /// There is a length and an encoding.
    #[error("There are both Content-Length and Transfer-Encoding. Send one of them.")]
    LengthAndEncoding,
    /// The encoding is not `chunked`.
    #[error("The only Transfer-Encoding that is taken is chunked, once, in small letters and alone.")]
    Encoding,
    /// HTTP/1.0 has no encodings.
    #[error("HTTP/1.0 has no Transfer-Encoding. Send Content-Length, or speak HTTP/1.1.")]
    EncodingOld,
    /// A chunk is malformed.
    #[error(
        "A chunk of the body is malformed: digits of a hexadecimal size, CRLF, data, CRLF, and nothing else."
    )]
    Chunk,
    /// The trailers are malformed, too many, or would frame the body that they follow.
    #[error("The body's trailers are malformed, or too many, or of a kind that cannot be a trailer.")]
    Trailers,
    /// The target is too long.
    #[error("The request's path and query may have at most {limit} bytes together.")]
    TargetTooLong {
        /// How many bytes it may have.
        limit: usize,
    },
    /// The head is too large.
    #[error("The request's head may have at most {limit} bytes.")]
    HeadTooLarge {
        /// How many bytes it may have.
        limit: usize,
    },
    /// There are too many headers.
    #[error("The request may have at most 100 headers.")]
    TooManyFields,
}

impl Refusal {
    /// The status of the answer.
    pub fn status(self) -> StatusCode {
        match self {
            Self::LineEnd
            | Self::Control
            | Self::RequestLine
            | Self::MethodCase
            | Self::FieldName
            | Self::Folded
            | Self::HostMissing
            | Self::HostRepeated
            | Self::HostMalformed
            | Self::HostDiffers
            | Self::LengthRepeated
            | Self::LengthMalformed
            | Self::LengthAndEncoding
            | Self::Encoding
            | Self::EncodingOld
            | Self::Chunk
            | Self::Trailers => StatusCode::BAD_REQUEST,
            Self::TargetTooLong { .. } => StatusCode::URI_TOO_LONG,
            Self::HeadTooLarge { .. } | Self::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        }
    }

    fn title(self) -> &'static str {
        match self.status() {
            StatusCode::URI_TOO_LONG => "The request's URL is too long",
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "The request's headers are too large",
            _ => "The request is malformed, so it was not read any further",
        }
    }

    /// The problem as RFC 9457 has it.
    pub(super) fn response(self, after: AfterRefusal) -> Response<Bytes> {
        let problem = if self == Self::MethodCase {
            method_invalid()
        } else {
            ProblemJson {
                status: self.status(),
                title: self.title(),
                detail: self.to_string(),
                members: Map::new(),
            }
        };
        let mut response = problem.response();
        let headers = response.headers_mut();
        // Nothing was executed, so an outer Onceward must not store this as the answer to a key.
        headers.insert(OUTCOME, HeaderValue::from_static("retryable"));
        if self == Self::MethodCase {
            // As on the layer's own problem. The others are not about a key.
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        match after {
            AfterRefusal::Close => drop(headers.insert(CONNECTION, HeaderValue::from_static("close"))),
            AfterRefusal::KeepOpen => {}
        }
        response
    }
}

/// The same problem as the layer's, which refuses miscased methods that only a route lists. The public URL is not known here, so the
/// type is a path.
fn method_invalid() -> ProblemJson {
    let details = Problem::MethodMiscased.details(Flavor::Ietf);
    let members = details.members(format!("/.well-known/idempotency#{}", details.code));
    ProblemJson { status: details.status, title: details.title, detail: details.detail, members }
}

/// What to do with the connection after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterRefusal {
    /// Close it, because it is not known where the next request begins.
    Close,
    /// Keep it open: HTTP/2 frames requests itself.
    KeepOpen,
}
