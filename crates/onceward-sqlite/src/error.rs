//! Errors: why a store cannot be opened, and whether a failed statement is fatal for the process.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use onceward::store::StoreError;
use onceward::store::driver::InvalidOption;
use rusqlite::{ErrorCode, ffi};

/// Why a file cannot be opened as a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// An option is out of its range.
    #[error(transparent)]
    Option(#[from] InvalidOption),
    /// The path cannot hold a store.
    #[error("the path {path:?} cannot hold a store: {problem}; {advice}")]
    Path {
        /// The path as it was given.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        advice: &'static str,
    },
    /// The file is in use.
    #[error(
        "the store {path:?} is already open in {}: a store belongs to one process at a time. Stop that one, or give this one a file of its own",
        match .holder { Some(pid) => format!("the process {pid}"), None => "another process".to_owned() }
    )]
    InUse {
        /// The file, with symlinks resolved.
        path: PathBuf,
        /// The process that holds it, where it could be read.
        holder: Option<u32>,
    },
    /// The file is not a store.
    #[error(
        "the file {path:?} is not an Onceward store ({found}): it was left as it is; choose another path"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        found: String,
    },
    /// A newer Onceward made the file.
    #[error(
        "the store {path:?} has schema {found}, and this version knows up to {known}: it was left as it is; run the newer version"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema that can be used.
        known: i64,
    },
    /// The journal cannot be used, or does not belong to the database.
    #[error("the journal {path:?} {problem}. It and the database were left as they are")]
    Journal {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The database or the operating system returned an error.
    #[error("the store {path:?} could not be opened: {reason}")]
    Failed {
        /// The file.
        path: PathBuf,
        /// What happened, and what to do.
        reason: String,
    },
}

impl OpenError {
    pub(crate) fn failed(path: &Path, error: &rusqlite::Error) -> Self {
        Self::Failed { path: path.to_owned(), reason: explain(error, path) }
    }
}

/// What a failed statement means for the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Nothing was written. Another attempt may succeed.
    Retryable,
    /// A sync failed, so what was acknowledged may not be on the disk.
    Fatal,
}

pub(crate) fn severity(error: &rusqlite::Error) -> Severity {
    let rusqlite::Error::SqliteFailure(ffi::Error { extended_code, .. }, _) = error else {
        return Severity::Retryable;
    };
    match *extended_code {
        // The last two report a disk that returned other bytes than were written.
        ffi::SQLITE_IOERR_FSYNC
        | ffi::SQLITE_IOERR_DIR_FSYNC
        | ffi::SQLITE_IOERR_DATA
        | ffi::SQLITE_IOERR_CORRUPTFS => Severity::Fatal,
        _ => Severity::Retryable,
    }
}

pub(crate) fn unavailable(error: &rusqlite::Error, path: &Path) -> StoreError {
    StoreError::Unavailable { reason: explain(error, path) }
}

/// The text for a batch that was not appended to the journal, with what to do.
pub(crate) fn not_journaled(error: &std::io::Error, path: &Path) -> String {
    if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
        return format!(
            "the disk that holds {path:?} is full: free some space, and the store continues by itself ({error})"
        );
    }
    format!("the journal of {path:?} could not be written: check the disk and the kernel's log ({error})")
}

/// The text of an error, with what to do.
pub(crate) fn explain(error: &rusqlite::Error, path: &Path) -> String {
    let Some(code) = error.sqlite_error_code() else {
        return format!("{path:?}: {error}");
    };
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the other codes have no better advice than their own text"
    )]
    match code {
        ErrorCode::DiskFull => {
            format!(
                "the disk that holds {path:?} is full: free some space, and the store continues by itself ({error})"
            )
        }
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => format!(
            "another program holds the write lock of {path:?}: end its transaction, and the store continues by itself ({error})"
        ),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => {
            format!(
                "{path:?} cannot be written: give this user the right to write the file and its directory ({error})"
            )
        }
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => format!(
            "{path:?} is damaged: check the disk, run `PRAGMA integrity_check`, and restore a backup ({error})"
        ),
        ErrorCode::SystemIoFailure => {
            format!(
                "the disk that holds {path:?} returned an error: check the disk and the kernel's log ({error})"
            )
        }
        ErrorCode::CannotOpen => {
            format!("{path:?} cannot be opened: the directory must exist and be writable ({error})")
        }
        _ => format!("{path:?}: {error}"),
    }
}

/// The message that is printed before the process stops.
pub(crate) fn fatal(error: &dyn std::fmt::Display, path: &Path) -> String {
    format!(
        "the disk did not confirm a write to {path:?} ({error}). What it holds is uncertain, and a second sync could \
         report success for data that is lost, so the process stops. Everything that was acknowledged is in the database \
         or its journal: check the disk, then start again"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn a_failed_sync_concerns_the_process_and_a_full_disk_only_the_attempt() {
        assert_eq!(severity(&failure(ffi::SQLITE_IOERR_FSYNC)), Severity::Fatal);
        assert_eq!(severity(&failure(ffi::SQLITE_IOERR_DIR_FSYNC)), Severity::Fatal);
        assert_eq!(severity(&failure(ffi::SQLITE_IOERR_WRITE)), Severity::Retryable);
        assert_eq!(severity(&failure(ffi::SQLITE_FULL)), Severity::Retryable);
    }
}
