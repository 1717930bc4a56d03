//! The threads of a store: one writes the journal, one folds it into the database, one lists, some load. And how they end.
//!
//! The writer is the last to end: it lets the readers end, then the thread that folds, and removes the journal when
//! everything is in the database.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use onceward::store::StoreError;
use onceward::store::driver::Weight;
use rusqlite::Connection;
use tokio::sync::watch;

use crate::batch::Batch;
use crate::flush::{FlushEnd, Flusher};
use crate::job::Job;
use crate::journal::{self, Journal, Opening};
use crate::lock::{self, FileLock};
use crate::memtable::{Memtable, Memtables};
use crate::queue::Queue;
use crate::reader::{self, Load};
use crate::scan::{self, Listing};
use crate::statistics::Counters;
use crate::wal_length::WalLength;
use crate::writer::Writer;
use crate::{OpenError, Options, error, schema};

/// So many lists may wait. They are an operator's or a sweeper's, of which there are few.
const LISTINGS_WAITING: Weight = Weight { rows: 64, bytes: 0 };

/// What the tasks that use a store hold of its threads.
pub(crate) struct Threads {
    pub queues: Queues,
    pub memtables: Arc<Memtables>,
    pub counters: Arc<Counters>,
    writer: Mutex<Option<JoinHandle<()>>>,
    ended: watch::Receiver<bool>,
    _locked: Arc<LockedFile>,
}

/// Both are given up after the last handle is dropped and the writer has ended, whichever is later.
struct LockedFile {
    // Closing the database's file gives up every lock that this process has on it.
    _file: File,
    // Given back last: the next process may open the file only when this one's threads are through with it.
    _lock: FileLock,
}

/// What the threads are asked for.
#[derive(Clone)]
pub(crate) struct Queues {
    pub writes: Arc<Queue<Job>>,
    pub loads: Arc<Queue<Load>>,
    pub listings: Arc<Queue<Listing>>,
}

impl Threads {
    pub(crate) fn start(path: &Arc<PathBuf>, options: &Options) -> Result<Self, OpenError> {
        let lock = FileLock::acquire(path)?;
        let mut connection = schema::open_writer(path, options)?;
        let Prepared { journal, version, wal } = prepare(&mut connection, path, options)?;
        let locked = Arc::new(LockedFile { _file: lock::open(path)?, _lock: lock });
        let memtables = Arc::new(Memtables::new(journal.generation()));
        let (over, ended) = watch::channel(false);
        let queues = Queues {
            writes: Arc::new(Queue::new(options.queue_weight())),
            loads: Arc::new(Queue::new(Weight { rows: options.queue_limit, bytes: 0 })),
            listings: Arc::new(Queue::new(LISTINGS_WAITING)),
        };
        let counters = Arc::new(Counters::default());
        let end = OnWriterEnd { queues: queues.clone(), over };
        // Dropped, and so joined, whichever way the writer ends: a helper that outlived the lock could close the
        // database's file under the locks of the next store.
        let mut helpers = Helpers {
            queues: queues.clone(),
            memtables: memtables.clone(),
            readers: Vec::new(),
            flusher: None,
        };
        helpers.start_readers(path, options)?;
        helpers.start_flusher(path, options, connection, wal)?;
        let reader = schema::open_reader(path, options)?;
        let writer = Writer {
            path: path.to_path_buf(),
            queue: queues.writes.clone(),
            limit: options.batch_weight(),
            journal,
            memtables: memtables.clone(),
            journal_bytes: options.journal_bytes as u64,
            flush_after: options.fold_after,
            version,
            clock: options.clock.clone(),
            on_fatal: options.on_fatal.clone(),
            counters: counters.clone(),
        };
        let kept = locked.clone();
        let writer = spawn(path, "write", move || {
            let _locked = kept;
            // Dropped when everything is over, by a panic too: nobody may wait for a thread that has ended.
            let _end = end;
            writer.run(&reader, || helpers.end());
        })?;
        let writer = Mutex::new(Some(writer));
        Ok(Self { queues, memtables, counters, writer, ended, _locked: locked })
    }

    /// Waits until the threads have ended.
    pub(crate) async fn ended(&self) {
        // An error says that the sender is gone, and it is gone with the writer.
        drop(self.ended.clone().wait_for(|ended| *ended).await);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queues.close();
        if let Some(writer) = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // Whoever drops the last handle on a thread of the store, in a hook say, cannot wait for itself.
            if !OWN_THREAD.get() {
                join(writer);
            }
        }
    }
}

/// What there is before the threads start.
struct Prepared {
    journal: Journal,
    version: u64,
    wal: WalLength,
}

/// Brings the database up to date with what an earlier process left in the journal, and begins the journal anew.
fn prepare(connection: &mut Connection, path: &Path, options: &Options) -> Result<Prepared, OpenError> {
    let failed = |error: rusqlite::Error| OpenError::failed(path, &error);
    let meta = schema::journal_meta(connection).map_err(failed)?;
    let recovered = journal::read(path, &meta)?;
    let wal = WalLength::default();
    wal.watch(connection).map_err(failed)?;
    let highest = recovered.changes.values().map(|change| change.version.as_number()).max();
    // A store whose tables are damaged is refused here, and not by a thread that ends at once.
    let mut flusher =
        Flusher::prepare(connection, path, wal.clone(), options.checkpoint_pages).map_err(failed)?;
    drop(Batch::prepare(connection, path.to_owned(), 0).map_err(failed)?);
    if recovered.generation > meta.flushed {
        tracing::info!(
            operations = recovered.changes.len(),
            ?path,
            "the last run ended without writing its journal into the database: that is done now"
        );
        flusher.flush(&Memtable::of(recovered.generation, recovered.changes)).map_err(failed)?;
    }
    drop(flusher);
    // The last opening began at most two generations that the database did not hold. Both are over, whether something of
    // them was kept or they were cut off at once, and neither number is given again.
    let flushed = recovered.generation.max(meta.flushed.saturating_add(2));
    let opening = Opening::new(meta.opening.as_ref())
        .map_err(|error| OpenError::Failed { path: path.to_owned(), reason: error.to_string() })?;
    let seal = opening.seal(meta.identity);
    let journal = Journal::open(path, seal, flushed.saturating_add(1)).map_err(|error| OpenError::Path {
        path: path.to_owned(),
        problem: format!("its journal beside it: {error}"),
        advice: "give this user the right to write in its directory",
    })?;
    schema::mark_journal_open(connection, &opening, flushed).map_err(failed)?;
    Ok(Prepared { journal, version: meta.version.max(highest.unwrap_or(0)), wal })
}

/// The other threads.
struct Helpers {
    queues: Queues,
    memtables: Arc<Memtables>,
    readers: Vec<JoinHandle<()>>,
    flusher: Option<JoinHandle<FlushEnd>>,
}

impl Helpers {
    fn start_readers(&mut self, path: &Arc<PathBuf>, options: &Options) -> Result<(), OpenError> {
        let connection = schema::open_reader(path, options)?;
        let (file, all) = (path.clone(), self.queues.clone());
        self.readers.push(spawn(path, "scan", move || {
            let _panic = OnPanic(all.clone());
            scan::run(&connection, &file, &all.listings);
        })?);
        for _ in 0..options.readers {
            let connection = schema::open_reader(path, options)?;
            let (file, all) = (path.clone(), self.queues.clone());
            self.readers.push(spawn(path, "load", move || {
                let _panic = OnPanic(all.clone());
                if let Err(error) = reader::run(&connection, &file, &all.loads) {
                    all.abandon(&error::explain(&error, &file));
                }
            })?);
        }
        Ok(())
    }

    fn start_flusher(
        &mut self,
        path: &Arc<PathBuf>,
        options: &Options,
        connection: Connection,
        wal: WalLength,
    ) -> Result<(), OpenError> {
        let (file, all, memtables) = (path.clone(), self.queues.clone(), self.memtables.clone());
        let (on_fatal, checkpoint_pages) = (options.on_fatal.clone(), options.checkpoint_pages);
        self.flusher = Some(spawn(path, "flush", move || {
            let _panic = OnPanic(all.clone());
            let _ended = OnFlusherEnd(memtables.clone());
            let next = || all.writes.nudge();
            let ended = Flusher::prepare(&connection, &file, wal, checkpoint_pages)
                .and_then(|mut flusher| flusher.run(&memtables, next));
            ended.unwrap_or_else(|error| {
                let message = error::fatal(&error, &file);
                // Who waits for room is not kept waiting for the hook.
                memtables.flusher_ended(&StoreError::Unavailable { reason: message.clone() });
                on_fatal(&message);
                tracing::error!(
                    cause = message,
                    "the embedded store has stopped: it refuses everything until it is opened again"
                );
                all.abandon(&message);
                FlushEnd::Partial
            })
        })?);
        Ok(())
    }

    /// Lets them do what waits, and tells whether everything is in the database now.
    fn end(mut self) -> FlushEnd {
        self.end_readers();
        self.memtables.close();
        self.flusher.take().and_then(join).unwrap_or(FlushEnd::Partial)
    }

    /// A reader could keep SQLite's log from being moved, so they end first.
    fn end_readers(&mut self) {
        self.queues.close();
        self.readers.drain(..).for_each(|reader| {
            join(reader);
        });
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.end_readers();
        self.memtables.abandon();
        self.flusher.take().and_then(join);
    }
}

/// Lets nobody wait for the database any more.
struct OnFlusherEnd(Arc<Memtables>);

impl Drop for OnFlusherEnd {
    fn drop(&mut self) {
        self.0.flusher_ended(&StoreError::Unavailable { reason: THREAD_ENDED.to_owned() });
    }
}

thread_local! {
    /// Whether this is a thread of a store.
    static OWN_THREAD: Cell<bool> = const { Cell::new(false) };
}

fn spawn<T: Send + 'static>(
    path: &Arc<PathBuf>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, OpenError> {
    let work = move || {
        OWN_THREAD.set(true);
        work()
    };
    std::thread::Builder::new().name(format!("onceward-{name}")).spawn(work).map_err(|error| {
        OpenError::Failed { path: path.to_path_buf(), reason: format!("no thread could be started: {error}") }
    })
}

fn join<T>(thread: JoinHandle<T>) -> Option<T> {
    let name = thread.thread().name().unwrap_or("onceward").to_owned();
    let ended = thread.join().ok();
    if ended.is_none() {
        tracing::error!(
            thread = name,
            "a thread of the embedded store panicked, which is a bug: please report it"
        );
    }
    ended
}

impl Queues {
    /// Accepts nothing more. What waits is still done.
    pub(crate) fn close(&self) {
        const CLOSED: &str = "the store has been closed";
        self.writes.close(CLOSED);
        self.loads.close(CLOSED);
        self.listings.close(CLOSED);
    }

    /// Accepts nothing more, and tells everybody who waits that nothing was done.
    pub(crate) fn abandon(&self, reason: &str) {
        let error = StoreError::Unavailable { reason: reason.to_owned() };
        self.writes.abandon(reason).into_iter().for_each(|job| job.fail(error.clone()));
        self.loads.abandon(reason).into_iter().for_each(|load| load.answer.send(Err(error.clone())));
        self.listings.abandon(reason).into_iter().for_each(|list| list.answer.send(Err(error.clone())));
    }
}

const THREAD_ENDED: &str =
    "a thread of the store has ended: restart the process, and look into its log for the cause";

/// Ends the whole store when a helper panics: nobody may wait for a thread that has ended.
struct OnPanic(Queues);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abandon(THREAD_ENDED);
        }
    }
}

/// What happens when the writer has ended, however it did.
struct OnWriterEnd {
    queues: Queues,
    over: watch::Sender<bool>,
}

impl Drop for OnWriterEnd {
    fn drop(&mut self) {
        self.queues.abandon(THREAD_ENDED);
        self.over.send_replace(true);
    }
}
