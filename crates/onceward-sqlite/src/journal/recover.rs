//! Recovery: reads both files of the journal, and checks that they continue each other and the database.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::changes::Change;
use super::segment::{Format, Generation, Segment, SegmentError};
use crate::OpenError;
use crate::memtable::ById;
use crate::schema::JournalMeta;

/// The changes that must be flushed into the database before the store is used.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub changes: ById<Change>,
    /// The newest generation that the journal or the database has.
    pub generation: u64,
}

/// Refuses a journal beside a database that cannot have one yet.
pub(crate) fn refuse_any(store: &Path) -> Result<(), OpenError> {
    let is_there = |path: &PathBuf| path.metadata().is_ok_and(|found| found.len() > 0);
    match super::paths(store).into_iter().find(is_there) {
        None => Ok(()),
        Some(path) => Err(OpenError::Journal { path, problem: OTHER_DATABASE.to_owned() }),
    }
}

/// Also used for a file beside a database that never had a journal.
const OTHER_DATABASE: &str = "belongs to another database, and may hold acknowledged answers that are stored nowhere else: move \
    it back to that database. This database needs its own journal: a store that continues with empty files in its place \
    forgets the last acknowledged operations, and executes again those that are retried";

/// Reads the generations that the database does not hold.
pub(crate) fn read(store: &Path, meta: &JournalMeta) -> Result<Recovered, OpenError> {
    let format = match &meta.opening {
        None => Format::First { identity: meta.identity },
        Some(opening) => Format::Second(opening.seal(meta.identity)),
    };
    let mut generations = Vec::new();
    for (number, path) in (0..).zip(super::paths(store)) {
        let found = match File::open(&path) {
            Ok(file) => file.metadata().map_err(SegmentError::Read).and_then(|found| {
                Segment { length: found.len(), source: file, number }.read(&format, meta.flushed)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && meta.in_use => {
                return Err(OpenError::Journal { path, problem: MISSING.to_owned() });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => Err(SegmentError::Read(error)),
        };
        match found {
            Ok(found) => generations.extend(found.map(|found| (path, found))),
            Err(error) => {
                return Err(OpenError::Journal { path, problem: explain(&error, meta.flushed) });
            }
        }
    }
    join(generations, meta.flushed)
}

const MISSING: &str = "is missing, and the store was not closed: it held the last writes. Put it back; or, to continue \
    without them, and execute again the operations that are retried, make an empty file in its place";

/// Joins the generations. The first one must follow the database, and the second one the first.
fn join(mut generations: Vec<(PathBuf, Generation)>, flushed: u64) -> Result<Recovered, OpenError> {
    generations.sort_by_key(|(_, found)| found.generation);
    let mut recovered = Recovered { changes: ById::default(), generation: flushed };
    let mut before: Option<(PathBuf, u64, u64)> = None;
    for (path, found) in generations {
        let Generation { generation, first, next, end, changes } = found;
        if generation != recovered.generation.saturating_add(1) {
            let problem = explain(&SegmentError::Ahead { generation }, recovered.generation);
            return Err(OpenError::Journal { path, problem });
        }
        if let Some((path, _, at)) = before.filter(|(_, next, _)| *next != first) {
            return Err(OpenError::Journal {
                path,
                problem: explain(&SegmentError::Damaged { at }, flushed),
            });
        }
        recovered.generation = generation;
        recovered.changes.extend(changes);
        before = Some((path, next, end));
    }
    Ok(recovered)
}

/// The text for a file that cannot be used, with what to do. Advice that loses acknowledged data says so.
fn explain(error: &SegmentError, flushed: u64) -> String {
    match error {
        SegmentError::Read(error) => format!("could not be read ({error})"),
        SegmentError::OtherDatabase => OTHER_DATABASE.to_owned(),
        SegmentError::OtherFile => {
            "has the name of the journal's other file: exchange the names of the two files".to_owned()
        }
        SegmentError::OtherKey => format!(
            "was written with a key that the database does not have: the database was restored from a backup that is \
             older than the journal. {TOGETHER}"
        ),
        SegmentError::Ahead { generation } => format!(
            "continues with generation {generation}, and the database ends with generation {flushed}: one of them was \
             restored from a backup, or a file of the journal was emptied or damaged. {TOGETHER}"
        ),
        SegmentError::Damaged { at } => format!(
            "is damaged: the frame at byte {at} cannot be read, and a later frame proves that it was confirmed. The disk \
             has changed data that it had confirmed: check the disk, and keep these files, because that frame may hold \
             acknowledged answers that are stored nowhere else. An older copy of the database and its journal lacks \
             everything that was acknowledged since, and executes again the operations that are retried"
        ),
        SegmentError::OtherVersion { sequence } => {
            format!("was written by another version of Onceward (frame {sequence}): run that version")
        }
    }
}

const TOGETHER: &str = "Restore a database and its own journal; or, to continue without what only the journal holds, and \
    execute again the operations that are retried, empty both files of the journal";
