//! Counters for metrics.

use onceward::store::driver::Counter;

/// What a store has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Transactions that were committed.
    pub batches: u64,
    /// Swaps and parts of forgets that they answered, conflicts included.
    pub writes: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    batches: Counter,
    writes: Counter,
}

impl Counters {
    pub(crate) fn count(&self, writes: usize) {
        self.batches.add(1);
        self.writes.add(writes);
    }

    pub(crate) fn read(&self) -> Statistics {
        Statistics { batches: self.batches.read(), writes: self.writes.read() }
    }
}
