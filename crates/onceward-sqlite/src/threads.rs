//! The threads of a store: one writes, one moves the log, one lists, some load. And how they end.
//!
//! The writer is the last to end: it closes the queues of the others, joins them, and only then moves the rest of the
//! log, because a reader could keep it from doing so.

use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use onceward::store::StoreError;
use tokio::sync::watch;

use crate::batch::Batch;
use crate::checkpoint::{LogLength, Mover, Tender};
use crate::job::Job;
use crate::lock::{self, FileLock};
use crate::queue::{Queue, Weight};
use crate::reader::{self, Load};
use crate::scan::{self, Listing};
use crate::statistics::Counters;
use crate::writer::Writer;
use crate::{OpenError, Options, error, schema};

/// So many lists may wait. They are an operator's or a sweeper's, of which there are few.
const LISTINGS_WAITING: Weight = Weight { rows: 64, bytes: 0 };

/// What the tasks that use a store hold of its threads.
pub(crate) struct Threads {
    pub queues: Queues,
    pub counters: Arc<Counters>,
    writer: Mutex<Option<JoinHandle<()>>>,
    ended: watch::Receiver<bool>,
    // Both are given up after the writer has ended. Closing the database's file gives up every lock that this process has
    // on it.
    _file: Arc<File>,
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
        let length = LogLength::default();
        length.watch(&mut connection).map_err(|error| OpenError::failed(path, &error))?;
        // A store whose tables are damaged is refused here, and not by a writer that ends at once.
        drop(Batch::prepare(&connection, path).map_err(|error| OpenError::failed(path, &error))?);
        let file = Arc::new(lock::open(path)?);
        let (ask, asked) = sync_channel(1);
        let moving = Arc::new(Mutex::new(()));
        let (over, ended) = watch::channel(false);
        let queues = Queues {
            writes: Arc::new(Queue::new(options.queue_weight())),
            loads: Arc::new(Queue::new(Weight { rows: options.queue_limit, bytes: 0 })),
            listings: Arc::new(Queue::new(LISTINGS_WAITING)),
        };
        let counters = Arc::new(Counters::default());
        let end = End { queues: queues.clone(), over };
        let mover = Mover {
            connection: schema::open_reader(path, options)?,
            file: file.clone(),
            asked,
            moving: moving.clone(),
        };
        let helpers = start_helpers(path, options, &queues, mover).inspect_err(|_| queues.close())?;
        let writer = Writer {
            connection,
            path: path.to_path_buf(),
            queue: queues.writes.clone(),
            batch: options.batch_weight(),
            clock: options.clock.clone(),
            on_fatal: options.on_fatal.clone(),
            tender: Tender { length, ask, moving, from_pages: options.checkpoint_pages, seen: 0, look_at: 0 },
            counters: counters.clone(),
        };
        let last = queues.clone();
        let writer = spawn(path, "write", move || {
            // Dropped when everything is over, by a panic too: nobody may wait for a thread that has ended.
            let _end = end;
            // Dropped, and so joined, whichever way the writer ends: a helper that outlived the lock could close the
            // database's file under the locks of the next store.
            let helpers = Helpers { queues: last, threads: helpers };
            writer.run(|| drop(helpers));
        })?;
        Ok(Self { queues, counters, writer: Mutex::new(Some(writer)), ended, _file: file, _lock: lock })
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
            // Whoever drops the last handle on the writer's own thread, in a hook say, cannot wait for itself.
            if writer.thread().id() != std::thread::current().id() {
                join(writer);
            }
        }
    }
}

/// The other threads, ended and joined when dropped.
struct Helpers {
    queues: Queues,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.queues.close();
        self.threads.drain(..).for_each(join);
    }
}

fn start_helpers(
    path: &Arc<PathBuf>,
    options: &Options,
    queues: &Queues,
    mover: Mover,
) -> Result<Vec<JoinHandle<()>>, OpenError> {
    let mut helpers = Vec::with_capacity(options.readers + 2);
    let (file, on_fatal, all) = (path.clone(), options.on_fatal.clone(), queues.clone());
    helpers.push(spawn(path, "checkpoint", move || {
        let _panic = Panic(all.clone());
        if let Err(error) = mover.run(&file) {
            let message = error::fatal(&error, &file);
            on_fatal(&message);
            all.abandon(&message);
        }
    })?);
    let connection = schema::open_reader(path, options)?;
    let (file, all) = (path.clone(), queues.clone());
    helpers.push(spawn(path, "scan", move || {
        let _panic = Panic(all.clone());
        scan::run(&connection, &file, &all.listings);
    })?);
    for _ in 0..options.readers {
        let connection = schema::open_reader(path, options)?;
        let (file, all) = (path.clone(), queues.clone());
        helpers.push(spawn(path, "load", move || {
            let _panic = Panic(all.clone());
            if let Err(error) = reader::run(&connection, &file, &all.loads) {
                all.abandon(&error::explain(&error, &file));
            }
        })?);
    }
    Ok(helpers)
}

fn spawn(
    path: &Arc<PathBuf>,
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, OpenError> {
    std::thread::Builder::new().name(format!("onceward-{name}")).spawn(work).map_err(|error| {
        OpenError::Failed { path: path.to_path_buf(), reason: format!("no thread could be started: {error}") }
    })
}

fn join(thread: JoinHandle<()>) {
    let name = thread.thread().name().unwrap_or("onceward").to_owned();
    if thread.join().is_err() {
        tracing::error!(name, "a thread of the store ended in a panic");
    }
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
        // A caller that has gone away no longer wants its answer.
        self.loads.abandon(reason).into_iter().for_each(|load| drop(load.answer.send(Err(error.clone()))));
        self.listings.abandon(reason).into_iter().for_each(|list| drop(list.answer.send(Err(error.clone()))));
    }
}

const THREAD_ENDED: &str =
    "a thread of the store has ended: restart the process, and look into its log for the cause";

/// Ends the whole store when a helper panics: nobody may wait for a thread that has ended.
struct Panic(Queues);

impl Drop for Panic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abandon(THREAD_ENDED);
        }
    }
}

/// What happens when the writer has ended, however it did.
struct End {
    queues: Queues,
    over: watch::Sender<bool>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.queues.abandon(THREAD_ENDED);
        self.over.send_replace(true);
    }
}
