//! The journal, which makes writes durable: each batch is appended to a file and synced once.
//!
//! The database is updated later, by `flush.rs`, so that a claim and its completion are one row written once. Two files take
//! turns: while one is appended to, the changes in the other are flushed into the database, and then that file is
//! overwritten from its beginning. Writing into existing blocks syncs faster than growing a file, so the files keep their
//! length.

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

/// A file grows by at least this much at a time, filled with zeros. Writes into existing blocks need no update of the file
/// system's metadata, which is half the cost of a sync.
const GROW_BYTES: u64 = 1 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The paths of the two files.
pub(crate) fn paths(store: &Path) -> [PathBuf; 2] {
    [".journal-0", ".journal-1"].map(|suffix| {
        let mut path = OsString::from(store);
        path.push(suffix);
        path.into()
    })
}

/// The open journal of a writer.
pub(crate) struct Journal {
    files: [JournalFile; 2],
    seal: Seal,
    /// The position of the next batch.
    next: FramePosition,
}

struct JournalFile {
    file: File,
    path: PathBuf,
    length: u64,
}

/// Why a batch could not be appended.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// The write failed: recovery ignores the batch.
    NotWritten(io::Error),
    /// The sync failed: the batch may or may not be on the disk.
    NotConfirmed(io::Error),
}

impl Journal {
    /// Opens the files, and creates missing ones. The first batch begins `generation`.
    pub(crate) fn open(store: &Path, seal: Seal, generation: u64) -> io::Result<Self> {
        let [first, second] = paths(store);
        let files = [JournalFile::open(first)?, JournalFile::open(second)?];
        sync_directory(store)?;
        Ok(Self { files, seal, next: FramePosition { generation, sequence: 0, at: 0 } })
    }

    /// The generation of the next batch.
    pub(crate) fn generation(&self) -> u64 {
        self.next.generation
    }

    /// The length of the current generation in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.next.at
    }

    /// Makes a batch durable.
    pub(crate) fn append(&mut self, frame: &mut Frame) -> Result<(), AppendError> {
        let bytes = frame.seal(&self.seal, self.next);
        let file = &mut self.files[usize::from(self.next.generation % 2 == 1)];
        // A partial write does not match its tags, and the next batch overwrites it.
        file.write(self.next.at, bytes).map_err(AppendError::NotWritten)?;
        file.file.sync_data().map_err(AppendError::NotConfirmed)?;
        self.next.at += bytes.len() as u64;
        self.next.sequence += 1;
        Ok(())
    }

    /// Continues at the beginning of the other file, whose changes must be in the database.
    pub(crate) fn switch_file(&mut self) {
        self.next.generation += 1;
        self.next.at = 0;
    }

    /// Removes the files. Their changes must be in the database.
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
        // It holds stored replies, like the database.
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
            // The space is released: the flusher needs it for the database.
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

/// A file whose directory entry is lost in a power cut is lost too.
fn sync_directory(store: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if let Some(directory) = store.parent() {
        return File::open(directory)?.sync_all();
    }
    Ok(())
}
