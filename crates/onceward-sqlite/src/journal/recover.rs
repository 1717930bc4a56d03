//! What an earlier process left in the journal.
//!
//! A batch is written only after the one before it was synced. So a batch that cannot be read is the last one, and was
//! never acknowledged; if a later one can be read, in its file or in the other, the disk has changed what it had
//! confirmed, and nothing that depends on the journal is guessed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use onceward::RecordId;

use super::frame::{self, BLOCK, HEADER, Header, Latest, Place};
use crate::OpenError;
use crate::recent::ById;
use crate::schema::Noted;

/// What is to be folded into the database before anything is answered.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub latest: ById<Latest>,
    /// The newest generation of which there is a batch, or which the database holds already.
    pub generation: u64,
}

/// Makes sure that there is no journal: the database beside it cannot have one yet.
pub(crate) fn refuse_any(store: &Path) -> Result<(), OpenError> {
    let is_there = |path: &PathBuf| path.metadata().is_ok_and(|found| found.len() > 0);
    match super::paths(store).into_iter().find(is_there) {
        None => Ok(()),
        Some(path) => Err(OpenError::Journal { path, problem: OF_ANOTHER.to_owned() }),
    }
}

const OF_ANOTHER: &str = "belongs to another database: put that one back, or move this file away";

/// Reads the journal of a database, from where the database ends.
pub(crate) fn read(store: &Path, noted: &Noted) -> Result<Left, OpenError> {
    let Noted { identity, folded, .. } = *noted;
    let mut generations = Vec::new();
    for path in super::paths(store) {
        let failed = |error: io::Error| OpenError::Journal {
            path: path.clone(),
            problem: format!("could not be read ({error})"),
        };
        let mut file = match File::open(&path) {
            Ok(file) => Reader { length: file.metadata().map_err(failed)?.len(), file },
            Err(error) if error.kind() == io::ErrorKind::NotFound && noted.in_use => {
                let problem = "is missing, and the store was not closed: it held what was written last. Put it back; or, to \
                               go on without that, and execute again what is retried of it, make an empty file in its place"
                    .to_owned();
                return Err(OpenError::Journal { path, problem });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        let found = file.generation(&path, identity, folded).map_err(|trouble| match trouble {
            Trouble::Read(error) => failed(error),
            Trouble::Found(problem) => OpenError::Journal { path: path.clone(), problem },
        })?;
        generations.extend(found);
    }
    generations.sort_by_key(|found| found.generation);
    let mut left = Left { latest: ById::default(), generation: folded };
    let mut before: Option<Generation> = None;
    for mut found in generations {
        let generation = found.generation;
        if generation != left.generation + 1 {
            let [path, _] = super::paths(store);
            let problem = format!(
                "goes on with part {generation}, and the database ends with part {}: one of them was put back from a \
                 backup, or a part of the journal was emptied. Put back what belongs together; or, to go on without \
                 what only the journal holds, and execute again what is retried of it, empty both parts of the journal",
                left.generation
            );
            return Err(OpenError::Journal { path, problem });
        }
        if let Some(Generation { path, last, .. }) = before.filter(|before| before.last + 1 != found.first) {
            return Err(OpenError::Journal { path, problem: damaged(&format!("batch {}", last + 1)) });
        }
        left.generation = generation;
        let Generation { changes, .. } = &mut found;
        left.latest.extend(changes.drain(..));
        before = Some(found);
    }
    Ok(left)
}

struct Reader {
    file: File,
    length: u64,
}

enum Trouble {
    Read(io::Error),
    Found(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

/// What a file holds that the database does not.
struct Generation {
    path: PathBuf,
    generation: u64,
    /// The sequences of its first and its last batch.
    first: u64,
    last: u64,
    changes: Vec<(RecordId, Latest)>,
}

fn damaged(what: &str) -> String {
    format!(
        "is damaged: {what} cannot be read, and a later one can. The disk has changed what it had confirmed: look at the \
         disk, and put back a copy of the database and its journal"
    )
}

impl Reader {
    /// Reads batches from the beginning of the file on.
    fn generation(&mut self, path: &Path, identity: u64, folded: u64) -> Result<Option<Generation>, Trouble> {
        let (mut at, mut found): (u64, Option<Generation>) = (0, None);
        while let Some((header, body)) = self.batch(at)? {
            let Place { identity: whose, generation, sequence } = header.place;
            if whose != identity {
                return Err(Trouble::Found(OF_ANOTHER.to_owned()));
            }
            let goes_on = found
                .as_ref()
                .is_none_or(|found| (found.generation, found.last + 1) == (generation, sequence));
            if generation <= folded || !goes_on {
                break;
            }
            let changes = frame::changes(&body).ok_or_else(|| {
                Trouble::Found(format!("was written by another version (batch {sequence}): run that one"))
            })?;
            let found = found.get_or_insert_with(|| Generation {
                path: path.to_owned(),
                generation,
                first: sequence,
                last: sequence,
                changes: Vec::new(),
            });
            found.last = sequence;
            found.changes.extend(changes);
            at += header.takes();
        }
        self.ends_at(at, identity, found.as_ref().map_or(folded + 1, |found| found.generation))?;
        Ok(found)
    }

    /// Makes sure that no batch of this generation, or a later one, stands after the last that could be read.
    fn ends_at(&mut self, end: u64, identity: u64, generation: u64) -> Result<(), Trouble> {
        let mut at = end;
        while at < self.length {
            if let Some((header, _)) = self.batch(at)?
                && header.place.identity == identity
                && header.place.generation >= generation
            {
                return Err(Trouble::Found(damaged(&format!("what stands at byte {end}"))));
            }
            at += BLOCK as u64;
        }
        Ok(())
    }

    /// The batch that begins here, if there is a whole one.
    fn batch(&mut self, at: u64) -> io::Result<Option<(Header, Vec<u8>)>> {
        if at + HEADER as u64 > self.length {
            return Ok(None);
        }
        let mut start = [0; HEADER];
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(&mut start)?;
        let Some(header) = Header::read(&start) else { return Ok(None) };
        if at + HEADER as u64 + u64::from(header.length) > self.length {
            return Ok(None);
        }
        let mut body = vec![0; header.length as usize];
        self.file.read_exact(&mut body)?;
        Ok(header.covers(&start, &body).then_some((header, body)))
    }
}
