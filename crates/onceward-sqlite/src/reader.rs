//! The threads that serve `load`. They do not wait for the writer.

use std::path::Path;

use onceward::RecordId;
use onceward::store::driver::{AnswerSender, RawRecord, Weight};
use rusqlite::{Connection, Statement};

use crate::error::{explain, unavailable};
use crate::queue::{Queue, Weigh};
use crate::rows::{SELECT, stored};

/// A load in the readers' queue.
pub(crate) struct Load {
    pub id: RecordId,
    pub answer: AnswerSender<Option<RawRecord>>,
}

impl Weigh for Load {
    fn weight(&self) -> Weight {
        Weight { rows: 1, bytes: 0 }
    }
}

/// The most loads in one read transaction, which costs more than a small read. A larger group would delay the first answer
/// for the last read.
const AT_ONCE: Weight = Weight { rows: 32, bytes: 0 };

/// Serves loads until the queue is closed and empty. A group's transaction begins after its last load was queued, so each
/// load sees every write that was acknowledged before it.
pub(crate) fn run(connection: &Connection, path: &Path, queue: &Queue<Load>) -> rusqlite::Result<()> {
    let mut select = connection.prepare(SELECT)?;
    let mut begin = connection.prepare("BEGIN")?;
    let mut end = connection.prepare("ROLLBACK")?;
    let mut loads = Vec::new();
    while queue.take(AT_ONCE, &mut loads) {
        // The loads are then read without a transaction, which is slower.
        if loads.len() > 1
            && let Err(error) = begin.execute([])
        {
            tracing::warn!(
                cause = explain(&error, path),
                "reads could not share one transaction: each runs on its own, more slowly"
            );
        }
        loads.drain(..).for_each(|load| serve(load, &mut select, path));
        if !connection.is_autocommit() {
            // A transaction that stays open would show old data to every later load.
            end.execute([])?;
        }
    }
    Ok(())
}

fn serve(load: Load, select: &mut Statement<'_>, path: &Path) {
    let found = stored(select, load.id).map_err(|error| unavailable(&error, path));
    load.answer.send(found);
}
