//! The threads of a store: the writer, the flusher, one for scans and some for loads. Also how they start and end.
//!
//! The writer ends last: it waits for the readers, then for the flusher, and removes the journal if everything is in the
//! database.

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

/// The most scans in the queue. They come from operators and sweepers, so few are expected.
const LISTINGS_WAITING: Weight = Weight { rows: 64, bytes: 0 };

/// The handle through which tasks use the threads.
pub(crate) struct Threads {
    pub queues: Queues,
    pub memtables: Arc<Memtables>,
    pub counters: Arc<Counters>,
    writer: Mutex<Option<JoinHandle<()>>>,
    ended: watch::Receiver<bool>,
    _locked: Arc<LockedFile>,
}

/// Released after the last handle was dropped and the writer has ended, whichever is later.
struct LockedFile {
    // Closing any handle of the database file releases all of this process's locks on it.
    _file: File,
    // Released last: the next process may open the file only when all threads of this one have ended.
    _lock: FileLock,
}

/// The queues of the threads.
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
        // Dropped, and so joined, however the writer ends: a thread that outlived the lock could close the database file,
        // and release the locks of the next store.
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
            // Dropped last, also by a panic, so that no caller waits for a thread that has ended.
            let _end = end;
            writer.run(&reader, || helpers.end());
        })?;
        let writer = Mutex::new(Some(writer));
        Ok(Self { queues, memtables, counters, writer, ended, _locked: locked })
    }

    /// Waits until the threads have ended.
    pub(crate) async fn ended(&self) {
        // An error means that the sender was dropped, which happens when the writer ends.
        drop(self.ended.clone().wait_for(|ended| *ended).await);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queues.close();
        if let Some(writer) = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // A thread of the store that drops the last handle, in the fatal hook for instance, cannot join itself.
            if !OWN_THREAD.get() {
                join(writer);
            }
        }
    }
}

/// What is prepared before the threads start.
struct Prepared {
    journal: Journal,
    version: u64,
    wal: WalLength,
}

/// Flushes the journal of the previous process into the database, and begins a new one.
fn prepare(connection: &mut Connection, path: &Path, options: &Options) -> Result<Prepared, OpenError> {
    let failed = |error: rusqlite::Error| OpenError::failed(path, &error);
    let meta = schema::journal_meta(connection).map_err(failed)?;
    let recovered = journal::read(path, &meta)?;
    let wal = WalLength::default();
    wal.watch(connection).map_err(failed)?;
    let highest = recovered.changes.values().map(|change| change.version.as_number()).max();
    // Damaged tables are reported here, and not by a thread that ends at once.
    let mut flusher =
        Flusher::prepare(connection, path, wal.clone(), options.checkpoint_pages).map_err(failed)?;
    drop(Batch::prepare(connection, path.to_owned(), 0).map_err(failed)?);
    if recovered.generation > meta.flushed {
        tracing::info!(
            operations = recovered.changes.len(),
            ?path,
            "the last run ended before its journal was written into the database: it is written now"
        );
        flusher.flush(&Memtable::of(recovered.generation, recovered.changes)).map_err(failed)?;
    }
    drop(flusher);
    // The previous opening used at most two generations that the database does not hold. Both are skipped, even if nothing
    // of them reached the disk, so that no generation is used twice.
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

/// All threads but the writer.
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
                // Waiting writers are answered before the hook runs, which may block.
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

    /// Ends the threads after their queued work. Returns whether everything is in the database.
    fn end(mut self) -> FlushEnd {
        self.end_readers();
        self.memtables.close();
        self.flusher.take().and_then(join).unwrap_or(FlushEnd::Partial)
    }

    /// Readers end first, because an open read transaction keeps SQLite's log from being checkpointed.
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

/// Answers every call that waits for a flush when the flusher ends.
struct OnFlusherEnd(Arc<Memtables>);

impl Drop for OnFlusherEnd {
    fn drop(&mut self) {
        self.0.flusher_ended(&StoreError::Unavailable { reason: THREAD_ENDED.to_owned() });
    }
}

thread_local! {
    /// Whether the current thread belongs to a store.
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
    /// Refuses new calls. Queued calls are still served.
    pub(crate) fn close(&self) {
        const CLOSED: &str = "the store has been closed";
        self.writes.close(CLOSED);
        self.loads.close(CLOSED);
        self.listings.close(CLOSED);
    }

    /// Refuses new calls, and answers the queued ones that nothing was done.
    pub(crate) fn abandon(&self, reason: &str) {
        let error = StoreError::Unavailable { reason: reason.to_owned() };
        self.writes.abandon(reason).into_iter().for_each(|job| job.fail(error.clone()));
        self.loads.abandon(reason).into_iter().for_each(|load| load.answer.send(Err(error.clone())));
        self.listings.abandon(reason).into_iter().for_each(|list| list.answer.send(Err(error.clone())));
    }
}

const THREAD_ENDED: &str =
    "a thread of the store has ended: restart the process, and find the cause in its log";

/// Abandons all queues if its thread panics, so that no caller waits for a thread that has ended.
struct OnPanic(Queues);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abandon(THREAD_ENDED);
        }
    }
}

/// Abandons all queues when the writer has ended, for whatever reason.
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
