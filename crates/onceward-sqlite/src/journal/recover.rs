//! What an earlier process recovered in the journal: both files, joined with each other and with the database.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::changes::Change;
use super::segment::{Format, Generation, Segment, SegmentError};
use crate::OpenError;
use crate::memtable::ById;
use crate::schema::JournalMeta;

/// What is to be folded into the database before anything is answered.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub changes: ById<Change>,
    /// The newest generation of which there is a frame, or which the database holds already.
    pub generation: u64,
}

/// Makes sure that there is no journal: the database beside it cannot have one yet.
pub(crate) fn refuse_any(store: &Path) -> Result<(), OpenError> {
    let is_there = |path: &PathBuf| path.metadata().is_ok_and(|found| found.len() > 0);
    match super::paths(store).into_iter().find(is_there) {
        None => Ok(()),
        Some(path) => Err(OpenError::Journal { path, problem: OTHER_DATABASE.to_owned() }),
    }
}

/// Also of a file beside a database that has never had a journal.
const OTHER_DATABASE: &str = "belongs to another database, and may hold acknowledged answers that are nowhere else: put it \
    back beside that database. This database needs a journal of its own: a store that goes on without it, with empty \
    files in its place, forgets what was acknowledged last, and executes again what is retried of it";

/// Reads the journal of a database, from where the database ends.
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

const MISSING: &str = "is missing, and the store was not closed: it held what was written last. Put it back; or, to go on \
    without that, and execute again what is retried of it, make an empty file in its place";

/// Puts the generations together. The first one goes on where the database ends, and each where the one before ended.
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

/// What is wrong with a file, and what to do. Advice that loses something acknowledged says so.
fn explain(error: &SegmentError, flushed: u64) -> String {
    match error {
        SegmentError::Read(error) => format!("could not be read ({error})"),
        SegmentError::OtherDatabase => OTHER_DATABASE.to_owned(),
        SegmentError::OtherFile => {
            "stands under the name of the journal's other part: exchange the names of the two parts"
                .to_owned()
        }
        SegmentError::OtherKey => format!(
            "was sealed with a key that the database does not have: the database was put back from a backup that is \
             older than the journal. {TOGETHER}"
        ),
        SegmentError::Ahead { generation } => format!(
            "goes on with generation {generation}, and the database ends with generation {flushed}: one of them was put \
             back from a backup, or a part of the journal was emptied or damaged. {TOGETHER}"
        ),
        SegmentError::Damaged { at } => format!(
            "is damaged: the frame at byte {at} cannot be read, and a later one shows that it was confirmed. The disk \
             has changed what it had confirmed: look at the disk, and keep these files, because that frame may hold \
             acknowledged answers that are nowhere else. To go on with an older copy of the database and its journal \
             forgets everything that was acknowledged since that copy, and executes again what is retried of it"
        ),
        SegmentError::OtherVersion { sequence } => {
            format!("was written by another version (frame {sequence}): run that one")
        }
    }
}

const TOGETHER: &str = "Put back what belongs together; or, to go on without what only the journal holds, and execute again \
    what is retried of it, empty both parts of the journal";
