//! Counters for metrics.

use onceward::store::driver::Counter;

/// What a store has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Statements that were sent, of every kind.
    pub statements: u64,
    /// Statements that carried swaps.
    pub batches: u64,
    /// Swaps that were answered, conflicts included.
    pub swaps: u64,
    /// Loads that were answered.
    pub loads: u64,
    /// The most swaps that one statement answered.
    pub largest_batch: u64,
    /// Conflicts whose record the statement could not see, and which were read by another statement.
    pub looked_again: u64,
    /// Statements that the server aborted because of a deadlock or a serialization failure, and which were sent again.
    pub retries: u64,
    /// Swaps and forgets whose answer was lost.
    pub ambiguous: u64,
    /// Connections that were made.
    pub connections: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub statements: Counter,
    pub batches: Counter,
    pub swaps: Counter,
    pub loads: Counter,
    pub largest_batch: Counter,
    pub looked_again: Counter,
    pub retries: Counter,
    pub ambiguous: Counter,
    pub connections: Counter,
}

impl Counters {
    pub(crate) fn read(&self) -> Statistics {
        Statistics {
            statements: self.statements.read(),
            batches: self.batches.read(),
            swaps: self.swaps.read(),
            loads: self.loads.read(),
            largest_batch: self.largest_batch.read(),
            looked_again: self.looked_again.read(),
            retries: self.retries.read(),
            ambiguous: self.ambiguous.read(),
            connections: self.connections.read(),
        }
    }
}
