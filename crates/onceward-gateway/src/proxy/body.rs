//! The body of an upstream's answer, which brings its connection back to the pool when it has been read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use super::Sendable;
use super::connection::Connection;
use super::pool::Pool;

/// An upstream's answer, as it arrives.
pub struct UpstreamBody<B: Sendable> {
    incoming: Incoming,
    /// `None` once it was given back.
    arrives_on: Option<AnswerConnection<B>>,
}

/// The connection that an answer arrives on, held until the answer has been read.
pub(super) struct AnswerConnection<B: Sendable> {
    pub connection: Connection<B>,
    pub pool: Arc<Pool<B>>,
    pub after_answer: AfterAnswer,
    /// Counts the request until its answer has been read, and its connection until that is idle or closed.
    pub permit: OwnedSemaphorePermit,
}

/// What to do with a connection when its answer has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterAnswer {
    /// Another request may use it.
    Reuse,
    /// It was made for one request, and ends with it.
    End,
    /// It is closed: servers such as uvicorn close a connection after a failure without announcing that in the answer.
    Close,
}

impl<B: Sendable> UpstreamBody<B> {
    pub(super) fn new(incoming: Incoming, arrives_on: Option<AnswerConnection<B>>) -> Self {
        Self { incoming, arrives_on }
    }

    fn give_back(&mut self) {
        if let Some(AnswerConnection { connection, pool, after_answer, permit }) = self.arrives_on.take() {
            match after_answer {
                AfterAnswer::Reuse => pool.give_back(connection),
                AfterAnswer::End => return connection.end(pool, permit),
                AfterAnswer::Close => drop(connection),
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
        if let (Poll::Pending, Some(arrives_on)) = (&frame, &mut this.arrives_on) {
            arrives_on.connection.drive(context);
            frame = Pin::new(&mut this.incoming).poll_frame(context);
        }
        match &frame {
            Poll::Ready(None) => this.give_back(),
            // A connection whose answer broke off is not used again.
            Poll::Ready(Some(Err(_))) => this.arrives_on = None,
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
        // hyper's server does not poll again after the last byte of a known length.
        if self.incoming.is_end_stream() {
            self.give_back();
        } else if let Some(AnswerConnection { connection, pool, after_answer: AfterAnswer::End, .. }) =
            self.arrives_on.take()
        {
            // The client went away, but the upstream's handler may still work.
            connection.into_wire().into_iter().for_each(|wire| pool.keep_ended(wire));
        }
    }
}

impl<B: Sendable> std::fmt::Debug for UpstreamBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamBody").field("incoming", &self.incoming).finish_non_exhaustive()
    }
}
