//! One connection to the upstream, driven by the request that uses it.
//!
//! There is no task per connection: the request that uses a connection moves its bytes, and an idle connection is probed when it
//! is taken out of the pool. So no request waits for another task to be woken, and a closed connection is noticed before it is
//! used.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use onceward::plumbing::time::sleep;
use tokio::io::AsyncReadExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::Sendable;
use super::error::ProxyError;
use super::pool::Pool;
use super::wire::{Gauge, Wire};

/// What moves a connection's bytes.
enum Driver<B: Sendable> {
    /// For any number of requests, of which the last may change the protocol. hyper's type for it cannot be named.
    Reusable(Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>),
    /// For one request. At its end it gives the socket back instead of closing it.
    SingleUse(Box<http1::Connection<TokioIo<Wire>, B>>),
}

impl<B: Sendable> Driver<B> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        match self {
            Self::Reusable(driver) => driver.as_mut().poll(context),
            Self::SingleUse(driver) => driver.poll_without_shutdown(context),
        }
    }
}

/// How long an upstream that announced `Connection: close` has for closing first. It usually closes at once.
const CLOSING: Duration = Duration::from_secs(1);
/// How long an upstream that has answered may take to read the rest of its request.
const SENDING: Duration = Duration::from_secs(30);

/// A connection that can take one request at a time.
pub(super) struct Connection<B: Sendable> {
    sender: SendRequest<B>,
    driver: Driver<B>,
    /// Whether the driver has ended. It must not be polled again.
    over: bool,
    gauge: Arc<Gauge>,
}

/// The result of sending a request.
pub(super) enum SendResult<B> {
    /// The head of an answer.
    Answered(Response<Incoming>),
    /// Nothing was sent, and the request is still whole.
    Returned(Box<Request<B>>, hyper::Error),
    /// There is no answer, and the request is gone.
    Failed(ProxyError),
}

impl<B: Sendable> Connection<B> {
    /// A connection for any number of requests.
    pub(super) async fn open(wire: Wire) -> Result<Self, ProxyError> {
        Self::begin(wire, |driver| Driver::Reusable(Box::pin(driver.with_upgrades()))).await
    }

    /// A connection for one request. Its user must call [`Connection::end`].
    pub(super) async fn open_single_use(wire: Wire) -> Result<Self, ProxyError> {
        Self::begin(wire, |driver| Driver::SingleUse(Box::new(driver))).await
    }

    async fn begin(
        wire: Wire,
        driver: impl FnOnce(http1::Connection<TokioIo<Wire>, B>) -> Driver<B>,
    ) -> Result<Self, ProxyError> {
        let gauge = wire.gauge();
        let (sender, connection) = http1::Builder::new()
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|error| ProxyError::NothingSent { error: error.into() })?;
        Ok(Self { sender, driver: driver(connection), over: false, gauge })
    }

    /// Ends a connection for one request, whose answer was read to its end. `permit` is dropped when the request was sent whole.
    ///
    /// A server may answer before it has read the request, and a handler may work on after its answer; many servers cancel it
    /// when the connection closes. So the rest of the request is sent, and a connection that the upstream keeps open stays open
    /// for a while: see [`Pool::keep_ended`]. If the upstream announced that it closes the connection, it may close it first.
    pub(super) fn end(mut self, pool: Arc<Pool<B>>, permit: OwnedSemaphorePermit) {
        if self.is_idle() {
            return self.into_wire().into_iter().for_each(|wire| pool.keep_ended(wire));
        }
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = std::future::poll_fn(|context| self.poll_sent(context)) => {}
                () = sleep(SENDING) => {}
            }
            let kept_open = self.is_idle();
            let Some(mut wire) = self.into_wire() else { return };
            if kept_open {
                pool.keep_ended(wire);
            } else {
                tokio::select! {
                    biased;
                    // At once: gunicorn's threaded worker serves no other request until its client has closed, too.
                    () = read_to_end(&mut wire) => drop(wire),
                    () = sleep(CLOSING) => wire.reset(),
                }
            }
            drop(permit);
        });
    }

    /// Drives the connection until the request was sent whole, or the connection has ended.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.drive(context);
        if self.over || self.sender.is_ready() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The bytes of a connection for one request, without hyper's state.
    pub(super) fn into_wire(self) -> Option<Wire> {
        match self.driver {
            Driver::SingleUse(connection) => Some(connection.into_parts().io.into_inner()),
            Driver::Reusable(_) => None,
        }
    }

    /// Whether a request can be sent on it now. Reads from the kernel, because the upstream may have closed it a moment ago.
    pub(super) fn is_usable(&mut self, context: &mut Context<'_>) -> bool {
        self.gauge.probe();
        self.drive(context);
        self.gauge.probed();
        !self.over && self.sender.is_ready()
    }

    /// Whether it waits for a request, as far as is known. It does not where an answer came before its request was sent whole: the
    /// rest of that request would come first.
    pub(super) fn is_idle(&self) -> bool {
        !self.over && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(&mut self, request: Box<Request<B>>) -> SendResult<B> {
        // hyper accepts the first request only after the connection was driven once.
        if let Err(error) = std::future::poll_fn(|context| self.poll_ready(context)).await {
            // An HTTP/2 server may send before it gets a request.
            return match self.gauge.other_protocol() {
                Some(speaks) => SendResult::Failed(ProxyError::OtherProtocol { speaks }),
                None => SendResult::Returned(request, error),
            };
        }
        let before = self.gauge.written();
        let mut answer = std::pin::pin!(self.sender.try_send_request(*request));
        let answered = std::future::poll_fn(|context| {
            self.drive(context);
            answer.as_mut().poll(context)
        })
        .await;
        match answered {
            Ok(response) => SendResult::Answered(response),
            Err(mut failed) => {
                let message = failed.take_message();
                let error = failed.into_error();
                match (message, self.gauge.written() == before, self.gauge.other_protocol()) {
                    (_, _, Some(speaks)) => SendResult::Failed(ProxyError::OtherProtocol { speaks }),
                    (Some(request), true, None) => SendResult::Returned(Box::new(request), error),
                    (None, true, None) => SendResult::Failed(ProxyError::NothingSent { error: error.into() }),
                    (_, false, None) => SendResult::Failed(ProxyError::Broken { error }),
                }
            }
        }
    }

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        match self.sender.poll_ready(context) {
            Poll::Pending => {}
            ready @ Poll::Ready(_) => return ready,
        }
        self.drive(context);
        self.sender.poll_ready(context)
    }

    /// Sends and reads what can be sent and read now.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) {
        // The future of the answer, or its body, gets the error.
        self.over = self.over || self.driver.poll(context).is_ready();
    }

    /// Drives a connection that is being upgraded, until hyper has handed it over.
    pub(super) async fn drive_to_the_end(mut self) {
        if !self.over
            && let Err(error) = std::future::poll_fn(|context| self.driver.poll(context)).await
        {
            tracing::debug!(%error, "an upgraded connection to the upstream ended");
        }
    }
}

/// Returns when the upstream has closed the connection. Bytes after an answer belong to no request.
async fn read_to_end(wire: &mut Wire) {
    let mut rest = [0; 256];
    while let Ok(1..) = wire.read(&mut rest).await {}
}
