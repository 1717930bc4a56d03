//! The options of the store, their defaults and their ranges.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use onceward::store::driver::{InvalidOption, Weight, require_at_least, require_at_most, require_between};
use onceward::store::{Clock, SystemClock};

use crate::OpenError;

/// Called when the disk did not confirm a sync: the process must stop. See [`Options::on_fatal`].
pub type FatalHook = Arc<dyn Fn(&str) + Send + Sync>;

/// How a [`SqliteStore`](crate::SqliteStore) works. The defaults suit one gateway on one disk.
#[derive(Clone)]
pub struct Options {
    /// The store's clock, which decides when leases lapse and records expire. Default: the machine's clock.
    pub clock: Arc<dyn Clock>,
    /// How many swaps and forgets may be queued; further ones are refused with 503. Default: 8,192. At 20,000 writes a
    /// second the last one waits for less than half a second, and a client that waits longer is better served by 503.
    pub queue_limit: usize,
    /// How many bytes may be queued for the writer. Default: 64 MiB, so that large replies cannot fill the memory.
    pub queue_bytes: usize,
    /// The most writes in one commit. Default: 512. Beyond that the sync no longer dominates the cost of a write, and a
    /// longer batch only delays its first write.
    pub batch_limit: usize,
    /// The most bytes in one commit, written or read for conflicts. Default: 4 MiB, which a slow disk writes in tens of
    /// milliseconds.
    pub batch_bytes: usize,
    /// The size of the memtable, in bytes of records, from which it is flushed into the database in the background. Default:
    /// 8 MiB. Writers wait when four times as much is not flushed.
    pub journal_bytes: usize,
    /// About how long a change stays in the journal before it is flushed into the database. Default: 1 s. Other programs
    /// that read the database see changes that much later.
    pub fold_after: Duration,
    /// The length of SQLite's log, in pages, from which it is checkpointed in the background. Default: 4,000 (16 MiB).
    pub checkpoint_pages: u32,
    /// The page size of a file that is created; an existing file keeps its own. Default: 4,096.
    pub page_bytes: u32,
    /// How many threads serve `load`, each with its own connection. Default: 2.
    pub readers: usize,
    /// The flusher's page cache in bytes, in addition to the operating system's; each reader has a sixteenth of it.
    /// Default: 16 MiB. For databases of up to a gigabyte SQLite goes through its whole cache at almost every commit, and a
    /// cache of 128 MiB halved the speed.
    pub cache_bytes: usize,
    /// How long the flusher waits for another program, such as a `sqlite3` shell, that holds the file's write lock, before
    /// it tries again. Default: 5 s.
    pub lock_wait: Duration,
    /// Called when a sync has failed. The kernel may then have dropped pages that it could not write, and a second sync
    /// would succeed without them, so a process that goes on could answer from records that are not on the disk. The default
    /// prints the message to stderr and aborts the process. If the hook returns, the store refuses everything.
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

/// Writes to stderr and not to the log, because a log that is written by another thread would lose the message at the abort.
/// A closed stderr loses the message, and the process still ends: `eprintln!` would panic, and end only this thread.
fn stop_the_process(message: &str) {
    drop(writeln!(std::io::stderr(), "onceward: {message}"));
    std::process::abort();
}

/// More readers than this contend for one file.
const READERS_MAX: usize = 64;
/// The journal's content is held in memory up to five times over.
const JOURNAL_BYTES_MAX: usize = 1 << 30;
/// SQLite keeps the log's length in a signed 32-bit number, and a log of that length would take hours to recover.
const CHECKPOINT_PAGES_MAX: u32 = 10_000_000;
/// SQLite's maximum.
const PAGE_BYTES_MAX: u32 = 65_536;
/// Callers give up long before.
const WAIT_MAX: Duration = Duration::from_secs(60 * 60);
/// A smaller page holds less than one record.
const PAGE_BYTES_MIN: u32 = 1_024;
/// A smaller cache is slower for every connection and saves no memory worth having.
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
