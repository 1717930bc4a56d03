//! What the file looks like, and how a connection to it is set up.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, OpenFlags};

use crate::journal::{Key, Opening};
use crate::{OpenError, Options, journal};

/// "Once" in ASCII. `file` and `sqlite3` show it; a database with another one belongs to another program.
pub(crate) const APPLICATION_ID: i64 = 0x4f6e_6365;
/// Rises with every change of the tables.
pub(crate) const SCHEMA: i64 = 4;
/// The last schema without a key for the journal. A file gets its key when its first journal begins, in one transaction with
/// what else is noted of it: until then the journal of an older version may have to be read, or refused.
const WITHOUT_KEY: i64 = 3;

/// `number` is the order of the first claims, but for those that came within a second or so of each other. New rows go to
/// the end of the table, where their neighbours have just been written too; only the index on `id` is written all over.
/// `state` is the record's state by name. `due_at` is when the record is due, in microseconds since 1970: the lapse of the
/// lease, the next look of reconciliation, or the expiry, depending on the state, and each has an index of its own. `record`
/// is everything, as `onceward::codec` writes it; the other columns repeat what is searched for.
///
/// Expiries are spread over half an hour or more, and an index in their exact order would be written all over too. It is
/// kept to spans of 2³⁰ µs instead, which are eighteen minutes: within a span rows stand in the order of their claims, so
/// that each is written at its end, and what is completed at any time falls into three of them at most. One page for each
/// completion was a third of everything that was written.
const TABLES: &str = "
    CREATE TABLE operations (
        number     INTEGER PRIMARY KEY,
        id         BLOB    NOT NULL CHECK (length(id) = 16),
        version    INTEGER NOT NULL,
        state      TEXT    NOT NULL,
        due_at     INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        record     BLOB    NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX operations_id ON operations (id);
    CREATE INDEX operations_leases ON operations (due_at) WHERE state = 'in_progress';
    CREATE INDEX operations_reconcile ON operations (due_at) WHERE state = 'unknown';
    CREATE INDEX operations_expiry ON operations (due_at >> 30) WHERE state IN ('completed', 'failed_retryable');
    CREATE TABLE meta (
        name  TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    ) STRICT;
    INSERT INTO meta (name, value)
        VALUES ('versions_reserved', 0), ('journal_identity', random()), ('journal_folded', 0),
            ('journal_in_use', 0);
";

/// The first schema kept expiries to the minute.
const FROM_1_TO_2: &str = "
    DROP INDEX operations_expiry;
    CREATE INDEX operations_expiry ON operations (due_at >> 30) WHERE state IN ('completed', 'failed_retryable');
";

/// The second schema had no journal beside it. A version that does not know of one must not open the file any more.
const FROM_2_TO_3: &str = "
    INSERT INTO meta (name, value)
        VALUES ('journal_identity', random()), ('journal_folded', 0), ('journal_in_use', 0);
";

/// The third schema had a journal whose frames were not sealed. A version that does not know of the seal would take a sealed
/// journal for an empty one, so it must not open the file any more.
const FROM_3_TO_4: &str = "
    CREATE TABLE journal_key (
        key BLOB NOT NULL CHECK (length(key) = 32)
    ) STRICT;
    INSERT INTO meta (name, value) VALUES ('journal_opening', 0);
";

/// Opens the file for writing, and makes it a store if it is new. A file that is not a store is left as it is.
pub(crate) fn open_writer(path: &Path, options: &Options) -> Result<Connection, OpenError> {
    let failed = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => {
            OpenError::Foreign { path: path.to_owned(), found: "not a SQLite database".to_owned() }
        }
        _ => OpenError::failed(path, &error),
    };
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    create_private(path);
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    // Before anything is read: closing a file that is then refused must not move its log.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    connection.busy_timeout(options.lock_wait).map_err(failed)?;
    let found = inspect(&connection).map_err(failed)?;
    match found {
        FileKind::Empty | FileKind::Store(1..=SCHEMA) => {}
        FileKind::Store(schema) => {
            return Err(OpenError::Newer { path: path.to_owned(), found: schema, known: SCHEMA });
        }
        FileKind::Foreign(found) => return Err(OpenError::Foreign { path: path.to_owned(), found }),
    }
    if connection.is_readonly(rusqlite::MAIN_DB).map_err(failed)? {
        return Err(OpenError::Path {
            path: path.to_owned(),
            problem: "it cannot be written".to_owned(),
            advice: "give this user the right to write the file and its directory",
        });
    }
    if let FileKind::Empty | FileKind::Store(1 | 2) = found {
        journal::refuse_any(path)?;
    }
    configure(&connection, path, options, options.cache_bytes)?;
    truncate_wal(&connection, path).map_err(failed)?;
    match found {
        FileKind::Empty => create(&mut connection).map_err(failed)?,
        FileKind::Store(from) => {
            for (schema, statements) in (2..=WITHOUT_KEY).zip([FROM_1_TO_2, FROM_2_TO_3]) {
                if from < schema {
                    upgrade(&mut connection, statements, schema).map_err(failed)?;
                }
            }
        }
        FileKind::Foreign(_) => {}
    }
    Ok(connection)
}

/// A new file holds other people's answers, so only its owner may read it; SQLite gives its log the same rights. A file that is
/// there keeps the rights that somebody gave it.
fn create_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    if let Err(error) = options.open(path) {
        // It is there already, or SQLite is about to tell what is wrong with the place.
        tracing::trace!(%error, "no new file was made");
    }
}

/// Opens a store for reading. Readers see every commit that was acknowledged before they began.
pub(crate) fn open_reader(path: &Path, options: &Options) -> Result<Connection, OpenError> {
    let failed = |error: rusqlite::Error| OpenError::failed(path, &error);
    // Not read-only: the first connection after a crash must be able to recover the log, whichever it is.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(READ_WAIT).map_err(failed)?;
    configure(&connection, path, options, options.cache_bytes / 16)?;
    connection.pragma_update(None, "query_only", true).map_err(failed)?;
    Ok(connection)
}

/// What SQLite finds wrong with the database, at most so many faults of it. Nothing where it is whole.
pub(crate) fn integrity(path: &Path) -> Result<Vec<String>, OpenError> {
    let connection = open_reader(path, &Options::default())?;
    let found = connection.prepare("PRAGMA integrity_check(10)").and_then(|mut check| {
        let rows = check.query_map([], |row| row.get::<_, String>(0))?;
        rows.collect::<Result<Vec<_>, _>>()
    });
    let mut faults = found.map_err(|error| OpenError::failed(path, &error))?;
    faults.retain(|fault| fault != "ok");
    Ok(faults)
}

/// Readers wait for nobody in WAL mode, except for the moment in which somebody recovers the log.
const READ_WAIT: Duration = Duration::from_secs(5);

/// What the database says of the journal beside it.
pub(crate) struct JournalMeta {
    /// Whose journal it is.
    pub identity: u64,
    /// The last generation that is in the database.
    pub flushed: u64,
    /// The highest version that the database knows of.
    pub version: u64,
    /// Whether there must be a journal: the store was not closed.
    pub in_use: bool,
    /// What its frames are sealed with; nothing, if an older version wrote them.
    pub opening: Option<Opening>,
}

pub(crate) fn journal_meta(connection: &Connection) -> rusqlite::Result<JournalMeta> {
    let mut select = connection.prepare("SELECT value FROM meta WHERE name = ?1")?;
    let mut note = |name: &str| select.query_row([name], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
    let opening = if schema(connection)? > WITHOUT_KEY {
        let key = connection.query_row("SELECT key FROM journal_key", [], |row| row.get(0)).map(Key)?;
        Some(Opening { number: note("journal_opening")?, key })
    } else {
        None
    };
    Ok(JournalMeta {
        opening,
        identity: note("journal_identity")?,
        flushed: note("journal_folded")?,
        version: note("versions_reserved")?,
        in_use: note("journal_in_use")? != 0,
    })
}

/// Notes, durably, that the journal beside the database is part of it from now on, and how its frames are sealed. Its first
/// generation is the one after `flushed`; those up to there are over.
pub(crate) fn mark_journal_open(
    connection: &mut Connection,
    opening: &Opening,
    flushed: u64,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    if schema(&transaction)? == WITHOUT_KEY {
        transaction.execute_batch(FROM_3_TO_4)?;
        transaction.execute("INSERT INTO journal_key (key) VALUES (?1)", [opening.key.0])?;
        transaction.pragma_update(None, "user_version", SCHEMA)?;
    }
    transaction.execute(
        "UPDATE meta SET value = CASE name WHEN 'journal_in_use' THEN 1 WHEN 'journal_opening' THEN ?1
         ELSE max(value, ?2) END WHERE name IN ('journal_in_use', 'journal_opening', 'journal_folded')",
        (opening.number.cast_signed(), i64::try_from(flushed).unwrap_or(i64::MAX)),
    )?;
    transaction.commit()
}

/// Notes, durably, that everything in the journal is in the database.
pub(crate) fn mark_journal_closed(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("UPDATE meta SET value = 0 WHERE name = 'journal_in_use'", []).map(drop)
}

fn schema(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// What a file is.
#[derive(Debug, PartialEq, Eq)]
enum FileKind {
    Empty,
    Store(i64),
    Foreign(String),
}

fn inspect(connection: &Connection) -> rusqlite::Result<FileKind> {
    let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let schema = schema(connection)?;
    let objects: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(match (application, objects) {
        (APPLICATION_ID, _) => FileKind::Store(schema),
        (0, 0) => FileKind::Empty,
        (0, objects) => {
            FileKind::Foreign(format!("a SQLite database with {objects} tables and indexes of its own"))
        }
        (other, _) => FileKind::Foreign(format!("a SQLite database of the application {other:#x}")),
    })
}

fn configure(
    connection: &Connection,
    path: &Path,
    options: &Options,
    cache_bytes: usize,
) -> Result<(), OpenError> {
    let failed = |error: rusqlite::Error| OpenError::failed(path, &error);
    let set = |name: &str, value: i64| connection.pragma_update(None, name, value).map_err(failed);
    set("page_size", i64::from(options.page_bytes))?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(failed)?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(OpenError::Path {
            path: path.to_owned(),
            problem: format!("its file system cannot keep a write-ahead log (journal mode {mode:?})"),
            advice: "put the store on a local disk",
        });
    }
    connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    // On macOS fsync leaves the data in the drive's cache. The journal is synced by std, which asks for more there; these
    // let SQLite ask for as much. Elsewhere they change nothing.
    connection.pragma_update(None, "fullfsync", true).map_err(failed)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true).map_err(failed)?;
    // Decided in fold.rs.
    set("wal_autocheckpoint", 0)?;
    // A log that grew beyond this, behind a reader that did not end, is cut back when it begins anew.
    let log_bytes = i64::from(options.checkpoint_pages) * i64::from(options.page_bytes);
    set("journal_size_limit", log_bytes.saturating_mul(4))?;
    set(
        "cache_size",
        -i64::try_from(cache_bytes / 1024).unwrap_or(i64::from(i32::MAX)).min(i64::from(i32::MAX)),
    )?;
    // Done before the store is closed, unless a sync has failed: then the log must stay as it is.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    connection.pragma_update(None, "temp_store", "MEMORY").map_err(failed)?;
    connection.pragma_update(None, "trusted_schema", false).map_err(failed)
}

/// Moves what an earlier process left in the log into the database, synced, and cuts the log to nothing.
///
/// Recovery reads the log from the kernel's memory. There also stands what was never synced, and what the kernel gave up on
/// when a sync failed: nobody may be told of it, and a commit that is appended behind such a hole would be lost with it.
fn truncate_wal(connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    match connection.wal_checkpoint_v2(Some(rusqlite::MAIN_DB), CheckpointMode::TRUNCATE) {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => {
            tracing::warn!(
                ?path,
                next = "end the program that has the file open, such as a sqlite3 shell",
                "another program reads the embedded store: SQLite's write-ahead log of the last run stays in use"
            );
            Ok(())
        }
        other => other.map(drop),
    }
}

/// All of it in one transaction: a crash leaves an empty database or a store, and nothing in between.
fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute_batch(TABLES)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", WITHOUT_KEY)?;
    transaction.commit()
}

/// In one transaction: a crash leaves the old schema or the new one.
fn upgrade(connection: &mut Connection, statements: &str, schema: i64) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute_batch(statements)?;
    transaction.pragma_update(None, "user_version", schema)?;
    transaction.commit()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test reports")]
mod tests {
    use super::*;

    #[test]
    fn every_connection_asks_for_syncs_that_reach_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("onceward.db");
        let options = Options::default();
        let connections = [open_writer(&path, &options).unwrap(), open_reader(&path, &options).unwrap()];
        for connection in connections {
            let pragma =
                |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
            assert_eq!(
                (pragma("fullfsync"), pragma("checkpoint_fullfsync"), pragma("synchronous")),
                (1, 1, 2)
            );
        }
    }
}
