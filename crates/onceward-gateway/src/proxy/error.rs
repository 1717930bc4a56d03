//! Failures on the way to the upstream, and what each proves about the request.

use std::error::Error;
use std::io;
use std::time::Duration;

use onceward::http::Failure;

use super::opening::OtherProtocol;

/// Why there is no answer from the upstream.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// Its name could not be resolved, it refused, or did not answer: not one byte of the request was sent.
    #[error("the upstream {upstream} cannot be connected to: {error}")]
    Connect {
        /// Host and port.
        upstream: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// Connecting took too long: not one byte of the request was sent.
    #[error("the upstream {upstream} did not accept a connection within {patience:?}")]
    ConnectTimedOut {
        /// Host and port.
        upstream: String,
        /// The time limit.
        patience: Duration,
    },
    /// The limit for beginning to send was over: not one byte of the request was sent.
    #[error("no connection to the upstream was free before half of the request's lease had passed")]
    TooLate,
    /// The connection ended before it took the first byte of the request.
    #[error("the connection to the upstream ended before anything was sent: {error}")]
    NothingSent {
        /// hyper's error.
        #[source]
        error: Box<dyn Error + Send + Sync>,
    },
    /// The upstream answered in another protocol, which proves that it took no HTTP/1.1 request.
    #[error("the upstream {speaks}, so it did not take the request")]
    OtherProtocol {
        /// The other protocol.
        speaks: OtherProtocol,
    },
    /// Something was sent, and no whole head came back.
    #[error("the request was sent, and no whole answer came from the upstream: {error}")]
    Broken {
        /// hyper's error.
        #[source]
        error: hyper::Error,
    },
    /// An answer to a request without a key did not begin in time.
    #[error("the upstream gave no answer within {patience:?}")]
    TimedOut {
        /// The time limit.
        patience: Duration,
    },
    /// The upstream changed to a protocol that the client did not ask for.
    #[error("the upstream changed the protocol, though the request did not ask for that")]
    Unasked,
    /// The request cannot be passed on at all.
    #[error("the request's target cannot be passed on to the upstream")]
    Target,
}

impl ProxyError {
    /// What it proves about the operation.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Connect { .. }
            | Self::ConnectTimedOut { .. }
            | Self::TooLate
            | Self::NothingSent { .. }
            | Self::OtherProtocol { .. }
            | Self::Target => Failure::NotExecuted,
            Self::TimedOut { .. } => Failure::TimedOut,
            Self::Broken { .. } | Self::Unasked => Failure::Broken,
        }
    }
}
