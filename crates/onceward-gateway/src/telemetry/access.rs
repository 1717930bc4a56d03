//! The access log: one line for each answered request, if `logs.access` is on. It has a target of its own, which the log's filter
//! disables otherwise, so that it costs nothing.

use std::net::SocketAddr;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Method, Request, Response};
use http_body::Body;
use onceward::http::{Disposition, Handled, STATUS_PATH};

use crate::client_address::ClientAddress;
use crate::front::Refusal;

/// The target of every line.
pub const TARGET: &str = "access";

/// What is remembered of a request until it is answered.
#[derive(Debug, Clone)]
pub struct Asked {
    peer: Option<SocketAddr>,
    method: Method,
    target: Option<PathAndQuery>,
}

impl Asked {
    /// Cheap: the parts of the request are copied or share its buffers.
    pub fn by<B>(request: &Request<B>) -> Self {
        Self {
            peer: request.extensions().get::<ClientAddress>().map(|client| client.address),
            method: request.method().clone(),
            target: request.uri().path_and_query().cloned(),
        }
    }

    /// The request's method.
    pub fn method(&self) -> &str {
        self.method.as_str()
    }

    /// The path without what may be secret: the query, and the key in a status path.
    pub fn path(&self) -> &str {
        let path = self.target.as_ref().map_or("", PathAndQuery::path);
        path.find(STATUS_PATH).map_or(path, |at| &path[..at + STATUS_PATH.len()])
    }

    /// Logs the answer. A streamed body takes longer than `took`, and its length is not known.
    pub fn answered<B: Body>(&self, answer: &Response<B>, took: Duration) {
        let handled = answer.extensions().get::<Handled>();
        // Only the gateway's own answer to a request without a key lacks the extension.
        let disposition = handled.map_or(Disposition::Passed, |handled| handled.disposition);
        tracing::info!(
            target: TARGET,
            peer = self.peer.map(tracing::field::display),
            method = self.method(),
            path = self.path(),
            status = answer.status().as_u16(),
            bytes = answer.body().size_hint().exact(),
            milliseconds = took.as_secs_f64() * 1000.0,
            route = handled.map(|handled| &*handled.route).filter(|route| !route.is_empty()),
            handled = disposition.name(),
            code = disposition.code(),
            operation = handled.and_then(|handled| handled.operation).map(tracing::field::display),
            "answered"
        );
    }
}

/// Logs a request that was refused before it was passed on. Its head may have been unreadable, so the line has no path.
pub fn refused(peer: SocketAddr, refusal: Refusal) {
    tracing::info!(
        target: TARGET,
        peer = %peer,
        status = refusal.status().as_u16(),
        handled = "malformed",
        cause = %refusal,
        "answered"
    );
}
