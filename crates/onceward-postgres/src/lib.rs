//! Onceward's store for many gateways: PostgreSQL, or a database that speaks its protocol.
//!
//! The swaps of concurrent requests share a statement. A worker task owns each connection; when it becomes free, it takes all
//! queued swaps as one statement over arrays and one commit. The same statement returns the record of each conflict. A single
//! swap is sent at once. The store makes no decisions: it compares versions, and the time is the database's.
//!
//! Acknowledged writes are as durable as the server's `synchronous_commit` makes them; [`examine`] explains the setting.
//! `docs/postgres.md` describes the tables, roles, poolers, TLS and failover.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use onceward::RecordId;
//! use onceward::store::Store;
//! use onceward_postgres::{Options, PostgresStore, PostgresUrl, migrate};
//!
//! let url = PostgresUrl::parse("postgres://onceward:secret@db.internal/shop?sslmode=verify-full")?;
//! migrate(&url).await?;
//! let store = PostgresStore::connect(&url, Options::default()).await?;
//! assert_eq!(store.load(RecordId::from_bytes([7; 16])).await?.record, None);
//! store.close().await;
//! # Ok(())
//! # }
//! ```

mod batch;
mod connection;
mod cursor;
mod error;
mod examine;
mod expiry;
mod job;
mod leases;
mod listing;
mod migrate;
mod options;
mod queue;
pub mod receipts;
mod schema;
mod statements;
mod statistics;
mod swept_minutes;
mod tls;
mod unconfirmed;
mod url;
mod values;
mod worker;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use onceward::store::driver::{FORGET_ROWS, answer_channel, partly_forgotten};
use onceward::store::{Page, Scan, Seen, Store, StoreError, StoreFuture, Swapped, Version};
use onceward::{Record, RecordId};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub use error::OpenError;
pub use examine::examine;
pub use migrate::migrate;
pub use onceward::store::driver::RECORD_BYTES_MAX;
pub use options::{Batching, Migrate, Options};
pub use schema::print_sql;
pub use statistics::Statistics;
pub use url::{Flavor, PostgresUrl, Prepared, Tls, UrlError};

use connection::Dialer;
use job::{Forget, Load, Row, Swap};
use listing::Listing;
use queue::{Job, Queue};
use statements::Statements;
use statistics::Counters;
use swept_minutes::SweptMinutes;
use unconfirmed::UnconfirmedWrites;
use worker::{Role, Worker, WorkerContext};

/// A store in a PostgreSQL database. Clones share its connections.
///
/// A swap whose future is dropped before it is part of a statement is not sent. The store's tasks run on the runtime on
/// which it was connected, and end when the last clone is dropped; [`close`](Self::close) waits for that.
#[derive(Clone)]
pub struct PostgresStore {
    handle: Arc<Handle>,
}

struct Handle {
    context: Arc<WorkerContext>,
    lists: mpsc::Sender<Listing>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    url: String,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.queue.close();
    }
}

/// The most scans in the queue. They come from operators and sweepers, so few are expected.
const LISTS_WAITING: usize = 64;

impl PostgresStore {
    /// Connects, and checks the schema's version.
    pub async fn connect(url: &PostgresUrl, options: Options) -> Result<Self, OpenError> {
        options.check()?;
        let tls = tls::connector(url)?;
        if options.migrate == Migrate::Apply {
            migrate(url).await?;
        }
        let client = migrate::connect(url).await?;
        let found = migrate::installed(&client, url)
            .await
            .map_err(|error| OpenError::Unreachable { url: url.to_string(), reason: error::words(&error) })?;
        migrate::check(url, found)?;
        drop(client);
        let counters = Arc::new(Counters::default());
        let context = Arc::new(WorkerContext {
            dialer: Dialer::new(url, tls, &options, counters.clone()),
            statements: Statements::new(&url.schema, url.flavor),
            queue: Queue::new(options.limits()),
            counters,
            clock: options.clock.clone(),
            swept: SweptMinutes::default(),
            unconfirmed: UnconfirmedWrites::default(),
            connected: AtomicUsize::new(0),
            workers: AtomicUsize::new(url.pool),
        });
        let mut tasks: Vec<_> =
            (0..url.pool).map(|_| tokio::spawn(Worker::new(context.clone(), Role::Batches).run())).collect();
        let (lists, listings) = mpsc::channel(LISTS_WAITING);
        tasks.push(tokio::spawn(list_all(Worker::new(context.clone(), Role::Lists), listings)));
        let handle = Handle { context, lists, tasks: Mutex::new(tasks), url: url.to_string() };
        Ok(Self { handle: Arc::new(handle) })
    }

    /// What the store has done since it was opened, for metrics.
    pub fn statistics(&self) -> Statistics {
        self.handle.context.counters.read()
    }

    /// Sends what is queued and closes the connections. Later calls, through any clone, get [`StoreError::Unavailable`].
    pub async fn close(&self) {
        self.handle.context.queue.close();
        let tasks: Vec<_> = {
            let mut tasks = self.handle.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            // The task for scans ends with the last clone, and loses nothing when it is aborted.
            if let Some(lists) = tasks.pop() {
                lists.abort();
            }
            tasks.drain(..).collect()
        };
        for task in tasks {
            if let Err(error) = task.await
                && error.is_panic()
            {
                tracing::error!("a task of the PostgreSQL store panicked, which is a bug: please report it");
            }
        }
    }

    async fn load_now(&self, id: RecordId) -> Result<Seen, StoreError> {
        let (answer, answered) = answer_channel();
        self.handle.context.queue.push(Job::Load(Load { id, answer }))?;
        answered.receive(task_gone_in_read).await?.decode(id)
    }

    async fn swap_now(
        &self,
        id: RecordId,
        expect: Option<Version>,
        next: Record,
    ) -> Result<Swapped, StoreError> {
        let row = Row::new(id, &next)?;
        drop(next);
        let (created_at, expires_at) = (row.created_at.0, row.expires_at);
        let (answer, answered) = answer_channel();
        self.handle.context.queue.push(Job::Swap(Swap { id, expect, row, answer }))?;
        let written = answered.receive(task_gone).await?;
        if let Some(expiry) = expires_at {
            self.handle.context.swept.note_expiry(created_at, expiry.0);
        }
        written.decode(id)
    }

    async fn scan_now(&self, scan: Scan) -> Result<Page, StoreError> {
        let (answer, answered) = answer_channel();
        self.handle.lists.try_send(Listing { scan, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Overloaded { waiting: LISTS_WAITING },
            mpsc::error::TrySendError::Closed(_) => task_gone_in_read(),
        })?;
        answered.receive(task_gone_in_read).await
    }

    async fn forget_now(&self, records: Vec<(RecordId, Version)>) -> Result<usize, StoreError> {
        let mut forgotten = 0;
        for records in records.chunks(FORGET_ROWS) {
            let (answer, answered) = answer_channel();
            let job = Job::Forget(Forget { records: records.to_vec(), answer });
            let count = match self.handle.context.queue.push(job) {
                Ok(()) => answered.receive(task_gone).await,
                Err(error) => Err(error),
            };
            forgotten += count.map_err(|error| partly_forgotten(forgotten, error))?;
        }
        Ok(forgotten)
    }
}

async fn list_all(mut worker: Worker, mut listings: mpsc::Receiver<Listing>) {
    while let Some(Listing { scan, answer }) = listings.recv().await {
        // The caller has given up.
        if answer.is_abandoned() {
            continue;
        }
        answer.send(worker.list(&scan).await);
    }
}

const TASK_GONE: &str = "the store has been closed, or its tasks have ended with their runtime";

/// A task took the read and ended without an answer.
fn task_gone_in_read() -> StoreError {
    StoreError::Unavailable { reason: TASK_GONE.to_owned() }
}

/// A task took the swap and ended without an answer, so the swap may have happened.
fn task_gone() -> StoreError {
    StoreError::Ambiguous {
        reason: "the task that sent it has ended, with its runtime or by a panic: see the log".to_owned(),
    }
}

impl Store for PostgresStore {
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

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("url", &self.handle.url).finish_non_exhaustive()
    }
}
