//! One connection to the upstream, driven by the request that uses it.
//!
//! There is no task per connection: the request that uses a line moves its bytes, and an idle line is looked at when it is
//! taken out of the pool. So no request waits for another task to be woken, and what is known about a line is known when it
//! is needed.

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
    /// For any number of requests, of which the last may change the protocol. Hyper's own type for it has no public name.
    Shared(Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>),
    /// For one request. It does not close the connection at its end, but gives it back.
    Once(Box<http1::Connection<TokioIo<Wire>, B>>),
}

impl<B: Sendable> Driver<B> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        match self {
            Self::Shared(driver) => driver.as_mut().poll(context),
            Self::Once(driver) => driver.poll_without_shutdown(context),
        }
    }
}

/// How long the upstream has for closing a line first. It usually does at once, so this is a few round trips.
const CLOSING: Duration = Duration::from_secs(1);
/// How long an upstream that has answered may take to read the rest of its request.
const SENDING: Duration = Duration::from_secs(30);

/// A connection that can take one request at a time.
pub(super) struct Line<B: Sendable> {
    sender: SendRequest<B>,
    driver: Driver<B>,
    /// Whether the driver has ended; it must not be driven again.
    over: bool,
    gauge: Arc<Gauge>,
}

/// What came of sending.
pub(super) enum Sent<B> {
    /// The head of an answer.
    Answered(Response<Incoming>),
    /// Nothing was sent, and the request is still whole.
    Returned(Box<Request<B>>, hyper::Error),
    /// No answer.
    Failed(ProxyError),
}

impl<B: Sendable> Line<B> {
    /// A line for any number of requests.
    pub(super) async fn open(wire: Wire) -> Result<Self, ProxyError> {
        Self::begin(wire, |driver| Driver::Shared(Box::pin(driver.with_upgrades()))).await
    }

    /// A line for one request, after which it is to be ended: see [`Line::end`].
    pub(super) async fn open_once(wire: Wire) -> Result<Self, ProxyError> {
        Self::begin(wire, |driver| Driver::Once(Box::new(driver))).await
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

    /// Ends a line for one request, whose answer was read to its end. `permit` is dropped when nothing is sent on it any more.
    ///
    /// A server may answer before it has read the request, and a handler may work on after its answer; many servers cancel it
    /// when the client goes away. So the rest of the request is sent, and a connection that the upstream keeps open stays open
    /// for a while: see [`Pool::keep_ended`]. If the upstream said that it closes the connection, it closes it first.
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

    /// Drives the line until the request was sent whole, or the connection has ended.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.drive(context);
        if self.over || self.sender.is_ready() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The connection of a line for one request, without what drives it.
    pub(super) fn into_wire(self) -> Option<Wire> {
        match self.driver {
            Driver::Once(connection) => Some(connection.into_parts().io.into_inner()),
            Driver::Shared(_) => None,
        }
    }

    /// Whether a request can be sent on it: asks the kernel, because the other side may have closed it a moment ago.
    pub(super) fn is_usable(&mut self, context: &mut Context<'_>) -> bool {
        self.gauge.probe();
        self.drive(context);
        self.gauge.probed();
        !self.over && self.sender.is_ready()
    }

    /// Whether another request could be sent on it now. It cannot where an answer came before its request was sent whole: the rest
    /// of that request would come first.
    pub(super) fn is_idle(&self) -> bool {
        !self.over && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(&mut self, request: Box<Request<B>>) -> Sent<B> {
        // A new line wants its first request only once it was driven.
        if let Err(error) = std::future::poll_fn(|context| self.poll_ready(context)).await {
            // A server of HTTP/2 may speak before it is asked.
            return match self.gauge.other_protocol() {
                Some(speaks) => Sent::Failed(ProxyError::OtherProtocol { speaks }),
                None => Sent::Returned(request, error),
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
            Ok(response) => Sent::Answered(response),
            Err(mut failed) => {
                let message = failed.take_message();
                let error = failed.into_error();
                match (message, self.gauge.written() == before, self.gauge.other_protocol()) {
                    (_, _, Some(speaks)) => Sent::Failed(ProxyError::OtherProtocol { speaks }),
                    (Some(request), true, None) => Sent::Returned(Box::new(request), error),
                    (None, true, None) => Sent::Failed(ProxyError::NothingSent { error: error.into() }),
                    (_, false, None) => Sent::Failed(ProxyError::Broken { error }),
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

    /// Moves bytes: sends what is to be sent, reads what has come.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) {
        // How it ended is told to whoever waits for the answer or reads its body.
        self.over = self.over || self.driver.poll(context).is_ready();
    }

    /// Drives a connection that has become something else, until it ends.
    pub(super) async fn drive_to_the_end(mut self) {
        if !self.over
            && let Err(error) = std::future::poll_fn(|context| self.driver.poll(context)).await
        {
            tracing::debug!(%error, "an upgraded connection to the upstream ended");
        }
    }
}

/// Returns when the upstream has closed the connection. What comes after an answer belongs to nothing.
async fn read_to_end(wire: &mut Wire) {
    let mut rest = [0; 256];
    while let Ok(1..) = wire.read(&mut rest).await {}
}
