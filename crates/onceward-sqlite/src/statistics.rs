//! What a store counts about itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a store has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Transactions that were committed.
    pub batches: u64,
    /// Swaps and parts of forgets that were answered by them, conflicts included.
    pub writes: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    batches: AtomicU64,
    writes: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, writes: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.writes.fetch_add(writes as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Statistics {
        Statistics {
            batches: self.batches.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
        }
    }
}
