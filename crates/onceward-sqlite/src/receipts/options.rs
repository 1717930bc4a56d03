//! The options of a receipt table, their defaults and their ranges.

use std::time::Duration;

use onceward::store::driver::{InvalidOption, require_between};

/// How [`SqliteReceipts`](super::SqliteReceipts) works.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiptOptions {
    /// How long a void waits for a handler's open transaction. Default: 2 s. The void ends with the transaction, so a longer
    /// wait answers sooner than another void later.
    pub lock_wait: Duration,
}

const LOCK_WAIT_MIN: Duration = Duration::from_millis(1);
const LOCK_WAIT_MAX: Duration = Duration::from_secs(60);

impl Default for ReceiptOptions {
    fn default() -> Self {
        Self { lock_wait: Duration::from_secs(2) }
    }
}

impl ReceiptOptions {
    /// Sets how long a void waits for a handler's open transaction.
    #[must_use]
    pub fn lock_wait(mut self, lock_wait: Duration) -> Self {
        self.lock_wait = lock_wait;
        self
    }

    pub(super) fn check(&self) -> Result<(), InvalidOption> {
        require_between("lock_wait", self.lock_wait, LOCK_WAIT_MIN, LOCK_WAIT_MAX)
    }
}
