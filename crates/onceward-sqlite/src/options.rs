//! What can be chosen, and what is chosen where nothing is said.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use onceward::store::driver::{InvalidOption, Weight, require_at_least, require_at_most, require_between};
use onceward::time::{Clock, SystemClock};

use crate::OpenError;

/// Called when the disk can no longer be trusted: the process must stop. See [`Options::on_fatal`].
pub type FatalHook = Arc<dyn Fn(&str) + Send + Sync>;

/// How a [`SqliteStore`](crate::SqliteStore) works. The defaults suit one gateway on one disk.
#[derive(Clone)]
pub struct Options {
    /// The store's clock, by which leases lapse and records expire. This machine's.
    pub clock: Arc<dyn Clock>,
    /// How many swaps and forgets may wait for the writer; what comes on top is shed. 8,192: at twenty thousand writes a
    /// second the last one in waits for less than half a second, and a client that waits longer would rather hear 503.
    pub queue_limit: usize,
    /// How many bytes may wait for the writer. 64 MiB, so that large replies cannot fill the memory.
    pub queue_bytes: usize,
    /// How many writes share one commit at most. 512: beyond that the sync is no longer what a write costs, and a longer
    /// transaction only makes the first one wait for the last.
    pub batch_limit: usize,
    /// How many bytes share one commit at most, written or read for conflicts. 4 MiB, which a slow disk takes in tens of
    /// milliseconds.
    pub batch_bytes: usize,
    /// From how many bytes of records on the journal is folded into the database, in the background. 8 MiB; four times as
    /// much may wait for it, in memory, before writers wait too.
    pub journal_bytes: usize,
    /// How long a change waits at most, about, before it is folded into the database. 1 s: so far behind is what other
    /// programs read.
    pub fold_after: Duration,
    /// From how many pages on SQLite's own log is moved into the database, in the background. 4,000, or 16 MiB.
    pub checkpoint_pages: u32,
    /// The size of a page of a file that is created now; an existing file keeps its own. 4,096.
    pub page_bytes: u32,
    /// How many threads serve `load`, each with a connection of its own. 2.
    pub readers: usize,
    /// How many bytes of pages the thread that folds keeps in memory, beside the operating system's cache; each reader keeps a
    /// sixteenth of it. 16 MiB: up to a gigabyte of database SQLite goes through its whole cache at almost every commit,
    /// and a cache of 128 MiB halved the speed.
    pub cache_bytes: usize,
    /// How long the thread that folds waits for another program, such as a `sqlite3` shell, that holds the file's write
    /// lock, before it tries anew. 5 s.
    pub lock_wait: Duration,
    /// What to do when a sync has failed. The kernel may then have dropped what it could not write, and a second sync
    /// would succeed without it: going on could answer with records that are not on the disk. The default prints the
    /// message to stderr and aborts the process. A hook that returns leaves a store that refuses everything.
    pub on_fatal: FatalHook,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            queue_limit: 8_192,
            queue_bytes: 64 << 20,
            batch_limit: 512,
            batch_bytes: 4 << 20,
            journal_bytes: 8 << 20,
            fold_after: Duration::from_secs(1),
            checkpoint_pages: 4_000,
            page_bytes: 4_096,
            readers: 2,
            cache_bytes: 16 << 20,
            lock_wait: Duration::from_secs(5),
            on_fatal: Arc::new(stop_the_process),
        }
    }
}

/// Standard error, and not the log: a log that is written by a thread would lose the message to the abort. Where it is closed
/// the message is lost and the process ends all the same: `eprintln!` would panic, and end only this thread.
fn stop_the_process(message: &str) {
    drop(writeln!(std::io::stderr(), "onceward: {message}"));
    std::process::abort();
}

/// A file with more threads than this would only make them wait for each other.
const READERS_MAX: usize = 64;
/// All of it is held in memory, several times over.
const JOURNAL_BYTES_MAX: usize = 1 << 30;
/// SQLite keeps the log's length in a signed 32-bit number, and a log near that would take hours to recover.
const CHECKPOINT_PAGES_MAX: u32 = 10_000_000;
/// SQLite takes no more.
const PAGE_BYTES_MAX: u32 = 65_536;
/// Whoever waits for the store has given up long before.
const WAIT_MAX: Duration = Duration::from_secs(60 * 60);
/// Below this a page holds less than one record.
const PAGE_BYTES_MIN: u32 = 1_024;
/// One connection reads the table at less than this, however small its cache.
const CACHE_BYTES_MIN: usize = 1 << 20;

impl Options {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        require_at_least("queue_limit", self.queue_limit, 1)?;
        require_at_least("queue_bytes", self.queue_bytes, 1)?;
        require_at_least("batch_limit", self.batch_limit, 1)?;
        require_at_least("batch_bytes", self.batch_bytes, 1)?;
        require_between("journal_bytes", self.journal_bytes, 1, JOURNAL_BYTES_MAX)?;
        require_between("readers", self.readers, 1, READERS_MAX)?;
        require_at_least("cache_bytes", self.cache_bytes, CACHE_BYTES_MIN)?;
        require_between("checkpoint_pages", self.checkpoint_pages, 1, CHECKPOINT_PAGES_MAX)?;
        require_at_most("lock_wait", self.lock_wait, WAIT_MAX)?;
        require_at_most("fold_after", self.fold_after, WAIT_MAX)?;
        if !self.page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&self.page_bytes)
        {
            let rule = format!("a power of two between {PAGE_BYTES_MIN} and {PAGE_BYTES_MAX}");
            return Err(InvalidOption::new("page_bytes", self.page_bytes, rule).into());
        }
        Ok(())
    }

    pub(crate) fn queue_weight(&self) -> Weight {
        Weight { rows: self.queue_limit, bytes: self.queue_bytes }
    }

    pub(crate) fn batch_weight(&self) -> Weight {
        Weight { rows: self.batch_limit, bytes: self.batch_bytes.min(JOURNAL_BYTES_MAX) }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("queue_limit", &self.queue_limit)
            .field("queue_bytes", &self.queue_bytes)
            .field("batch_limit", &self.batch_limit)
            .field("batch_bytes", &self.batch_bytes)
            .field("journal_bytes", &self.journal_bytes)
            .field("fold_after", &self.fold_after)
            .field("checkpoint_pages", &self.checkpoint_pages)
            .field("page_bytes", &self.page_bytes)
            .field("readers", &self.readers)
            .field("cache_bytes", &self.cache_bytes)
            .field("lock_wait", &self.lock_wait)
            .finish_non_exhaustive()
    }
}
