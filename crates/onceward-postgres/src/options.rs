//! The options of the store, their defaults and their ranges.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onceward::store::Clock;
use onceward::store::driver::{InvalidOption, Weight, require_at_least, require_between};

use crate::OpenError;
use crate::queue::Limits;

/// How a [`PostgresStore`](crate::PostgresStore) works. The defaults suit a gateway beside its database.
#[derive(Clone)]
pub struct Options {
    /// Whether concurrent swaps share a statement. Default: on. Off is for comparison.
    pub batching: Batching,
    /// What to do about the schema when the store is opened. Default: expect it, because the gateway's role need not own the
    /// tables.
    pub migrate: Migrate,
    /// How many swaps, loads and forgets may be queued; further ones are refused with 503. Default: 8,192. At 20,000 a
    /// second the last one waits for less than half a second, and a client that waits longer is better served by 503.
    pub queue_limit: usize,
    /// How many bytes may be queued. Default: 64 MiB, so that large replies cannot fill the memory.
    pub queue_bytes: usize,
    /// The most swaps in one statement. Default: 512. Beyond that the commit no longer dominates the cost of a swap, and a
    /// longer statement only delays its first swap.
    pub batch_limit: usize,
    /// The most bytes in one statement. Default: 4 MiB, which a slow disk writes in tens of milliseconds.
    pub batch_bytes: usize,
    /// How long the server may run a statement, or wait for a lock, before it cancels it. Default: 5 s. The limit is sent
    /// when a connection is made; a pooler that does not pass it on needs it on the role (`docs/postgres.md`).
    pub statement_timeout: Duration,
    /// How long to wait for an answer before the connection is closed and the outcome is ambiguous. Default: 10 s. Longer
    /// than the server's own limit, so that the statement has ended by then.
    pub answer_timeout: Duration,
    /// The store's clock, which decides when leases lapse and records expire. Default: the database's clock. Another one is
    /// for tests.
    pub clock: Option<Arc<dyn Clock>>,
}

/// Whether concurrent swaps share a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Batching {
    /// All swaps that are queued when a connection becomes free form one statement.
    #[default]
    On,
    /// Each swap and each load is its own statement.
    Off,
}

/// What to do about the schema when a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Migrate {
    /// It must exist, in the version that this program knows.
    #[default]
    Expect,
    /// Missing tables are created.
    Apply,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            batching: Batching::On,
            migrate: Migrate::Expect,
            queue_limit: 8_192,
            queue_bytes: 64 << 20,
            batch_limit: 512,
            batch_bytes: 4 << 20,
            statement_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
            clock: None,
        }
    }
}

/// A claim that becomes visible later than this after its statement began could be missed by the sweeper's watermark
/// (`leases.rs`), so no statement may take longer.
const STATEMENT_TIMEOUT_MAX: Duration = Duration::from_secs(10);
const STATEMENT_TIMEOUT_MIN: Duration = Duration::from_millis(10);

impl Options {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        require_at_least("queue_limit", self.queue_limit, 1)?;
        require_at_least("queue_bytes", self.queue_bytes, 1)?;
        require_at_least("batch_limit", self.batch_limit, 1)?;
        require_at_least("batch_bytes", self.batch_bytes, 1)?;
        let (least, most) = (STATEMENT_TIMEOUT_MIN, STATEMENT_TIMEOUT_MAX);
        require_between("statement_timeout", self.statement_timeout, least, most)?;
        if self.answer_timeout <= self.statement_timeout {
            let rule = format!("longer than statement_timeout, which is {:?}", self.statement_timeout);
            return Err(InvalidOption::new("answer_timeout", self.answer_timeout, rule).into());
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> Limits {
        let batch_rows = match self.batching {
            Batching::On => self.batch_limit,
            Batching::Off => 1,
        };
        Limits {
            waiting: Weight { rows: self.queue_limit, bytes: self.queue_bytes },
            batch: Weight { rows: batch_rows, bytes: self.batch_bytes },
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("batching", &self.batching)
            .field("migrate", &self.migrate)
            .field("queue_limit", &self.queue_limit)
            .field("queue_bytes", &self.queue_bytes)
            .field("batch_limit", &self.batch_limit)
            .field("batch_bytes", &self.batch_bytes)
            .field("statement_timeout", &self.statement_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .finish_non_exhaustive()
    }
}
