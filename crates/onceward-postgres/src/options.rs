//! What can be chosen, and what is chosen where nothing is said.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onceward::Clock;
use onceward::store::driver::{InvalidOption, Weight, require_at_least, require_between};

use crate::OpenError;
use crate::queue::Limits;

/// How a [`PostgresStore`](crate::PostgresStore) works. The defaults suit a gateway beside its database.
#[derive(Clone)]
pub struct Options {
    /// Whether concurrent swaps share a statement. On; off is for comparison.
    pub batching: Batching,
    /// What to do about the schema when the store is opened. It is expected to be there: whoever runs the gateway need
    /// not own the tables.
    pub migrate: Migrate,
    /// How many swaps, loads and forgets may wait for a connection; what comes on top is shed. 8,192: at twenty thousand
    /// a second the last one in waits for less than half a second, and a client that waits longer would rather hear 503.
    pub queue_limit: usize,
    /// How many bytes may wait for a connection. 64 MiB, so that large replies cannot fill the memory.
    pub queue_bytes: usize,
    /// How many swaps share one statement at most. 512: beyond that the commit is no longer what a swap costs, and a
    /// longer statement only makes the first one wait for the last.
    pub batch_limit: usize,
    /// How many bytes share one statement at most. 4 MiB, which a slow disk takes in tens of milliseconds.
    pub batch_bytes: usize,
    /// How long the server may work on a statement, or wait for a lock, before it gives it up. 5 s. It is told when a
    /// connection is made; a pooler that does not pass that on needs it on the role (`docs/postgres.md`).
    pub statement_timeout: Duration,
    /// How long an answer is waited for before the connection is given up and the outcome called ambiguous. 10 s: longer
    /// than the server works on it, so that whatever was sent has ended by then.
    pub answer_timeout: Duration,
    /// The store's clock, by which leases lapse and records expire. The database's own where there is none; another one is
    /// for tests.
    pub clock: Option<Arc<dyn Clock>>,
}

/// Whether concurrent swaps share a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Batching {
    /// Whatever waits when a connection becomes free is one statement.
    #[default]
    On,
    /// Every swap and load is a statement of its own.
    Off,
}

/// What to do about the schema when a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Migrate {
    /// It must be there, in the version that this program knows.
    #[default]
    Expect,
    /// What is missing is made.
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

/// A claim that becomes visible later than this after its statement began could be passed over by the sweeper's
/// bookkeeping (`leases.rs`), so no statement may take longer.
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
