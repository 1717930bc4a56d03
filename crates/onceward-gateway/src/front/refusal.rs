//! What may be wrong with a request before anybody looks at what it asks for, and how a client is told.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use onceward::http::header::OUTCOME;
use onceward::http::{Flavor, Problem};
use serde_json::json;

/// The guard puts a request with this method where a refused one stood, so that answers stay in order. No client gets
/// it through the guard.
pub(super) const METHOD: &str = "ONCEWARD-REFUSED";

/// The whole of that request.
pub(super) const STAND_IN: &[u8] = b"ONCEWARD-REFUSED / HTTP/1.1\r\nhost: refused.invalid\r\n\r\n";

/// What is wrong with a request.
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
    /// The method is a registered one, but for its case.
    #[error(
        "The method is in another case than the registered one. Write it in capital letters, such as POST."
    )]
    MethodCase,
    /// A header's name is no name, or something stands between it and its colon.
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
    /// There are several.
    #[error("There are several Host headers. Send one.")]
    HostRepeated,
    /// It, or the host that the target names, is not a host and a port.
    #[error(
        "The Host header, or the host in the target, is not a host, with or without a port and without a user."
    )]
    HostMalformed,
    /// It is not the host that the request is for.
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
    pub(super) fn response(self, then: Then) -> Response<Bytes> {
        let status = self.status();
        let mut body = json!({
            "title": self.title(),
            "status": status.as_u16(),
            "detail": self.to_string(),
        });
        if self == Self::MethodCase {
            body = method_invalid();
        }
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // An outer Onceward must not keep this as the answer to a key: nothing was executed.
        headers.insert(OUTCOME, HeaderValue::from_static("retryable"));
        match then {
            Then::Close => drop(headers.insert(CONNECTION, HeaderValue::from_static("close"))),
            Then::GoOn => {}
        }
        response
    }
}

/// The layer refuses methods in another case too, those that only a route lists: a client is told the same by both. Here it is
/// not known what clients put before `/.well-known`, so the type has its path only.
fn method_invalid() -> serde_json::Value {
    let told = Problem::MethodMiscased.details(Flavor::Ietf);
    json!({
        "type": format!("/.well-known/idempotency#{}", told.code),
        "title": told.title,
        "status": told.status.as_u16(),
        "detail": told.detail,
        "code": told.code,
        "next_action": told.next_action.name(),
    })
}

/// What becomes of the connection after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// It ends, because it is not known where the next request begins.
    Close,
    /// It goes on: HTTP/2 keeps its requests apart by itself.
    GoOn,
}
