//! Onceward's embedded store: a SQLite file and a journal beside it, durable before it answers.
//!
//! Concurrent writes share one sync (group commit). The writer thread takes all queued writes, decides each one, appends them
//! to the journal as one frame, syncs once and answers all of them. Writes that arrive meanwhile form the next batch, and a
//! single write does not wait for others. The journal's changes are also kept in memory, in a memtable. The flusher thread
//! writes a frozen memtable into the database about a second later, so that a claim and its completion become one row,
//! written once. Reads search the memtables first, then the database, on threads and connections of their own.
//!
//! The store survives `kill -9` and power loss: a swap is answered only after the journal was synced. If the disk does not
//! confirm the sync, the process stops, because the contents of the disk are then unknown ([`Options::on_fatal`]).
//! `docs/sqlite.md` describes files, backups and limits.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use onceward::RecordId;
//! use onceward::store::Store;
//! use onceward_sqlite::{Options, SqliteStore};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("onceward.db");
//! let store = SqliteStore::open(&path, Options::default())?;
//! assert_eq!(store.load(RecordId::from_bytes([7; 16])).await?.record, None);
//! store.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```

mod batch;
mod cursor;
mod entry;
mod error;
mod flush;
mod job;
mod journal;
mod lock;
mod memtable;
mod options;
mod queue;
mod reader;
pub mod receipts;
mod rows;
mod scan;
mod schema;
mod secret;
mod statistics;
mod threads;
mod wal_length;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onceward::store::driver::{FORGET_ROWS, RawSeen, answer_channel, partly_forgotten};
use onceward::store::{Page, Scan, Seen, Store, StoreError, StoreFuture, Swapped, Version};
use onceward::{Record, RecordId, store::Clock};

pub use error::OpenError;
pub use onceward::store::driver::RECORD_BYTES_MAX;
pub use options::{FatalHook, Options};
pub use secret::SecretError;
pub use statistics::Statistics;

use job::{Forget, Job, Row, Swap};
use reader::Load;
use scan::Listing;
use threads::Threads;

/// A store in a file. Clones share it.
///
/// A swap whose future is dropped before the writer reaches it is not written. Dropping the last clone moves SQLite's log
/// into the database and joins the threads, which can take a second after heavy load. In async code, call
/// [`close`](Self::close) first: the drop then does not block.
#[derive(Clone)]
pub struct SqliteStore {
    threads: Arc<Threads>,
    path: Arc<PathBuf>,
    clock: Arc<dyn Clock>,
}

impl SqliteStore {
    /// Opens a store, and creates it if there is none. Only one process can open a file, and only once.
    ///
    /// Blocks while SQLite recovers the log of a process that was killed.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        options.check()?;
        let path = Arc::new(lock::resolve(path.as_ref())?);
        let clock = options.clock.clone();
        let threads = Threads::start(&path, &options)?;
        Ok(Self { threads: Arc::new(threads), path, clock })
    }

    /// The file, with symlinks resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole database and returns the damage that SQLite finds, in SQLite's words. Blocks until it is read.
    ///
    /// A damaged record is an error when it is loaded. A damaged index is not: an id that the index has lost looks like a
    /// new key. So check the database after a fault of its disk, before the store is used again.
    pub fn damage(&self) -> Result<Vec<String>, OpenError> {
        schema::integrity(&self.path)
    }

    /// What the store has done since it was opened, for metrics.
    pub fn statistics(&self) -> Statistics {
        self.threads.counters.read()
    }

    /// Writes what is queued, moves SQLite's log into the database and ends the threads. Later calls, through any clone, get
    /// [`StoreError::Unavailable`]. The file lock is released when the last clone is dropped.
    pub async fn close(&self) {
        self.threads.queues.close();
        self.threads.ended().await;
    }

    async fn load_now(&self, id: RecordId) -> Result<Seen, StoreError> {
        self.threads.queues.loads.check_open()?;
        // The memtables are searched before the database: a change that is flushed in between is in the database by the time
        // it is searched.
        if let Some(change) = self.threads.memtables.get(id) {
            return RawSeen { now: self.clock.now(), record: change.stored() }.decode(id);
        }
        let (answer, answered) = answer_channel();
        self.threads.queues.loads.push(Load { id, answer })?;
        let record = answered.receive(reader_gone).await?;
        RawSeen { now: self.clock.now(), record }.decode(id)
    }

    async fn swap_now(
        &self,
        id: RecordId,
        expect: Option<Version>,
        next: Record,
    ) -> Result<Swapped, StoreError> {
        let row = Row::new(id, &next)?;
        drop(next);
        let (answer, answered) = answer_channel();
        let wake = self.threads.queues.writes.gather(Job::Swap(Swap { id, expect, row, answer }))?;
        // Other tasks that are ready to write run first and join the batch, so that a busy runtime syncs less often. An idle
        // runtime resumes this task at once.
        tokio::task::yield_now().await;
        drop(wake);
        answered.receive(writer_gone).await?.decode(id)
    }

    async fn scan_now(&self, scan: Scan) -> Result<Page, StoreError> {
        if scan.after.is_none() {
            // Lists are read from the database alone, so it is brought up to date first. A later page may miss changes that
            // were made since.
            let (answer, answered) = answer_channel();
            self.threads.queues.writes.push(Job::Flush(answer))?;
            answered.receive(|| StoreError::Unavailable { reason: WRITER_GONE.to_owned() }).await?;
        }
        let (answer, answered) = answer_channel();
        self.threads.queues.listings.push(Listing { scan, now: self.clock.now(), answer })?;
        answered.receive(reader_gone).await
    }

    async fn forget_now(&self, records: Vec<(RecordId, Version)>) -> Result<usize, StoreError> {
        let mut forgotten = 0;
        for records in records.chunks(FORGET_ROWS) {
            let (answer, answered) = answer_channel();
            let job = Job::Forget(Forget { records: records.to_vec(), answer });
            let count = match self.threads.queues.writes.push(job) {
                Ok(()) => answered.receive(writer_gone).await,
                Err(error) => Err(error),
            };
            forgotten += count.map_err(|error| partly_forgotten(forgotten, error))?;
        }
        Ok(forgotten)
    }
}

const READER_GONE: &str = "a reading thread has ended: restart the process, and find the cause in its log";

const WRITER_GONE: &str = "the writing thread has ended: restart the process, and find the cause in its log";

/// The reader took the load and ended without an answer.
fn reader_gone() -> StoreError {
    StoreError::Unavailable { reason: READER_GONE.to_owned() }
}

/// The writer took the job and ended without an answer, so the write may have happened.
fn writer_gone() -> StoreError {
    StoreError::Ambiguous { reason: WRITER_GONE.to_owned() }
}

impl Store for SqliteStore {
    fn load(&self, id: RecordId) -> StoreFuture<'_, Seen> {
        Box::pin(self.load_now(id))
    }

    fn swap(&self, id: RecordId, expect: Option<Version>, next: Record) -> StoreFuture<'_, Swapped> {
        Box::pin(self.swap_now(id, expect, next))
    }

    fn scan(&self, scan: Scan) -> StoreFuture<'_, Page> {
        Box::pin(self.scan_now(scan))
    }

    fn forget(&self, records: Vec<(RecordId, Version)>) -> StoreFuture<'_, usize> {
        Box::pin(self.forget_now(records))
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}
