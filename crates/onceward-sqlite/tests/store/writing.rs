//! Batches, their limits, and which jobs fail together.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{BlockedStore, applied, block_on, blocked_store, open, put, submit};
use onceward::store::{Filter, Scan, Store, StoreError, Swapped, Which};
use onceward::{Timestamp, store::Clock};
use onceward_sqlite::{Options, SqliteStore};
use onceward_testkit::sample;
use rusqlite::Connection;

#[test]
fn a_queue_holds_as_many_as_its_limit_and_sheds_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { queue_limit: 2, ..Options::default() };
    let BlockedStore { store, gate } = blocked_store(&directory.path().join("onceward.db"), options);
    let mut waiting = [1, 2].map(|n| store.swap(sample::id(n), None, sample::record("waits")));
    assert!(waiting.iter_mut().all(|call| submit(call).is_pending()));
    let shed = block_on(store.swap(sample::id(3), None, sample::record("shed")));
    assert_eq!(shed, Err(StoreError::Overloaded { waiting: 2 }));
    gate.open();
    for call in waiting {
        applied(block_on(call));
    }
    assert_eq!(block_on(store.load(sample::id(3))).unwrap().record, None);
    put(&store, sample::id(3), None, sample::record("later"));
}

#[test]
fn what_waits_together_shares_one_commit_and_of_two_claims_in_it_the_first_wins() {
    let directory = tempfile::tempdir().unwrap();
    let BlockedStore { store, gate } =
        blocked_store(&directory.path().join("onceward.db"), Options::default());
    let id = sample::id(1);
    let mut calls = ["first", "second"].map(|tag| store.swap(id, None, sample::record(tag)));
    assert!(calls.iter_mut().all(|call| submit(call).is_pending()));
    let mut other = store.swap(sample::id(2), None, sample::record("other"));
    assert!(submit(&mut other).is_pending());
    gate.open();
    let [first, second] = calls.map(block_on);
    let version = applied(first);
    match second {
        Ok(Swapped::Conflict(seen)) => {
            let found = seen.record.unwrap();
            assert_eq!((found.version, found.record), (version, sample::record("first")));
        }
        answer => panic!("the second claim got {answer:?}"),
    }
    applied(block_on(other));
    let statistics = store.statistics();
    assert_eq!((statistics.batches, statistics.writes), (2, 4), "the gate's own record, then all the rest");
}

#[test]
fn a_list_is_no_batch() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("onceward.db"));
    let list = || Scan { which: Which::Filter(Filter::default()), after: None, limit: 10 };
    block_on(store.scan(list())).unwrap();
    put(&store, sample::id(1), None, sample::record("k"));
    block_on(store.scan(list())).unwrap();
    let statistics = store.statistics();
    assert_eq!((statistics.batches, statistics.writes), (1, 1));
}

#[test]
fn a_batch_is_bounded_in_rows_and_in_bytes() {
    for (options, batches) in [
        // The gate's own record, then two, two and one of five; or each alone.
        (Options { batch_limit: 2, ..Options::default() }, 4),
        (Options { batch_bytes: 1, ..Options::default() }, 6),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let BlockedStore { store, gate } = blocked_store(&directory.path().join("onceward.db"), options);
        let mut calls: Vec<_> =
            (1..=5).map(|n| store.swap(sample::id(n), None, sample::record("waits"))).collect();
        assert!(calls.iter_mut().all(|call| submit(call).is_pending()));
        gate.open();
        for call in calls {
            applied(block_on(call));
        }
        assert_eq!(store.statistics().batches, batches);
    }
}

#[test]
fn what_the_database_does_not_take_is_kept_and_read_and_lists_say_why_they_cannot_be_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = open(&path);
    // The engine makes no rows that cannot be stored, so a trigger refuses one of them.
    let trigger = format!(
        "CREATE TRIGGER dislike BEFORE INSERT ON operations WHEN new.id = x'{}'
         BEGIN SELECT RAISE(ABORT, 'disliked'); END",
        sample::id(2)
    );
    let other = Connection::open(&path).unwrap();
    other.execute_batch(&trigger).unwrap();
    let versions = [1, 2, 3].map(|n| put(&store, sample::id(n), None, sample::record("k")));
    let refused = block_on(store.scan(everything()));
    assert!(
        matches!(&refused, Err(StoreError::Unavailable { reason }) if reason.contains("disliked")),
        "{refused:?}"
    );
    for (n, version) in (1..).zip(versions) {
        assert_eq!(block_on(store.load(sample::id(n))).unwrap().record.unwrap().version, version);
        let again = block_on(store.swap(sample::id(n), None, sample::record("k"))).unwrap();
        assert!(matches!(again, Swapped::Conflict(_)), "{again:?}");
    }
    other.execute_batch("DROP TRIGGER dislike").unwrap();
    put(&store, sample::id(4), None, sample::record("k"));
    drop(store);
    let store = open(&path);
    assert_eq!(block_on(store.scan(everything())).unwrap().entries.len(), 4);
}

fn everything() -> Scan {
    Scan { which: Which::Filter(Filter::default()), after: None, limit: 1_000 }
}

#[test]
fn another_programs_write_lock_makes_the_store_unavailable_only_when_the_journal_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let options = Options { lock_wait: Duration::ZERO, journal_bytes: 1 << 14, ..Options::default() };
    let store = SqliteStore::open(&path, options).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let answers = (0..).map(|n| (n, block_on(store.swap(sample::id(n), None, sample::record("k")))));
    let (last, refused) = answers.take(10_000).find(|(_, answer)| answer.is_err()).unwrap();
    assert!(last > 10, "the journal took only {last}");
    assert!(
        matches!(&refused, Err(StoreError::Unavailable { reason }) if reason.contains("another program")),
        "{refused:?}"
    );
    assert_eq!(block_on(store.load(sample::id(last))).unwrap().record, None, "reads go on");
    assert!(block_on(store.load(sample::id(0))).unwrap().record.is_some(), "reads go on");
    other.execute_batch("ROLLBACK").unwrap();
    put(&store, sample::id(last), None, sample::record("k"));
    assert_eq!(block_on(store.scan(everything())).unwrap().entries.len(), 1 + usize::try_from(last).unwrap());
}

#[test]
fn a_writer_that_ended_leaves_no_caller_waiting() {
    struct Broken;
    impl Clock for Broken {
        fn now(&self) -> Timestamp {
            panic!("the clock fell off the wall")
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = SqliteStore::open(&path, Options { clock: Arc::new(Broken), ..Options::default() }).unwrap();
    let cut_off = block_on(store.swap(sample::id(1), None, sample::record("k")));
    assert!(matches!(cut_off, Err(StoreError::Ambiguous { .. })), "{cut_off:?}");
    block_on(store.close());
    let later = block_on(store.swap(sample::id(2), None, sample::record("k")));
    assert!(matches!(later, Err(StoreError::Unavailable { .. })), "{later:?}");
    let load = block_on(store.load(sample::id(1)));
    assert!(matches!(load, Err(StoreError::Unavailable { .. })), "{load:?}");
    drop(store);
    assert!(block_on(open(&path).load(sample::id(1))).unwrap().record.is_some(), "it had been committed");
}

#[test]
fn a_version_never_comes_back_after_the_record_was_forgotten_and_the_store_reopened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let mut given = Vec::new();
    for _ in 0..3 {
        let store = open(&path);
        for _ in 0..2 {
            let version = put(&store, sample::id(1), None, sample::record("k"));
            assert_eq!(block_on(store.forget(vec![(sample::id(1), version)])), Ok(1));
            given.push(version);
        }
    }
    assert!(given.is_sorted_by(|a, b| a < b), "{given:?}");
}

#[test]
fn what_waits_when_the_store_is_closed_is_still_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let BlockedStore { store, gate } = blocked_store(&path, Options { batch_limit: 2, ..Options::default() });
    let swap = |n| store.swap(sample::id(n), None, sample::record("waits"));
    let mut waiting: Vec<_> = (1..=9).map(swap).collect();
    assert!(waiting.iter_mut().all(|write| submit(write).is_pending()));
    gate.open();
    block_on(store.close());
    for write in waiting {
        assert!(matches!(block_on(write), Ok(Swapped::Applied { .. })));
    }
    drop(store);
    let store = open(&path);
    for n in 0..=9 {
        assert!(block_on(store.load(sample::id(n))).unwrap().record.is_some(), "{n} is missing");
    }
}

#[test]
fn a_closed_store_takes_nothing_more_and_leaves_an_empty_log_and_no_journal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = open(&path);
    put(&store, sample::id(1), None, sample::record("k"));
    block_on(store.close());
    let answer = block_on(store.swap(sample::id(2), None, sample::record("k")));
    assert!(
        matches!(&answer, Err(StoreError::Unavailable { reason }) if reason.contains("closed")),
        "{answer:?}"
    );
    assert_eq!(std::fs::metadata(path.with_extension("db-wal")).unwrap().len(), 0);
    for journal in ["db.journal-0", "db.journal-1"] {
        assert!(!path.with_extension(journal).exists(), "{journal}");
    }
    let rows =
        Connection::open(&path).unwrap().query_row("SELECT count(*) FROM operations", [], |row| row.get(0));
    assert_eq!(rows, Ok(1), "the database is all there is");
}

#[test]
fn a_sweep_of_many_is_counted_whole() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("onceward.db"));
    let mut records: Vec<_> =
        (0..300).map(|n| (sample::id(n), put(&store, sample::id(n), None, sample::record("k")))).collect();
    records.push((sample::id(300), records[0].1));
    assert_eq!(block_on(store.forget(records)), Ok(300));
    assert_eq!(block_on(store.load(sample::id(0))).unwrap().record, None);
}

#[test]
fn the_log_and_the_journal_stay_bounded_however_much_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let options = Options { checkpoint_pages: 16, journal_bytes: 1 << 14, ..Options::default() };
    let store = SqliteStore::open(&path, options).unwrap();
    let length = |extension| std::fs::metadata(path.with_extension(extension)).unwrap().len();
    for n in 0..1_000 {
        put(&store, sample::id(n), None, sample::record("k"));
        let pages = length("db-wal") / 4096;
        assert!(pages < 16 * 4 + 64, "{pages} pages after {n} writes");
        assert!(length("db.journal-0").max(length("db.journal-1")) <= 1 << 20, "after {n} writes");
    }
}

#[test]
fn a_record_that_is_too_large_is_refused_before_it_waits() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("onceward.db"));
    let mut record = sample::record("k");
    std::sync::Arc::make_mut(&mut record.subject).route = "r".repeat(65 << 20);
    let answer = block_on(store.swap(sample::id(1), None, record));
    assert!(
        matches!(&answer, Err(StoreError::Refused { reason }) if reason.contains("67108864")),
        "{answer:?}"
    );
}
