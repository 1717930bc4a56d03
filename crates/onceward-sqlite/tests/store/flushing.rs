//! A flush that stopped half-way, and what remains of it without the journal.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{BlockedStore, block_on, blocked_store, open, put, submit};
use onceward::Record;
use onceward::store::{Filter, Scan, Store, Swapped, Which};
use onceward_sqlite::{Options, SqliteStore};
use onceward_testkit::sample;
use rusqlite::Connection;

fn slow() -> Options {
    Options { fold_after: Duration::from_secs(3_600), ..Options::default() }
}

fn large(tag: &str) -> Record {
    let mut record = sample::record(tag);
    std::sync::Arc::make_mut(&mut record.subject).route = "r".repeat(600 << 10);
    record
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn copy(path: &Path, to: &Path, suffixes: &[&str]) -> PathBuf {
    std::fs::create_dir_all(to).unwrap();
    for suffix in suffixes {
        let from = beside(path, suffix);
        if from.exists() {
            std::fs::copy(&from, to.join(from.file_name().unwrap())).unwrap();
        }
    }
    to.join(path.file_name().unwrap())
}

fn dislike(path: &Path, n: u64) {
    let trigger = format!(
        "CREATE TRIGGER dislike BEFORE INSERT ON operations WHEN new.id = x'{}'
         BEGIN SELECT RAISE(ABORT, 'disliked'); END",
        sample::id(n)
    );
    Connection::open(path).unwrap().execute_batch(&trigger).unwrap();
}

fn like(path: &Path) {
    Connection::open(path).unwrap().execute_batch("DROP TRIGGER dislike").unwrap();
}

/// Two callers have seen one version; only one of them may win.
#[track_caller]
fn only_one_wins(store: &SqliteStore, n: u64) {
    let id = sample::id(n);
    let seen = block_on(store.load(id)).unwrap().record.unwrap().version;
    let fresh = put(store, id, Some(seen), sample::record("first"));
    let second = block_on(store.swap(id, Some(seen), sample::record("second"))).unwrap();
    assert!(fresh > seen, "{seen} was followed by {fresh}, and who had seen {seen} got {second:?}");
    assert!(matches!(second, Swapped::Conflict(_)));
}

#[test]
fn a_version_in_a_backup_that_was_made_in_the_middle_of_a_flush_is_not_given_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = SqliteStore::open(&path, slow()).unwrap();
    dislike(&path, 2);
    put(&store, sample::id(1), None, large("first"));
    put(&store, sample::id(2), None, large("second"));
    let all = Scan { which: Which::Filter(Filter::default()), after: None, limit: 10 };
    block_on(store.scan(all)).unwrap_err();
    // The first chunk is in the database. A backup through SQLite, or a copy without the journal, contains it.
    let backup = copy(&path, &directory.path().join("backup"), &["", "-wal"]);
    like(&backup);
    let refused = SqliteStore::open(&backup, slow()).unwrap_err().to_string();
    assert!(refused.contains("is missing") && refused.contains("make an empty file"), "{refused}");
    for suffix in [".journal-0", ".journal-1"] {
        std::fs::write(beside(&backup, suffix), "").unwrap();
    }
    only_one_wins(&open(&backup), 1);
}

#[test]
fn a_version_of_a_batch_that_was_lost_in_the_middle_of_a_recovery_is_not_given_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let BlockedStore { store, gate } = blocked_store(&path, slow());
    // Two claims in one batch, which was written and whose sync never returned.
    let mut calls = [1, 2].map(|n| store.swap(sample::id(n), None, large("k")));
    assert!(calls.iter_mut().all(|call| submit(call).is_pending()));
    gate.open();
    calls.into_iter().for_each(|call| drop(block_on(call).unwrap()));
    let left = copy(&path, &directory.path().join("left"), &["", "-wal", ".journal-0", ".journal-1"]);
    // The kernel still has the batch when the process is started again. The start stops after the first chunk.
    dislike(&left, 2);
    SqliteStore::open(&left, slow()).map(drop).unwrap_err();
    like(&left);
    // Then a power cut loses the batch.
    for suffix in [".journal-0", ".journal-1"] {
        let mut bytes = std::fs::read(beside(&left, suffix)).unwrap();
        if let Some(batch) = bytes.get_mut(4096..) {
            batch.fill(0);
        }
        std::fs::write(beside(&left, suffix), bytes).unwrap();
    }
    let store = open(&left);
    assert!(block_on(store.load(sample::id(0))).unwrap().record.is_some(), "it was acknowledged");
    only_one_wins(&store, 1);
}
