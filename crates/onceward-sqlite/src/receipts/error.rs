//! What a failed call means for a receipt table, and what to do about it.

use std::path::Path;
use std::time::Duration;

use onceward::receipts::TableError;
use rusqlite::ErrorCode;

use crate::error::explain;

pub(super) fn unavailable(reason: impl Into<String>) -> TableError {
    TableError::Unavailable { reason: reason.into() }
}

/// Why a call failed, before it is known which database it was.
pub(super) enum Failure {
    Sqlite(rusqlite::Error),
    Words(String),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl Failure {
    pub(super) fn explain(self, path: &Path, lock_wait: Duration) -> TableError {
        let error = match self {
            Self::Words(reason) => return unavailable(reason),
            Self::Sqlite(error) => error,
        };
        // A schema that changes, or a file that is recovered, is locked for a moment too.
        if matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) {
            return TableError::Held { waited: lock_wait };
        }
        if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) {
            return unavailable(format!(
                "the database {path:?} does not exist, or this user may not open it: Onceward never creates the user's \
                 database ({error})"
            ));
        }
        let said = error.to_string();
        if ["no such table", "no such column", "has no column", "ON CONFLICT clause"]
            .iter()
            .any(|part| said.contains(part))
        {
            return unavailable(format!(
                "the receipt table is missing in {path:?}, or is another one: run what `onceward receipts --print-sql \
                 --dialect sqlite` prints, or correct the URL ({error})"
            ));
        }
        unavailable(explain(&error, path))
    }
}
