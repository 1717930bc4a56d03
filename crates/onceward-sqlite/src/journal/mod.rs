//! What makes a write durable: an append to a file, and one sync for all that came together.
//!
//! The database is brought up to date later, by `fold.rs`, so that a claim and its completion are one row written once.
//! Two files take turns: one is written while what is in the other is folded into the database, and then written again
//! from its beginning. Blocks that exist are synced faster than a file that grows, so the files stay as long as they
//! became.

mod changes;
mod first_format;
mod frame;
mod opening;
mod recover;
mod segment;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use frame::{FramePosition, Seal};

pub(crate) use changes::Change;
pub(crate) use frame::{Frame, Key};
pub(crate) use opening::Opening;
pub(crate) use recover::{read, refuse_any};

/// A file becomes longer by at least so much at a time, of zeros: writing into what is there needs no change of the file
/// system's own records, which is half of what a sync costs.
const GROW_BYTES: u64 = 1 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Where the two files are.
pub(crate) fn paths(store: &Path) -> [PathBuf; 2] {
    [".journal-0", ".journal-1"].map(|suffix| {
        let mut path = OsString::from(store);
        path.push(suffix);
        path.into()
    })
}

/// The journal as its writer has it.
pub(crate) struct Journal {
    files: [JournalFile; 2],
    seal: Seal,
    /// Where the next batch belongs.
    next: FramePosition,
}

struct JournalFile {
    file: File,
    path: PathBuf,
    length: u64,
}

/// Why a batch was not appended.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// Nothing of it counts.
    NotWritten(io::Error),
    /// The disk did not confirm it.
    NotConfirmed(io::Error),
}

impl Journal {
    /// Opens the files, and makes those that are not there. The first batch begins `generation`.
    pub(crate) fn open(store: &Path, seal: Seal, generation: u64) -> io::Result<Self> {
        let [first, second] = paths(store);
        let files = [JournalFile::open(first)?, JournalFile::open(second)?];
        sync_directory(store)?;
        Ok(Self { files, seal, next: FramePosition { generation, sequence: 0, at: 0 } })
    }

    /// Which generation the next batch belongs to.
    pub(crate) fn generation(&self) -> u64 {
        self.next.generation
    }

    /// How long the present generation is.
    pub(crate) fn bytes(&self) -> u64 {
        self.next.at
    }

    /// Makes a batch durable.
    pub(crate) fn append(&mut self, frame: &mut Frame) -> Result<(), AppendError> {
        let bytes = frame.seal(&self.seal, self.next);
        let file = &mut self.files[usize::from(self.next.generation % 2 == 1)];
        // What is partly written does not match its tags, and the next batch is written over it.
        file.write(self.next.at, bytes).map_err(AppendError::NotWritten)?;
        file.file.sync_data().map_err(AppendError::NotConfirmed)?;
        self.next.at += bytes.len() as u64;
        self.next.sequence += 1;
        Ok(())
    }

    /// Goes on at the beginning of the other file. What that one held must be in the database.
    pub(crate) fn switch_file(&mut self) {
        self.next.generation += 1;
        self.next.at = 0;
    }

    /// Removes the files. Everything that they held must be in the database.
    pub(crate) fn remove(self) -> io::Result<()> {
        self.files.into_iter().try_for_each(|JournalFile { file, path, .. }| {
            drop(file);
            std::fs::remove_file(path)
        })
    }
}

impl JournalFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // It holds other people's answers, like the database.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path)?;
        let length = file.metadata()?.len();
        Ok(Self { file, path, length })
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let end = at + bytes.len() as u64;
        let before = self.length;
        if end > before
            && let Err(error) = self.grow(end)
        {
            // The last space is given back: what is folded into the database needs it.
            self.file.set_len(before)?;
            self.length = before;
            return Err(error);
        }
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(bytes)
    }

    fn grow(&mut self, end: u64) -> io::Result<()> {
        let length = end.next_multiple_of(GROW_BYTES);
        self.file.seek(SeekFrom::Start(self.length))?;
        while self.length < length {
            let most = usize::try_from(length - self.length).unwrap_or(usize::MAX).min(ZEROS.len());
            self.file.write_all(&ZEROS[..most])?;
            self.length += most as u64;
        }
        Ok(())
    }
}

/// A file whose name is lost in a power cut is lost itself.
fn sync_directory(store: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if let Some(directory) = store.parent() {
        return File::open(directory)?.sync_all();
    }
    Ok(())
}
