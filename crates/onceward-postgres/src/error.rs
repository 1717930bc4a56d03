//! Errors: whether something was written, and whether to try again.

use onceward::store::StoreError;
use onceward::store::driver::InvalidOption;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Why a store cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// An option is out of its range.
    #[error(transparent)]
    Option(#[from] InvalidOption),
    /// The trusted certificate cannot be read.
    #[error(
        "the certificates {path} cannot be used: {reason}; sslrootcert must name a PEM file with the authority's"
    )]
    Certificate {
        /// Which file, or that of the operating system.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The server cannot be reached, or refuses the login.
    #[error("the database {url} cannot be used: {reason}")]
    Unreachable {
        /// Which one, without its password.
        url: String,
        /// What happened, and what to do.
        reason: String,
    },
    /// The tables do not exist.
    #[error("the database {url} has no Onceward tables in the schema {schema}: run `onceward migrate`")]
    Absent {
        /// Which one, without its password.
        url: String,
        /// The schema that was searched.
        schema: String,
    },
    /// An older Onceward made the tables.
    #[error("the database {url} has schema {found}, and this version needs {known}: run `onceward migrate`")]
    Older {
        /// Which one, without its password.
        url: String,
        /// Its version.
        found: i32,
        /// The version that is needed.
        known: i32,
    },
    /// A newer Onceward made the tables.
    #[error(
        "the database {url} has schema {found}, and this version knows up to {known}: it was left as it is; run the newer version"
    )]
    Newer {
        /// Which one, without its password.
        url: String,
        /// Its version.
        found: i32,
        /// The newest version that can be used.
        known: i32,
    },
}

/// A failed statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatementError {
    pub kind: ErrorKind,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// Nothing was written: two transactions conflicted. The same statement may be sent again.
    Retry,
    /// Nothing was written: the database refuses the values of one row.
    BadRow,
    /// Nothing was written: one stored row is locked by another transaction, or damaged. The other rows may succeed.
    RowBlocked,
    /// Nothing was written: the connection does not know the prepared statement, which must be prepared again.
    Unprepared,
    /// Nothing was written.
    NotDone,
    /// The answer was lost. The statement may be carried out, now or later.
    AnswerLost,
}

/// Whether the connection can be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Usable,
    Broken,
}

/// Classifies the error of a statement that was sent.
pub(crate) fn of_statement(error: &tokio_postgres::Error) -> (StatementError, ConnectionState) {
    let Some(db_error) = error.as_db_error() else {
        return (
            StatementError { kind: ErrorKind::AnswerLost, reason: words(error) },
            ConnectionState::Broken,
        );
    };
    let code = db_error.code();
    // A connection may be ended after the commit and before its answer.
    let ended = !matches!(db_error.parsed_severity(), Some(Severity::Error));
    let class = code.code().get(..2).unwrap_or("");
    let (kind, connection) = match class {
        _ if ended || *code == SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN => {
            (ErrorKind::AnswerLost, ConnectionState::Broken)
        }
        "08" | "57" if *code != SqlState::QUERY_CANCELED => (ErrorKind::AnswerLost, ConnectionState::Broken),
        "40" => (ErrorKind::Retry, ConnectionState::Usable),
        "26" => (ErrorKind::Unprepared, ConnectionState::Broken),
        // A statement that was prepared before a migration, or that has the name of another client's statement on a pooled
        // connection.
        _ if *code == SqlState::FEATURE_NOT_SUPPORTED || *code == SqlState::DUPLICATE_PSTATEMENT => {
            (ErrorKind::Unprepared, ConnectionState::Broken)
        }
        // This server has become a standby: a new connection may lead to the primary.
        _ if *code == SqlState::READ_ONLY_SQL_TRANSACTION => (ErrorKind::NotDone, ConnectionState::Broken),
        "22" | "23" | "44" | "54" | "P0" => (ErrorKind::BadRow, ConnectionState::Usable),
        "XX" => (ErrorKind::RowBlocked, ConnectionState::Usable),
        _ if *code == SqlState::LOCK_NOT_AVAILABLE => (ErrorKind::RowBlocked, ConnectionState::Usable),
        _ => (ErrorKind::NotDone, ConnectionState::Usable),
    };
    (StatementError { kind, reason: explain(db_error) }, connection)
}

impl StatementError {
    pub(crate) fn not_done(reason: impl Into<String>) -> Self {
        Self { kind: ErrorKind::NotDone, reason: reason.into() }
    }

    /// The error of a failed write.
    pub(crate) fn of_write(&self) -> StoreError {
        let reason = self.reason.clone();
        match self.kind {
            ErrorKind::AnswerLost => StoreError::Ambiguous { reason },
            ErrorKind::BadRow => {
                StoreError::Refused { reason: format!("the database refused the row: {reason}") }
            }
            ErrorKind::Retry | ErrorKind::RowBlocked | ErrorKind::Unprepared | ErrorKind::NotDone => {
                StoreError::Unavailable { reason }
            }
        }
    }

    /// The error of a failed read, which never writes anything.
    pub(crate) fn of_read(&self) -> StoreError {
        StoreError::Unavailable { reason: self.reason.clone() }
    }
}

/// The text of a server's error, with what to do. Its detail is left out: it repeats values, which may be keys.
pub(crate) fn explain(db_error: &DbError) -> String {
    let code = db_error.code();
    let text = format!("{} ({})", db_error.message(), code.code());
    let advice = if *code == SqlState::UNDEFINED_TABLE || *code == SqlState::UNDEFINED_COLUMN {
        "the tables are not as this version needs them: run `onceward migrate`"
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        "this role may not do that: grant it what docs/postgres.md lists"
    } else if *code == SqlState::DISK_FULL {
        "the database's disk is full: free some space, and the store continues by itself"
    } else if *code == SqlState::TOO_MANY_CONNECTIONS {
        "the server has no connection left: lower pool=N, raise max_connections, or put PgBouncer in front"
    } else if *code == SqlState::QUERY_CANCELED || *code == SqlState::LOCK_NOT_AVAILABLE {
        "the database was too slow, or a lock was held: check pg_stat_activity"
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        "this server is a standby or read-only: the URL must lead to the primary"
    } else if *code == SqlState::INVALID_SQL_STATEMENT_NAME || *code == SqlState::DUPLICATE_PSTATEMENT {
        "a pooler in transaction mode mixes up prepared statements: add prepared=off to the URL"
    } else if *code == SqlState::INVALID_PASSWORD || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
        "check the user and the password of the URL, and the server's pg_hba.conf"
    } else if *code == SqlState::INVALID_CATALOG_NAME {
        "create the database first"
    } else {
        return text;
    };
    format!("{text}: {advice}")
}

/// The text of any error.
pub(crate) fn words(error: &tokio_postgres::Error) -> String {
    if let Some(db_error) = error.as_db_error() {
        return explain(db_error);
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        let more = deeper.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = deeper.source();
    }
    text
}
