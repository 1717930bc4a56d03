//! What a failed batch means for a receipt table, and what to do about it.

use std::time::Duration;

use onceward::receipts::{TableError, TableName};
use tokio_postgres::error::SqlState;

use crate::connection::BatchError;
use crate::error;

pub(super) fn unavailable(reason: impl Into<String>) -> TableError {
    TableError::Unavailable { reason: reason.into() }
}

/// What a failed batch's waits and table were.
pub(super) struct Circumstances {
    pub table: TableName,
    pub lock_wait: Duration,
    pub answer_timeout: Duration,
}

impl Circumstances {
    pub(super) fn explain(&self, failed: &BatchError) -> TableError {
        match failed {
            BatchError::Warned => unavailable(
                "the server gave a warning with the commit: it may no longer have waited for its standby, and a failover \
                 could forget what was written",
            ),
            BatchError::Silent => {
                unavailable(format!("the database did not answer within {:?}", self.answer_timeout))
            }
            BatchError::Server(error) => self.explain_error(error),
        }
    }

    fn explain_error(&self, error: &tokio_postgres::Error) -> TableError {
        let Some(db_error) = error.as_db_error() else {
            return unavailable(format!("the connection was lost: {}", error::words(error)));
        };
        let code = db_error.code();
        if *code == SqlState::LOCK_NOT_AVAILABLE {
            return TableError::Held { waited: self.lock_wait };
        }
        let said = format!("{} ({})", db_error.message(), code.code());
        let Self { table, .. } = self;
        let differs =
            [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN, SqlState::INVALID_COLUMN_REFERENCE];
        if differs.contains(code) {
            unavailable(format!(
                "{said}: the table {table} is missing in this database, or is another one: run what `onceward receipts \
                 --print-sql` prints, or correct the URL"
            ))
        } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            unavailable(format!(
                "{said}: GRANT SELECT, INSERT, UPDATE, DELETE ON {table} to the role of the URL"
            ))
        } else {
            unavailable(error::explain(db_error))
        }
    }
}
