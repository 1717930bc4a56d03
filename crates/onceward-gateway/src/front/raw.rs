//! What a guard and the requests of its connection have in common.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use futures_util::task::AtomicWaker;

use super::refusal::Refusal;

/// Ends HTTP on a connection. It is among the extensions of a request that asks for an upgrade over HTTP/1.1.
///
/// Whoever passes on a 101 calls [`Raw::go_raw`] before: the bytes that follow are no requests, and the guard would
/// refuse them.
#[derive(Debug, Clone)]
pub struct Raw(pub(super) Arc<Shared>);

impl Raw {
    /// From now on every byte passes as it is.
    pub fn go_raw(&self) {
        self.0.raw.store(true, Ordering::Release);
        self.0.reader.wake();
    }
}

/// One for each HTTP/1.1 connection.
#[derive(Debug, Default)]
pub(super) struct Shared {
    raw: AtomicBool,
    /// Whoever waits to read while it is not known whether HTTP goes on.
    reader: AtomicWaker,
    /// Whether a part of the head has come that is waited for.
    head_begun: AtomicBool,
    /// Whether the gateway stops.
    stopping: AtomicBool,
    /// Why the connection's last request was refused.
    refusal: OnceLock<Refusal>,
}

impl Shared {
    pub(super) fn is_raw(&self) -> bool {
        self.raw.load(Ordering::Acquire)
    }

    pub(super) fn wait(&self, waker: &Waker) {
        self.reader.register(waker);
    }

    pub(super) fn wake(&self) {
        self.reader.wake();
    }

    /// A head is waited for from now on.
    pub(super) fn await_head(&self) {
        self.head_begun.store(false, Ordering::Relaxed);
    }

    pub(super) fn begin_head(&self) {
        self.head_begun.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_head_begun(&self) -> bool {
        self.head_begun.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// A connection ends with its first refusal, so that there is never a second.
    pub(super) fn refuse(&self, refusal: Refusal) {
        self.refusal.get_or_init(|| refusal);
    }

    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.refusal.get().copied()
    }
}
