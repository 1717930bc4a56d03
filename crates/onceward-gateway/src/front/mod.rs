//! The side of the gateway that clients see: takes connections, and passes strictly framed requests on to a service.
//!
//! What happens to a connection, in order:
//!
//! 1. It is accepted when there is a place for it; until then it waits in the kernel's queue.
//! 2. Where there is a certificate, TLS is spoken first.
//! 3. It is HTTP/2 if TLS agreed on that, or if it begins with HTTP/2's preface; otherwise it is HTTP/1.1.
//! 4. HTTP/1.1 goes through a guard, which passes on only what is strictly framed. Everything else is answered with 400 (414 or
//!    431 where it is too long) and ends the connection; the service never sees it. HTTP/2 requests that can mean two things are
//!    answered likewise, and their connection stays open.
//! 5. Each request gets its [`ClientAddress`](crate::client_address::ClientAddress) as an extension. Its [`Body`] breaks off
//!    where the client pauses for too long. After an answer with status 101, the guard lets all bytes pass.
//! 6. An answer that ends the connection while the client still sends is followed by a lingering close: bytes are read and
//!    discarded for a while, so that the client sees the answer and not a reset.
//! 7. Asked to stop, it takes no new requests, and ends when those in flight are answered.

mod body;
mod chunks;
mod connection;
mod fields;
mod framing;
mod guard;
mod head;
mod http1_state;
mod linger;
mod refusal;
mod service;
mod stall;
mod streams;
mod timer;
pub mod tls;

#[cfg(test)]
mod properties;

use std::convert::Infallible;
use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use tokio::net::TcpListener;
use tower_service::Service;

pub use self::body::{Body, BodyError};
pub use self::connection::ConnectionError;
use self::connection::NewConnection;
pub use self::refusal::Refusal;
pub use crate::listener::Ended;
use crate::listener::{Accepted, Listener};
use crate::settings::Limits;

/// Serves clients' connections.
#[derive(Debug, Clone)]
pub struct Front {
    /// Sizes, counts and times.
    pub limits: Limits,
    /// The certificate, where clients speak TLS.
    pub tls: Option<tls::CurrentCertificate>,
}

impl Front {
    /// Serves a listener until `stop`. Then it takes no new connections, lets the requests in flight end until `cut`, which
    /// is polled only from then on, and returns. Connections that were upgraded count as in flight until they are closed.
    pub async fn serve<S, B>(
        self,
        socket: TcpListener,
        service: S,
        stop: impl Future<Output = ()>,
        cut: impl Future<Output = ()>,
    ) -> Ended
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let front = Arc::new(self);
        let connections_max = front.limits.connections;
        let connection = move |accepted: Accepted| {
            let (front, service) = (Arc::clone(&front), service.clone());
            async move {
                let Accepted { stream, address, place, stopping } = accepted;
                let connection = NewConnection { io: stream, address, service, place: Some(place) };
                if let Err(error) = front.connection(connection, stopping.wait()).await {
                    tracing::debug!(%error, "a connection ended early");
                }
            }
        };
        Listener { socket, connections_max, log_failure: log_accept_failure }
            .serve(connection, stop, cut)
            .await
    }
}

fn log_accept_failure(error: &io::Error) {
    tracing::error!(
        cause = %error,
        next = "raise the limit on open files, or lower limits.connections",
        "no connection can be accepted: it is tried again twice a second"
    );
}
