//! The body of an upstream's answer, which brings its line back to the pool when it has been read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use super::Sendable;
use super::line::Line;
use super::pool::Pool;

/// An upstream's answer, as it arrives.
pub struct UpstreamBody<B: Sendable> {
    incoming: Incoming,
    /// Nothing once it was given back.
    lent: Option<Lent<B>>,
}

/// What an answer holds while it is being read.
pub(super) struct Lent<B: Sendable> {
    pub line: Line<B>,
    pub pool: Arc<Pool<B>>,
    pub then: Then,
    /// Counts the request until its answer has been read, and its connection until that is idle or closed.
    pub permit: OwnedSemaphorePermit,
}

/// What becomes of a line when its answer has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Another request may use it.
    Reuse,
    /// It was made for one request, and ends with it.
    End,
    /// It is closed here: servers such as uvicorn close a connection after a failure, without having said so in the answer.
    Close,
}

impl<B: Sendable> UpstreamBody<B> {
    pub(super) fn new(incoming: Incoming, lent: Option<Lent<B>>) -> Self {
        Self { incoming, lent }
    }

    fn give_back(&mut self) {
        if let Some(Lent { line, pool, then, permit }) = self.lent.take() {
            match then {
                Then::Reuse => pool.give_back(line),
                Then::End => return line.end(pool, permit),
                Then::Close => drop(line),
            }
            drop(permit);
        }
    }
}

impl<B: Sendable> Body for UpstreamBody<B> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let mut frame = Pin::new(&mut this.incoming).poll_frame(context);
        if let (Poll::Pending, Some(lent)) = (&frame, &mut this.lent) {
            lent.line.drive(context);
            frame = Pin::new(&mut this.incoming).poll_frame(context);
        }
        match &frame {
            Poll::Ready(None) => this.give_back(),
            // A line whose answer broke off is not used again.
            Poll::Ready(Some(Err(_))) => this.lent = None,
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl<B: Sendable> Drop for UpstreamBody<B> {
    fn drop(&mut self) {
        // Servers do not ask on after the last byte of a known length.
        if self.incoming.is_end_stream() {
            self.give_back();
        } else if let Some(Lent { line, pool, then: Then::End, .. }) = self.lent.take() {
            // The rest of the answer is not wanted, but its handler may still work.
            line.into_wire().into_iter().for_each(|wire| pool.keep_ended(wire));
        }
    }
}

impl<B: Sendable> std::fmt::Debug for UpstreamBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamBody").field("incoming", &self.incoming).finish_non_exhaustive()
    }
}
