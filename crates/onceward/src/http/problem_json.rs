//! The one writer of `application/problem+json` (RFC 9457), for the layer and for programs around it. What a status and a code
//! mean is decided by the caller.

use ::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use ::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde_json::{Map, Value};

/// A problem as a client gets it.
#[derive(Debug, Clone)]
pub struct ProblemJson {
    /// The status, in the head and in the body.
    pub status: StatusCode,
    /// The same for every problem of this kind.
    pub title: &'static str,
    /// About this very problem.
    pub detail: String,
    /// Everything else in the body, such as `type` and `code`.
    pub members: Map<String, Value>,
}

impl ProblemJson {
    /// The response. Nothing may cache it.
    pub fn response(self) -> Response<Bytes> {
        let mut body = self.members;
        body.insert("title".to_owned(), self.title.into());
        body.insert("status".to_owned(), self.status.as_u16().into());
        body.insert("detail".to_owned(), self.detail.into());
        let mut response = Response::new(Bytes::from(Value::Object(body).to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
