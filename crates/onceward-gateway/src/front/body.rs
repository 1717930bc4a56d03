//! A request's body, with a limit on its pauses.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use onceward::plumbing::time::sleep;

/// A request's body. It fails where the client pauses for too long.
pub struct Body {
    incoming: Incoming,
    pause: Duration,
    /// Made at the first wait, so that a body that is there already needs no timer.
    timer: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

/// Why a request's body broke off.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client is gone, or its body is malformed.
    #[error("the request's body broke off")]
    Broken(#[source] hyper::Error),
    /// The client sent nothing for too long.
    #[error("the request's body paused for longer than {}: send it without such pauses", humantime::format_duration(*.0))]
    Paused(Duration),
}

impl Body {
    pub(super) fn new(incoming: Incoming, pause: Duration) -> Self {
        Self { incoming, pause, timer: None }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("pause", &self.pause).finish_non_exhaustive()
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.incoming).poll_frame(context) {
            this.timer = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Broken)));
        }
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(this.pause)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(BodyError::Paused(this.pause)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
