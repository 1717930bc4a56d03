//! The tables, their upgrades, and the settings of a connection.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, OpenFlags};

use crate::journal::{Key, Opening};
use crate::{OpenError, Options, journal};

/// "Once" in ASCII. `file` and `sqlite3` show it; a database with another id belongs to another program.
pub(crate) const APPLICATION_ID: i64 = 0x4f6e_6365;
/// Incremented with every change of the tables.
pub(crate) const SCHEMA: i64 = 4;
/// The last schema without a journal key. A file gets its key when its first journal begins, in the same transaction: until
/// then a journal of an older version may have to be read or refused.
const WITHOUT_KEY: i64 = 3;

/// `number` is the order of the first claims, except for claims within about a second of each other. New rows are appended
/// to the table, next to rows that were just written; only the index on `id` is written at random places. `state` is the
/// record's state by name. `due_at` is the lapse of the lease, the next reconciliation or the expiry, depending on the
/// state, in microseconds since 1970; each has an index of its own. `record` is the whole record, as `onceward::codec`
/// writes it; the other columns repeat what is searched for.
///
/// Expiries are spread over half an hour or more, so an index in their exact order would be written at random places too. It
/// is kept by spans of 2³⁰ µs (eighteen minutes) instead: within a span, rows are in the order of their claims, so each is
/// appended, and completions at any one time fall into at most three spans. One page for each completion was a third of all
/// writes.
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

/// The first schema kept expiries by the minute.
const FROM_1_TO_2: &str = "
    DROP INDEX operations_expiry;
    CREATE INDEX operations_expiry ON operations (due_at >> 30) WHERE state IN ('completed', 'failed_retryable');
";

/// The second schema had no journal. A version that does not know the journal must not open the file any more.
const FROM_2_TO_3: &str = "
    INSERT INTO meta (name, value)
        VALUES ('journal_identity', random()), ('journal_folded', 0), ('journal_in_use', 0);
";

/// The third schema had a journal without tags. A version that does not know the tags would take a tagged journal for an
/// empty one, so it must not open the file any more.
const FROM_3_TO_4: &str = "
    CREATE TABLE journal_key (
        key BLOB NOT NULL CHECK (length(key) = 32)
    ) STRICT;
    INSERT INTO meta (name, value) VALUES ('journal_opening', 0);
";

/// Opens the file for writing, and creates the tables in a new one. A file that is not a store is not changed.
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
    // Set before anything is read: closing a file that is then refused must not checkpoint its log.
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

/// A new file will hold stored replies, so only its owner may read it; SQLite gives its log the same mode. An existing file
/// keeps its mode.
fn create_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    if let Err(error) = options.open(path) {
        // The file exists, or SQLite reports the problem next.
        tracing::trace!(%error, "no new file was created");
    }
}

/// Opens a store for reading. A reader sees every commit that was acknowledged before its transaction began.
pub(crate) fn open_reader(path: &Path, options: &Options) -> Result<Connection, OpenError> {
    let failed = |error: rusqlite::Error| OpenError::failed(path, &error);
    // Not read-only: the first connection after a crash must recover the log.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(READ_WAIT).map_err(failed)?;
    configure(&connection, path, options, options.cache_bytes / 16)?;
    connection.pragma_update(None, "query_only", true).map_err(failed)?;
    Ok(connection)
}

/// The first ten faults that SQLite finds in the database; none if it is intact.
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

/// In WAL mode readers wait only while another connection recovers the log.
const READ_WAIT: Duration = Duration::from_secs(5);

/// What the database records about its journal.
pub(crate) struct JournalMeta {
    /// Identifies the database that the journal belongs to.
    pub identity: u64,
    /// The last generation that was flushed.
    pub flushed: u64,
    /// The highest version that the database knows.
    pub version: u64,
    /// Whether the journal must exist: the store was not closed.
    pub in_use: bool,
    /// The key of its frames; none if an older version wrote them.
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

/// Records, durably, that the journal belongs to the database from now on, and the key of its frames. Its first generation
/// follows `flushed`; all generations up to that one are finished.
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

/// Records, durably, that the database holds everything that is in the journal.
pub(crate) fn mark_journal_closed(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("UPDATE meta SET value = 0 WHERE name = 'journal_in_use'", []).map(drop)
}

fn schema(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// What a file contains.
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
    // On macOS fsync leaves the data in the drive's cache. The standard library syncs the journal with F_FULLFSYNC there;
    // these settings make SQLite do the same. They have no effect on other systems.
    connection.pragma_update(None, "fullfsync", true).map_err(failed)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true).map_err(failed)?;
    // `flush.rs` decides when to checkpoint.
    set("wal_autocheckpoint", 0)?;
    // A log that grew longer while a reader blocked its checkpoint is truncated when it starts again.
    let log_bytes = i64::from(options.checkpoint_pages) * i64::from(options.page_bytes);
    set("journal_size_limit", log_bytes.saturating_mul(4))?;
    set(
        "cache_size",
        -i64::try_from(cache_bytes / 1024).unwrap_or(i64::from(i32::MAX)).min(i64::from(i32::MAX)),
    )?;
    // The flusher checkpoints before the store is closed, unless a sync has failed: then the log must not change.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    connection.pragma_update(None, "temp_store", "MEMORY").map_err(failed)?;
    connection.pragma_update(None, "trusted_schema", false).map_err(failed)
}

/// Checkpoints and truncates the log of the previous process.
///
/// Recovery reads the log from the kernel's page cache, which may contain pages that were never synced, and pages that the
/// kernel gave up on when a sync failed. No caller may see them before they are synced, and a commit appended after such a
/// page would be lost with it.
fn truncate_wal(connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    match connection.wal_checkpoint_v2(Some(rusqlite::MAIN_DB), CheckpointMode::TRUNCATE) {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => {
            tracing::warn!(
                ?path,
                next = "end the program that has the file open, such as a sqlite3 shell",
                "another program reads the embedded store: SQLite's write-ahead log of the last run could not be truncated"
            );
            Ok(())
        }
        other => other.map(drop),
    }
}

/// In one transaction: a crash leaves an empty database or a complete store.
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
