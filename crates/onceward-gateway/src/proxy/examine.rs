//! Which protocol the upstream speaks, for `onceward check`.

use bytes::Bytes;
use http::header::{CONNECTION, HOST};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::Empty;

use super::connect::Connector;
use super::connection::{Connection, SendResult};
use super::{ProxyError, UpstreamError};
use crate::settings::{Limits, Upstream};

/// Why it is not certain that an upstream speaks HTTP/1.1.
#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    /// It cannot be used as it is configured.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// It gave no answer in HTTP/1.1.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

/// Sends `OPTIONS *`, which is about the server as a whole and changes nothing. Any answer in HTTP/1.1 proves the protocol.
pub async fn examine(upstream: &Upstream, limits: &Limits) -> Result<(), ExamineError> {
    let connector = Connector::new(upstream, limits)?;
    let mut connection = Connection::open(connector.connect().await?).await?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = Method::OPTIONS;
    *request.uri_mut() = Uri::from_static("*");
    let host = HeaderValue::from_str(upstream.authority.as_str()).ok();
    request.headers_mut().extend(host.map(|host| (HOST, host)));
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    match connection.send(Box::new(request)).await {
        SendResult::Answered(_) => Ok(()),
        SendResult::Returned(_, error) => Err(ProxyError::NothingSent { error: error.into() }.into()),
        SendResult::Failed(error) => Err(error.into()),
    }
}
