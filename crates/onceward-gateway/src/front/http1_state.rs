//! What the guard, the head timer and the request handler of one HTTP/1.1 connection share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;

use super::refusal::Refusal;

/// The state of one HTTP/1.1 connection.
#[derive(Debug, Default)]
pub(super) struct Http1State {
    /// Whether the connection was upgraded to another protocol.
    upgraded: AtomicBool,
    /// Waits to read until the answer to an upgrade request is known.
    reader: AtomicWaker,
    /// Whether the first bytes of the next head have come.
    head_begun: AtomicBool,
    /// Whether the gateway stops.
    stopping: AtomicBool,
    /// Why the connection's last request was refused.
    refusal: OnceLock<Refusal>,
}

impl Http1State {
    /// Ends HTTP on the connection: from now on the guard passes every byte as it is. To be called before a 101 is written,
    /// because the bytes that follow it are not requests, and would be refused.
    pub(super) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Release);
        self.reader.wake();
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Acquire)
    }

    pub(super) fn register_reader(&self, waker: &Waker) {
        self.reader.register(waker);
    }

    pub(super) fn wake_reader(&self) {
        self.reader.wake();
    }

    /// The next head is awaited from now on.
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
