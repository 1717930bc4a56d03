//! Counts the open requests of an HTTP/2 connection, to know since when it is idle.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::plumbing::time::{Instant, deadline, instant};

use crate::settings::Limits;

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Streams(Mutex<Open>);

#[derive(Debug)]
struct Open {
    count: usize,
    /// How long the connection may stay idle: shorter before its first request.
    patience: Duration,
    /// When the last request ended, or the connection began.
    since: Instant,
}

/// An open request. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Stream {
    streams: Arc<Streams>,
    idle_timeout: Duration,
}

impl Streams {
    pub(super) fn new(limits: &Limits) -> Self {
        Self(Mutex::new(Open { count: 0, patience: limits.header_timeout, since: instant() }))
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // A panic while the lock is held cannot leave half a number.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(self: &Arc<Self>, idle_timeout: Duration) -> Stream {
        self.open().count += 1;
        Stream { streams: Arc::clone(self), idle_timeout }
    }

    /// When the connection will have been idle for too long. `None` while it is not idle.
    pub(super) fn idle_until(&self) -> Option<Instant> {
        let open = self.open();
        (open.count == 0).then(|| deadline(open.since, open.patience))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        open.count = open.count.saturating_sub(1);
        open.patience = self.idle_timeout;
        open.since = instant();
    }
}
