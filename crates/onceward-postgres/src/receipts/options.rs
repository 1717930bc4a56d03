//! The options of a receipt table, their defaults and their ranges.

use std::time::Duration;

use onceward::store::driver::{InvalidOption, require_between};

/// How [`PostgresReceipts`](super::PostgresReceipts) works.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiptOptions {
    /// How many connections there may be; they are made when they are needed. Default: 4. The `pool` of the URL does not
    /// count. A void that waits for a handler's transaction keeps a connection busy.
    pub connections: usize,
    /// How long a void waits for a handler's open transaction. Default: 2 s. The void ends with the transaction, so a longer
    /// wait answers sooner than another void later; but each keeps a connection.
    pub lock_wait: Duration,
    /// How long the server may run a statement. Default: 5 s.
    pub statement_timeout: Duration,
    /// How long to wait for an answer, or for a free connection. Default: 10 s.
    pub answer_timeout: Duration,
}

const CONNECTIONS_MAX: usize = 64;
const LOCK_WAIT_MIN: Duration = Duration::from_millis(1);
const LOCK_WAIT_MAX: Duration = Duration::from_secs(60);

impl Default for ReceiptOptions {
    fn default() -> Self {
        Self {
            connections: 4,
            lock_wait: Duration::from_secs(2),
            statement_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
        }
    }
}

impl ReceiptOptions {
    /// Sets how many connections there may be.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets how long a void waits for a handler's open transaction.
    #[must_use]
    pub fn lock_wait(mut self, lock_wait: Duration) -> Self {
        self.lock_wait = lock_wait;
        self
    }

    /// Sets how long the server may run a statement.
    #[must_use]
    pub fn statement_timeout(mut self, statement_timeout: Duration) -> Self {
        self.statement_timeout = statement_timeout;
        self
    }

    /// Sets how long to wait for an answer.
    #[must_use]
    pub fn answer_timeout(mut self, answer_timeout: Duration) -> Self {
        self.answer_timeout = answer_timeout;
        self
    }

    pub(super) fn check(&self) -> Result<(), InvalidOption> {
        require_between("connections", self.connections, 1, CONNECTIONS_MAX)?;
        require_between("lock_wait", self.lock_wait, LOCK_WAIT_MIN, LOCK_WAIT_MAX)?;
        // Each limit must pass before the next one, or an answer would name the wrong cause.
        for (name, longer, than, shorter) in [
            ("statement_timeout", self.statement_timeout, "lock_wait", self.lock_wait),
            ("answer_timeout", self.answer_timeout, "statement_timeout", self.statement_timeout),
        ] {
            if longer <= shorter {
                return Err(InvalidOption::new(
                    name,
                    longer,
                    format!("longer than {than}, which is {shorter:?}"),
                ));
            }
        }
        Ok(())
    }
}
