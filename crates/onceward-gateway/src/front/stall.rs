//! A limit on how long a client may accept no bytes of its answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use onceward::plumbing::time::sleep;

/// Limits the time of a pending write. The timer is made when a write is pending, so that others cost nothing.
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

    /// Returns the result of a write, or an error if writes have been pending for too long.
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
