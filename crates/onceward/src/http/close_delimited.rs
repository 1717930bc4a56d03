//! Answers that end with their connection.
//!
//! HTTP/1 lets a server leave out the length of an answer and close the connection at its end. If the server dies half-way,
//! its connection is closed as well, and the part looks like a whole answer. It would be stored and replayed as one.
//!
//! Only the HTTP client knows how an answer was framed, so an inner service that forwards requests over HTTP/1 marks such
//! responses with [`EndsWithConnection`]. The layer then treats them as the route's [`CloseDelimited`] says.

use ::http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use ::http::{HeaderMap, Method, Response, StatusCode, Version};

use super::list_header::members;

/// How to treat an answer that ends with its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum CloseDelimited {
    /// As whole if its body is one JSON object or array with nothing after it, because a part of one is not. Otherwise its
    /// outcome is unknown. A `Content-Type` must not name another format: in a sequence of JSON texts, the first line is a
    /// whole document as well.
    #[default]
    Proven,
    /// As whole. An answer that was cut off is then stored and replayed.
    Accept,
    /// As cut off: its outcome is unknown.
    Unknown,
}

impl CloseDelimited {
    /// Whether the answer counts as whole.
    pub(super) fn accepts(self, headers: &HeaderMap, body: &[u8]) -> bool {
        match self {
            Self::Proven => may_be_json(headers) && is_json_document(body),
            Self::Accept => true,
            Self::Unknown => false,
        }
    }
}

/// A response extension that marks an answer which ends with its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndsWithConnection;

impl EndsWithConnection {
    /// Marks a response whose framing ends with the connection. An inner service that forwards requests to another server
    /// calls it with the response as its HTTP client read it, before any header is removed.
    ///
    /// ```
    /// use http::{Method, Response};
    /// use onceward::http::EndsWithConnection;
    /// let mut response = Response::new("{\"id\":");
    /// EndsWithConnection::mark(&Method::POST, &mut response);
    /// assert!(response.extensions().get::<EndsWithConnection>().is_some());
    /// ```
    pub fn mark<B>(method: &Method, response: &mut Response<B>) {
        if is_close_delimited(method, response) {
            response.extensions_mut().insert(Self);
        }
    }
}

/// The rule of RFC 9112, section 6.3. A transfer coding other than `chunked` alone counts as close-delimited, because its end
/// is not checked here.
fn is_close_delimited<B>(method: &Method, response: &Response<B>) -> bool {
    let status = response.status();
    let bodiless = *method == Method::HEAD
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if response.version() > Version::HTTP_11 || bodiless {
        return false;
    }
    let headers = response.headers();
    if headers.contains_key(TRANSFER_ENCODING) {
        let mut codings = members(headers, &TRANSFER_ENCODING);
        let chunked = codings.next().is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
        return !chunked || codings.next().is_some();
    }
    !headers.contains_key(CONTENT_LENGTH)
}

/// Whether the content type is JSON, or there is none.
fn may_be_json(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_TYPE).iter().all(|value| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let essence = essence.to_ascii_lowercase();
        matches!(&essence[..], b"application/json" | b"text/json") || essence.ends_with(b"+json")
    })
}

/// Whether this is one JSON object or array. A number or a word is not enough: `12` may be the beginning of `123`.
fn is_json_document(body: &[u8]) -> bool {
    matches!(body.trim_ascii_start().first(), Some(b'{' | b'['))
        && serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, headers: &[(&str, &str)]) -> Response<()> {
        let builder = Response::builder().status(status);
        headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value)).body(()).unwrap()
    }

    #[test]
    fn an_answer_over_http_1_without_a_length_ends_with_its_connection() {
        let ends = |headers: &[_]| is_close_delimited(&Method::POST, &response(201, headers));
        assert!(ends(&[]));
        assert!(!ends(&[("content-length", "2")]));
        assert!(!ends(&[("transfer-encoding", "chunked")]));
        assert!(!ends(&[("transfer-encoding", "Chunked")]));
        for other in ["gzip", "identity", "gzip, chunked", "chunked, chunked", "chunked, gzip", ""] {
            assert!(ends(&[("transfer-encoding", other), ("content-length", "2")]), "{other}");
        }
    }

    #[test]
    fn an_answer_that_has_no_body_or_came_over_http_2_does_not() {
        for status in [100, 204, 304] {
            assert!(!is_close_delimited(&Method::POST, &response(status, &[])), "{status}");
        }
        assert!(!is_close_delimited(&Method::HEAD, &response(200, &[])));
        let mut second = response(200, &[]);
        *second.version_mut() = Version::HTTP_2;
        assert!(!is_close_delimited(&Method::POST, &second));
    }

    #[test]
    fn an_answer_that_names_another_format_is_not_proven_whole_by_a_json_document() {
        let accepted = |types: &[&str]| {
            let headers: Vec<_> = types.iter().map(|value| ("content-type", *value)).collect();
            CloseDelimited::Proven.accepts(response(201, &headers).headers(), b"{\"line\":1}\n")
        };
        for json in
            ["application/json", "Application/JSON; charset=utf-8", "text/json", "application/hal+json"]
        {
            assert!(accepted(&[json]), "{json}");
        }
        assert!(accepted(&[]));
        // The first line of several.
        for other in ["application/x-ndjson", "application/json-seq", "text/plain", "", "json"] {
            assert!(!accepted(&[other]), "{other}");
        }
        assert!(!accepted(&["application/json", "application/x-ndjson"]));
    }

    #[test]
    fn no_part_of_a_json_document_is_one() {
        let whole = br#" [{"id": "a\"]}", "n": [1, 2.5e3, true, null]}, {}] "#;
        let end = whole.trim_ascii_end().len();
        let proven: Vec<_> = (0..=whole.len()).filter(|&cut| is_json_document(&whole[..cut])).collect();
        assert_eq!(proven, [end, end + 1]);
    }

    #[test]
    fn what_could_go_on_is_no_json_document() {
        for body in ["", " ", "1", "12", "true", "\"text\"", "{} x", "{}{}", "[] ]", "<html></html>"] {
            assert!(!is_json_document(body.as_bytes()), "{body}");
        }
        assert!(is_json_document(b"{}\r\n"));
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(is_json_document(deep.as_bytes()));
    }
}
