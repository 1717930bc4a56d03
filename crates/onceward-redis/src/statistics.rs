//! Counters for metrics.

use onceward::store::driver::Counter;

/// What a store has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Loads, swaps, scans and forgets.
    pub calls: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Connections that were made after the first.
    pub reconnects: u64,
    /// How often a loss of records was detected.
    pub losses: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub calls: Counter,
    pub failures: Counter,
    pub reconnects: Counter,
    pub losses: Counter,
}

impl Counters {
    pub(crate) fn read(&self) -> Statistics {
        Statistics {
            calls: self.calls.read(),
            failures: self.failures.read(),
            reconnects: self.reconnects.read(),
            losses: self.losses.read(),
        }
    }
}
