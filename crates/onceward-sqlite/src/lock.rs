//! The file that a path names, and the lock that keeps a second process out.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::OpenError;

/// Resolves symlinks, so that two names of one file lead to one lock.
///
/// The database itself is not opened here: closing any handle of a file releases all of the process's locks on it, so a
/// second open in this process would remove the locks of the first.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, OpenError> {
    let refuse = |problem: String, advice| OpenError::Path { path: path.to_owned(), problem, advice };
    if path.as_os_str().is_empty() {
        return Err(refuse("it is empty".to_owned(), "name a file, such as onceward.db"));
    }
    if path == Path::new(":memory:") {
        return Err(refuse(
            "a store in memory is not durable".to_owned(),
            "name a file, or use onceward::MemoryStore in tests",
        ));
    }
    match path.canonicalize() {
        Ok(found) if found.is_file() => Ok(found),
        Ok(_) => Err(refuse("it is a directory or a device".to_owned(), "name a file in it")),
        Err(error) if error.kind() == ErrorKind::NotFound => resolve_new(path),
        Err(error) => Err(refuse(error.to_string(), "name a file that this user may reach")),
    }
}

fn resolve_new(path: &Path) -> Result<PathBuf, OpenError> {
    let refuse = |problem: String, advice| OpenError::Path { path: path.to_owned(), problem, advice };
    if path.symlink_metadata().is_ok() {
        return Err(refuse(
            "it is a symlink to nothing".to_owned(),
            "create its target's directory, or remove it",
        ));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(refuse("it names no file".to_owned(), "name a file, such as onceward.db"));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = parent.canonicalize().map_err(|error| {
        refuse(format!("its directory {parent:?}: {error}"), "create the directory first")
    })?;
    Ok(parent.join(name))
}

/// The lock on `STORE.lock`. The operating system releases it when the process ends, for whatever reason. The file is kept:
/// removing it would let two processes lock two files of one name.
pub(crate) struct FileLock {
    _file: File,
}

impl FileLock {
    pub(crate) fn acquire(store: &Path) -> Result<Self, OpenError> {
        let mut path = OsString::from(store);
        path.push(".lock");
        let refuse = |problem: String, advice| OpenError::Path { path: store.to_owned(), problem, advice };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(
                |error| {
                    refuse(format!("{path:?}: {error}"), "give this user the right to write in its directory")
                },
            )?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse { path: store.to_owned(), holder: holder(&mut file) });
            }
            Err(TryLockError::Error(error)) => {
                return Err(refuse(
                    format!("its file system cannot lock files: {error}"),
                    "put the store on a local disk",
                ));
            }
        }
        // The file may belong to another program: `Cargo.lock` beside a store called `Cargo`.
        if holder(&mut file).is_none() && file.metadata().is_ok_and(|found| found.len() > 0) {
            return Err(refuse(
                format!("{path:?} exists and is not the lock of a store"),
                "choose another path, or remove that file",
            ));
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()))
            .map_err(|error| {
                refuse(format!("{path:?}: {error}"), "free some space, or choose another disk")
            })?;
        Ok(Self { _file: file })
    }
}

/// The process id in the file, for the error message only.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Opens the database file. The caller must keep it open as long as there are connections to it: see [`resolve`].
pub(crate) fn open(store: &Path) -> Result<File, OpenError> {
    OpenOptions::new().read(true).write(true).open(store).map_err(|error| OpenError::Path {
        path: store.to_owned(),
        problem: error.to_string(),
        advice: "give this user the right to write the file",
    })
}
