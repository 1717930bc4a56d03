//! Moves the write-ahead log into the database without making a claim wait for it.
//!
//! SQLite begins the log anew only when all of it has been moved and nobody writes meanwhile, which under load never
//! happens by itself: while one part is moved, the next is written. And it syncs the database only then, so that the
//! sync of everything would fall on whoever moves the last page. Therefore a thread moves the log beside the writer, part
//! by part, and syncs the database after each. When the log is long and little of it is left to move, the writer moves
//! that little between two batches, and its next commit begins the log anew.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, ErrorCode, MAIN_DB};

use crate::error::{self, Concerns};

/// So many pages the writer moves itself: few enough for some ten milliseconds, most of which are the sync.
const FINISH_PAGES: u32 = 512;
/// So much longer the log may become before it is looked at again, so that looking costs nothing.
const LOOK_PAGES: u32 = 128;
/// The log is moved in so many parts. Smaller ones sync too often, and larger ones take the disk from the writer for too
/// long: with 64 callers one swap in a thousand took 20 ms or more in parts of this order, and 33 ms in one piece.
const PARTS: u32 = 8;
/// A log that is so many times too long grows faster than it can be moved: then the writer has to wait.
const TOO_LONG: u32 = 4;

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
    pub length: LogLength,
    /// Asks the thread to move what there is.
    pub ask: SyncSender<()>,
    /// Held by the thread while it does.
    pub moving: Arc<Mutex<()>>,
    /// How long the log should become.
    pub from_pages: u32,
    /// How long it was after the last batch.
    pub seen: u32,
    /// It is not looked at before it is this long.
    pub look_at: u32,
}

impl Tender {
    fn part(&self) -> u32 {
        self.from_pages.div_ceil(PARTS)
    }

    /// Called after every batch.
    pub(crate) fn tend(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let pages = self.length.pages();
        if pages < self.seen {
            // It has begun anew.
            self.look_at = self.part();
        }
        self.seen = pages;
        if pages < self.look_at {
            return Ok(());
        }
        let log = Log::after(connection, CheckpointMode::NOOP)?;
        let finish = pages >= self.from_pages && log.left() <= FINISH_PAGES;
        let wait = pages >= self.from_pages.saturating_mul(TOO_LONG);
        if finish || wait {
            // Nothing is guarded but the turn.
            let turn = wait.then(|| self.moving.lock().unwrap_or_else(PoisonError::into_inner));
            Log::after(connection, CheckpointMode::PASSIVE)?;
            drop(turn);
            // The next commit begins the log anew, unless a reader still needs it: then this is not repeated at once.
            self.look_at = pages.saturating_add(self.from_pages / 4);
            return Ok(());
        }
        if log.left() >= self.part() || pages >= self.from_pages {
            match self.ask.try_send(()) {
                // One message is enough: whoever is at work looks at the whole log.
                Ok(()) | Err(TrySendError::Full(())) => {}
                Err(TrySendError::Disconnected(())) => {
                    tracing::error!("the thread that moves the log has ended: the log grows");
                }
            }
        }
        self.look_at = pages.saturating_add(LOOK_PAGES.min(self.part()));
        Ok(())
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

/// The thread that moves the log.
pub(crate) struct Mover {
    pub connection: Connection,
    /// The database, to sync. Closed after every connection: closing it gives up the locks of all of them.
    pub file: Arc<File>,
    pub asked: Receiver<()>,
    pub moving: Arc<Mutex<()>>,
}

impl Mover {
    /// Moves what there is whenever it is asked, until nobody can ask any more. Answers what a failed sync said.
    pub(crate) fn run(self, path: &Path) -> Result<(), String> {
        while self.asked.recv().is_ok() {
            let _turn = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
            match Log::after(&self.connection, CheckpointMode::PASSIVE) {
                Ok(log) => tracing::debug!(pages = log.pages, moved = log.moved, "moved the log"),
                Err(error) if error::concerns(&error) == Concerns::Process => return Err(error.to_string()),
                // The log keeps what could not be moved, and nothing is lost: the next time may do better.
                Err(error) => {
                    tracing::warn!(reason = error::explain(&error, path), "the log could not be moved");
                }
            }
            self.file.sync_data().map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
