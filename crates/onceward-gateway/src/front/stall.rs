//! A client that does not take its answer holds a connection, and must not hold it for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use onceward::plumbing::time::sleep;

/// Watches writes. As long as they go through it costs nothing: the timer is made when one does not.
pub(super) struct Stall {
    limit: Duration,
    timer: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl std::fmt::Debug for Stall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stall").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Stall {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, timer: None }
    }

    /// Passes on what became of a write, unless it has been waiting for too long.
    pub(super) fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        if timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}
