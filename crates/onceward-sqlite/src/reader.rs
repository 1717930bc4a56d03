//! The threads that serve `load`, beside the writer and never behind it.

use std::path::Path;

use onceward::RecordId;
use onceward::store::driver::{AnswerSender, RawRecord, Weight};
use rusqlite::{Connection, Statement};

use crate::error::{explain, unavailable};
use crate::queue::{Queue, Weigh};
use crate::rows::{SELECT, stored};

/// A load that waits for a reader.
pub(crate) struct Load {
    pub id: RecordId,
    pub answer: AnswerSender<Option<RawRecord>>,
}

impl Weigh for Load {
    fn weight(&self) -> Weight {
        Weight { rows: 1, bytes: 0 }
    }
}

/// So many loads share one look at the file, which is what a small one costs most. More would hold the first one's
/// answer back for the last.
const AT_ONCE: Weight = Weight { rows: 32, bytes: 0 };

/// Works until the queue is closed and empty. A group is read as of a moment after its last load was asked for, so a
/// load sees everything that was acknowledged before.
pub(crate) fn run(connection: &Connection, path: &Path, queue: &Queue<Load>) -> rusqlite::Result<()> {
    let mut select = connection.prepare(SELECT)?;
    let mut begin = connection.prepare("BEGIN")?;
    let mut end = connection.prepare("ROLLBACK")?;
    let mut loads = Vec::new();
    while queue.take(AT_ONCE, &mut loads) {
        // One by one they are read as well, only not as fast.
        if loads.len() > 1
            && let Err(error) = begin.execute([])
        {
            tracing::warn!(
                cause = explain(&error, path),
                "reads could not share one transaction: each is done alone, and more slowly"
            );
        }
        loads.drain(..).for_each(|load| serve(load, &mut select, path));
        if !connection.is_autocommit() {
            // Going on would read the past for ever.
            end.execute([])?;
        }
    }
    Ok(())
}

fn serve(load: Load, select: &mut Statement<'_>, path: &Path) {
    let found = stored(select, load.id).map_err(|error| unavailable(&error, path));
    load.answer.send(found);
}
