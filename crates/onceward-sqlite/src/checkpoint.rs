//! Moves the write-ahead log into the database without making a claim wait for it.
//!
//! SQLite begins the log anew only when all of it has been moved and nobody writes meanwhile, which under load never
//! happens by itself: while one part is moved, the next is written. So most of it is moved in the background, beside the
//! writer, again and again until little is left; that little the writer moves itself, between two batches, and its next
//! commit begins the log anew.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};

use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, ErrorCode, MAIN_DB};

use crate::error::{self, Concerns};

/// So many pages the writer moves itself: few enough for some ten milliseconds, most of which are the sync.
const FINISH_PAGES: u32 = 512;
/// So much longer the log may become before it is looked at again, so that looking costs nothing.
const LOOK_PAGES: u32 = 128;

/// How long the log is, as the writer's connection was told by its last commit.
#[derive(Clone, Default)]
pub(crate) struct LogLength(Arc<AtomicU32>);

impl LogLength {
    pub(crate) fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let length = self.0.clone();
        connection.wal_hook(Some(move |_: &mut Wal, pages: i32| {
            length.store(pages.unsigned_abs(), Ordering::Relaxed);
            Ok(())
        }))
    }

    fn pages(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The writer's side: looks at the log between two batches.
pub(crate) struct Tender {
    length: LogLength,
    background: SyncSender<()>,
    from_pages: u32,
    /// Not before the log is this long.
    look_at: u32,
    seen: u32,
}

/// What one look at the log came to.
enum Look {
    /// It was moved, all that was left.
    Finished,
    /// The background thread has been asked.
    Asked,
}

impl Tender {
    pub(crate) fn new(length: LogLength, background: SyncSender<()>, from_pages: u32) -> Self {
        Self { length, background, from_pages, look_at: from_pages, seen: 0 }
    }

    /// Called after every batch.
    pub(crate) fn tend(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let pages = self.length.pages();
        if pages < self.seen {
            self.look_at = self.from_pages;
        }
        self.seen = pages;
        if pages < self.look_at {
            return Ok(());
        }
        self.look_at = match self.look(connection)? {
            // The next commit begins the log anew, unless a reader still needs it: then this is not repeated at once.
            Look::Finished => pages.saturating_add(self.from_pages / 4),
            Look::Asked => pages.saturating_add(LOOK_PAGES),
        };
        Ok(())
    }

    fn look(&self, connection: &Connection) -> rusqlite::Result<Look> {
        let log = Log::after(connection, CheckpointMode::NOOP)?;
        if log.left() <= FINISH_PAGES {
            Log::after(connection, CheckpointMode::PASSIVE)?;
            return Ok(Look::Finished);
        }
        match self.background.try_send(()) {
            // One message is enough: whoever is at work looks at the whole log.
            Ok(()) | Err(TrySendError::Full(())) => {}
            Err(TrySendError::Disconnected(())) => {
                tracing::error!("the checkpointing thread has ended: the log grows")
            }
        }
        Ok(Look::Asked)
    }
}

/// How much of the log has been moved.
struct Log {
    pages: u32,
    moved: u32,
}

impl Log {
    fn after(connection: &Connection, mode: CheckpointMode) -> rusqlite::Result<Self> {
        match connection.wal_checkpoint_v2(Some(MAIN_DB), mode) {
            Ok((pages, moved)) => {
                Ok(Self { pages: pages.max(0).unsigned_abs(), moved: moved.max(0).unsigned_abs() })
            }
            // Somebody else is at it.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                Ok(Self { pages: u32::MAX, moved: 0 })
            }
            Err(error) => Err(error),
        }
    }

    fn left(&self) -> u32 {
        self.pages.saturating_sub(self.moved)
    }
}

/// The background thread: moves what there is whenever it is asked, until nobody can ask any more.
pub(crate) fn run(
    connection: &Connection,
    asked: &Receiver<()>,
    path: &Path,
    stop: impl FnOnce(&rusqlite::Error),
) {
    while asked.recv().is_ok() {
        match Log::after(connection, CheckpointMode::PASSIVE) {
            Ok(log) => tracing::debug!(pages = log.pages, moved = log.moved, "moved the log"),
            Err(error) if error::concerns(&error) == Concerns::Process => return stop(&error),
            // The log keeps what could not be moved, and nothing is lost: the next time may do better.
            Err(error) => {
                tracing::warn!(
                    reason = error::explain(&error, path),
                    "the log could not be moved into the database"
                );
            }
        }
    }
}
