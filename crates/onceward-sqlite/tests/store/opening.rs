//! Which files are opened as a store, which are refused, and the error texts.

use std::path::Path;
use std::time::Duration;

use crate::support::{flush, open, put};
use onceward_sqlite::{OpenError, Options, SqliteStore};
use onceward_testkit::sample;
use rusqlite::Connection;

#[track_caller]
fn refused(path: &Path) -> OpenError {
    SqliteStore::open(path, Options::default()).unwrap_err()
}

#[track_caller]
fn refused_path(path: &Path, problem: &str) {
    let error = refused(path);
    let text = error.to_string();
    assert!(matches!(error, OpenError::Path { .. }), "{text}");
    assert!(text.contains(problem) && text.contains(&format!("{path:?}")), "{text}");
}

#[test]
fn a_path_that_cannot_hold_a_store_is_refused_with_its_name_and_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    refused_path(Path::new(""), "empty");
    refused_path(Path::new(":memory:"), "not durable");
    refused_path(directory.path(), "directory");
    refused_path(&directory.path().join("missing/onceward.db"), "create the directory");
    refused_path(Path::new("/"), "directory");
}

#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_cannot_be_written_and_a_symlink_to_nothing_are_refused() {
    // Even the superuser cannot create a file there.
    refused_path(Path::new("/proc/onceward.db"), "the right to write");
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link.db");
    std::os::unix::fs::symlink(directory.path().join("nowhere/x.db"), &link).unwrap();
    refused_path(&link, "symlink to nothing");
}

#[test]
fn a_setting_that_makes_no_sense_is_refused_with_its_value_and_the_rule() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let default = Options::default;
    let nonsense = [
        ("queue_limit = 0", Options { queue_limit: 0, ..default() }),
        ("queue_bytes = 0", Options { queue_bytes: 0, ..default() }),
        ("batch_limit = 0", Options { batch_limit: 0, ..default() }),
        ("batch_bytes = 0", Options { batch_bytes: 0, ..default() }),
        ("journal_bytes = 0", Options { journal_bytes: 0, ..default() }),
        ("readers = 0", Options { readers: 0, ..default() }),
        ("readers = 65", Options { readers: 65, ..default() }),
        ("cache_bytes = 1", Options { cache_bytes: 1, ..default() }),
        ("checkpoint_pages = 0", Options { checkpoint_pages: 0, ..default() }),
        ("lock_wait = 3601s", Options { lock_wait: Duration::from_secs(3601), ..default() }),
        ("fold_after = 3601s", Options { fold_after: Duration::from_secs(3601), ..default() }),
        ("page_bytes = 4095", Options { page_bytes: 4095, ..default() }),
        ("page_bytes = 131072", Options { page_bytes: 131_072, ..default() }),
    ];
    for (named, options) in nonsense {
        let error = SqliteStore::open(&path, options).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, OpenError::Option { .. }) && text.contains(named), "{text}");
        assert!(text.contains("must be"), "{text}");
        assert!(!path.exists(), "{named} was noticed too late");
    }
}

#[test]
fn a_file_of_another_program_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("notes.txt");
    std::fs::write(&text, "not a database, but long enough to be taken for one".repeat(100)).unwrap();
    let tables = directory.path().join("tables.db");
    Connection::open(&tables)
        .unwrap()
        .execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
        .unwrap();
    let marked = directory.path().join("marked.db");
    Connection::open(&marked)
        .unwrap()
        .execute_batch("PRAGMA application_id = 7; CREATE TABLE t (x)")
        .unwrap();
    for (path, found) in [
        (text, "not a SQLite database"),
        (tables, "tables and indexes of its own"),
        (marked, "application 0x7"),
    ] {
        let before = std::fs::read(&path).unwrap();
        let error = refused(&path);
        let words = error.to_string();
        assert!(matches!(error, OpenError::Foreign { .. }) && words.contains(found), "{words}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "{path:?} was changed");
    }
}

#[test]
fn a_file_of_a_newer_version_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    drop(open(&path));
    Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 5").unwrap();
    let error = refused(&path);
    assert!(matches!(error, OpenError::Newer { found: 5, known: 4, .. }), "{error}");
    Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 4").unwrap();
    drop(open(&path));
}

#[test]
fn a_file_of_the_first_schema_is_brought_up_to_date_and_keeps_its_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = open(&path);
    put(&store, sample::id(1), None, sample::record("k"));
    drop(store);
    let first = "DELETE FROM meta WHERE name LIKE 'journal%';
        DROP TABLE journal_key;
        DROP INDEX operations_expiry;
        CREATE INDEX operations_expiry ON operations (due_at >> 26) WHERE state IN ('completed', 'failed_retryable');
        PRAGMA user_version = 1";
    Connection::open(&path).unwrap().execute_batch(first).unwrap();
    drop(open(&path));
    let connection = Connection::open(&path).unwrap();
    let index = "SELECT sql FROM sqlite_schema WHERE name = 'operations_expiry'";
    let index: String = connection.query_row(index, [], |row| row.get(0)).unwrap();
    assert!(index.contains("due_at >> 30"), "{index}");
    let records = "SELECT count(*) FROM operations";
    assert_eq!(connection.query_row(records, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    assert_eq!(connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap(), 4);
    put(&open(&path), sample::id(2), None, sample::record("k"));
}

#[test]
fn a_store_tells_tools_what_it_is_and_how_it_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = open(&path);
    put(&store, sample::id(1), None, sample::record("k"));
    flush(&store);
    let other = Connection::open(&path).unwrap();
    let pragma = |name| other.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(pragma("application_id").to_be_bytes()[4..], *b"Once");
    assert_eq!(pragma("user_version"), 4);
    let mode: String = other.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    let row = "SELECT state, due_at, length(id) FROM operations";
    let row: (String, i64, i64) = other.query_row(row, [], |row| row.try_into()).unwrap();
    let lease = sample::START.after(Duration::from_secs(60)).as_micros();
    assert_eq!(row, ("in_progress".to_owned(), i64::try_from(lease).unwrap(), 16));
}

#[test]
fn a_file_that_is_no_lock_is_not_taken_for_one() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("Cargo.lock");
    std::fs::write(&other, "version = 4, and so on").unwrap();
    refused_path(&directory.path().join("Cargo"), "is not the lock of a store");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "version = 4, and so on");
}

#[test]
fn a_store_whose_tables_are_damaged_is_refused_when_it_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    drop(open(&path));
    Connection::open(&path).unwrap().execute_batch("DELETE FROM meta").unwrap();
    assert!(matches!(refused(&path), OpenError::Failed { .. }));
}

#[cfg(unix)]
#[test]
fn a_new_store_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("private.db");
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    let names =
        ["private.db", "private.db-wal", "private.db-shm", "private.db.journal-0", "private.db.journal-1"];
    for name in names {
        let mode = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    drop(store);
}
