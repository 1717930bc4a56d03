//! The journal: what a process that ended at any moment left in it, and what was done to its files since.
//!
//! A copy of the files of an open store, taken while nothing is being written, equals what a power cut leaves.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::files::{cut_off, journal, listed, slow};
use crate::support::{applied, block_on, flush, open, put};
use onceward::RecordId;
use onceward::store::{Filter, Scan, Store, Swapped, Version, Which};
use onceward_sqlite::{OpenError, Options, SqliteStore};
use onceward_testkit::{VirtualClock, sample};

fn version(store: &SqliteStore, id: RecordId) -> Option<Version> {
    block_on(store.load(id)).unwrap().record.map(|found| found.version)
}

#[track_caller]
fn refused(path: &Path, words: &[&str]) {
    let error = SqliteStore::open(path, Options::default()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, OpenError::Journal { .. }), "{text}");
    for word in words {
        assert!(text.contains(word), "{text}");
    }
}

/// A store that has put 1 to 3, completed 2 and forgotten 3, partly flushed into the database.
fn half_flushed(path: &Path) -> (SqliteStore, [Version; 2]) {
    let store = slow(path);
    let [first, second, third] = [1, 2, 3].map(|n| put(&store, sample::id(n), None, sample::record("k")));
    flush(&store);
    let second =
        put(&store, sample::id(2), Some(second), sample::in_state("k", sample::completed(sample::START)));
    assert_eq!(block_on(store.forget(vec![(sample::id(3), third), (sample::id(1), third)])), Ok(1));
    (store, [first, second])
}

#[test]
fn what_is_only_in_the_journal_is_loaded_and_claimed_and_forgotten_and_listed_like_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let (store, [first, second]) = half_flushed(&directory.path().join("onceward.db"));
    let found = || [1, 2, 3].map(|n| version(&store, sample::id(n)));
    assert_eq!(found(), [Some(first), Some(second), None]);
    match block_on(store.swap(sample::id(2), None, sample::record("again"))).unwrap() {
        Swapped::Conflict(seen) => assert_eq!(seen.record.unwrap().version, second),
        other => panic!("{other:?}"),
    }
    assert_eq!(listed(&store), 2);
    assert_eq!(found(), [Some(first), Some(second), None], "it is the same after a flush");
    let third = put(&store, sample::id(3), None, sample::record("anew"));
    assert_eq!(found(), [Some(first), Some(second), Some(third)]);
}

#[test]
fn a_power_cut_loses_nothing_whichever_part_is_in_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let (store, [first, second]) = half_flushed(&directory.path().join("onceward.db"));
    let left = cut_off(&store, &directory.path().join("left"));
    // Flushing the same changes again gives the same result.
    for _ in 0..2 {
        let after = open(&left);
        let found = [1, 2, 3].map(|n| version(&after, sample::id(n)));
        assert_eq!(found, [Some(first), Some(second), None]);
        assert_eq!(listed(&after), 2);
    }
    let fresh = put(&open(&left), sample::id(3), None, sample::record("anew"));
    assert!(fresh > second, "no version comes back");
}

#[test]
fn a_batch_that_was_cut_off_anywhere_is_as_if_it_had_never_been_and_those_before_it_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = slow(&path);
    let first = put(&store, sample::id(1), None, sample::record("first"));
    put(&store, sample::id(2), None, sample::record("second"));
    let left = cut_off(&store, &directory.path().join("left"));
    let part =
        (0..2).map(|part| journal(&left, part)).find(|file| file.metadata().unwrap().len() > 0).unwrap();
    let whole = std::fs::read(&part).unwrap();
    let clean = cut_off(&store, &directory.path().join("clean"));
    let last = 4096 + 80 + u32::from_le_bytes(whole[4096 + 40..4096 + 44].try_into().unwrap()) as usize;
    for kept in [0, 1, 43, 44, 79, 80, 100, last - 4096 - 1] {
        // Zeros, like a block that was never written, and a truncated file.
        for length in [whole.len(), 4096 + kept] {
            let mut torn = whole[..length].to_vec();
            torn[4096 + kept..].fill(0);
            for from in std::fs::read_dir(clean.parent().unwrap()).unwrap().map(Result::unwrap) {
                std::fs::copy(from.path(), left.parent().unwrap().join(from.file_name())).unwrap();
            }
            std::fs::write(&part, torn).unwrap();
            let after = open(&left);
            assert_eq!(version(&after, sample::id(1)), Some(first), "{kept} bytes were kept");
            assert_eq!(version(&after, sample::id(2)), None, "{kept} bytes were kept");
            put(&after, sample::id(2), None, sample::record("third"));
            drop(after);
            assert!(version(&open(&left), sample::id(2)).is_some());
        }
    }
}

#[test]
fn a_journal_in_which_a_confirmed_batch_has_changed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = slow(&path);
    for n in 1..=3 {
        put(&store, sample::id(n), None, sample::record("k"));
    }
    for at in [20, 60, 100, 4096 + 40] {
        let left = cut_off(&store, &directory.path().join(format!("left-{at}")));
        let part =
            (0..2).map(|part| journal(&left, part)).find(|file| file.metadata().unwrap().len() > 0).unwrap();
        let mut bytes = std::fs::read(&part).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&part, &bytes).unwrap();
        refused(&left, &["is damaged", "journal-", "check the disk"]);
        assert_eq!(std::fs::read(&part).unwrap(), bytes, "it was left as it is");
        bytes[at] ^= 1;
        std::fs::write(&part, &bytes).unwrap();
        assert!(version(&open(&left), sample::id(3)).is_some());
    }
}

#[test]
fn a_journal_beside_another_database_or_an_older_one_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = slow(&path);
    put(&store, sample::id(1), None, sample::record("k"));
    flush(&store);
    let old = cut_off(&store, &directory.path().join("old"));
    for n in 2..=4 {
        put(&store, sample::id(n), None, sample::record("k"));
        flush(&store);
    }
    put(&store, sample::id(5), None, sample::record("k"));
    let left = cut_off(&store, &directory.path().join("left"));
    for part in [0, 1] {
        std::fs::copy(journal(&left, part), journal(&old, part)).unwrap();
    }
    refused(&old, &["backup", "empty both files", "execute again"]);

    let other = directory.path().join("other/onceward.db");
    std::fs::create_dir(other.parent().unwrap()).unwrap();
    drop(open(&other));
    std::fs::copy(journal(&left, 0), journal(&other, 0)).unwrap();
    std::fs::copy(journal(&left, 1), journal(&other, 1)).unwrap();
    refused(&other, &["belongs to another database", "executes again"]);

    // A database that does not exist yet has no journal either.
    std::fs::remove_file(&other).unwrap();
    refused(&other, &["belongs to another database"]);

    // As the error text advises.
    for path in [old, other] {
        [0, 1].iter().for_each(|part| std::fs::write(journal(&path, *part), "").unwrap());
        drop(open(&path));
    }
}

#[test]
fn of_many_claims_of_one_key_during_continuous_flushes_one_wins() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { journal_bytes: 1, checkpoint_pages: 8, ..Options::default() };
    let store = SqliteStore::open(directory.path().join("onceward.db"), options).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let won = Arc::new(std::sync::Mutex::new(std::collections::BTreeMap::new()));
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let (store, won) = (store.clone(), won.clone());
            runtime.spawn(async move {
                for n in 0..300 {
                    let id = sample::id(n);
                    match store.swap(id, None, sample::record("k")).await.unwrap() {
                        Swapped::Applied { version, .. } => {
                            assert_eq!(
                                won.lock().unwrap().insert(id, caller),
                                None,
                                "{id} was claimed twice"
                            );
                            let completed = sample::in_state("k", sample::completed(sample::START));
                            applied(store.swap(id, Some(version), completed).await);
                        }
                        Swapped::Conflict(seen) => assert!(seen.record.is_some()),
                    }
                    assert!(store.load(id).await.unwrap().record.is_some(), "{id} was there and is not");
                }
            })
        })
        .collect();
    for caller in callers {
        runtime.block_on(caller).unwrap();
    }
    assert_eq!((won.lock().unwrap().len(), listed(&store)), (300, 300));
}

#[test]
fn the_last_batch_of_a_file_that_the_other_file_continues_was_confirmed_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let clock = Arc::new(VirtualClock::standing_at(sample::START));
    let fold_after = Duration::from_secs(3_600);
    let options = Options { clock, fold_after, lock_wait: Duration::ZERO, ..Options::default() };
    let store = SqliteStore::open(&path, options).unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for n in 1..=2 {
        put(&store, sample::id(n), None, sample::record("k"));
    }
    // The first file must be flushed, and cannot be.
    block_on(store.scan(Scan { which: Which::Filter(Filter::default()), after: None, limit: 1 }))
        .unwrap_err();
    put(&store, sample::id(3), None, sample::record("k"));
    let left = cut_off(&store, &directory.path().join("left"));
    other.execute_batch("ROLLBACK").unwrap();
    let first =
        (0..2).map(|part| journal(&left, part)).find(|file| std::fs::read(file).unwrap()[4096] != 0).unwrap();
    let mut bytes = std::fs::read(&first).unwrap();
    bytes[4096 + 60] ^= 1;
    std::fs::write(&first, &bytes).unwrap();
    refused(&left, &["is damaged", "check the disk"]);
    bytes[4096 + 60] ^= 1;
    std::fs::write(&first, &bytes).unwrap();
    assert_eq!(listed(&open(&left)), 3);
}

#[test]
fn a_copy_of_the_database_that_went_on_by_itself_does_not_take_the_others_journal() {
    let directory = tempfile::tempdir().unwrap();
    let store = slow(&directory.path().join("onceward.db"));
    put(&store, sample::id(1), None, sample::record("k"));
    flush(&store);
    // Both copies continue from here, so that their generations have the same numbers.
    let [one, two] = ["one", "two"].map(|name| {
        let path = cut_off(&store, &directory.path().join(name));
        let copy = slow(&path);
        put(&copy, sample::id(2), None, sample::record(name));
        cut_off(&copy, &directory.path().join(format!("{name}-left")))
    });
    for part in [0, 1] {
        std::fs::copy(journal(&one, part), journal(&two, part)).unwrap();
    }
    refused(&two, &["backup", "empty both files"]);
    assert_eq!(listed(&open(&one)), 2);
}

#[test]
fn files_whose_names_were_exchanged_are_refused_until_they_are_exchanged_back() {
    let directory = tempfile::tempdir().unwrap();
    let (store, [first, second]) = half_flushed(&directory.path().join("onceward.db"));
    let left = cut_off(&store, &directory.path().join("left"));
    let exchange = || {
        let between = left.with_extension("between");
        for (from, to) in [
            (journal(&left, 0), between.clone()),
            (journal(&left, 1), journal(&left, 0)),
            (between, journal(&left, 1)),
        ] {
            std::fs::rename(from, to).unwrap();
        }
    };
    exchange();
    refused(&left, &["exchange the names"]);
    exchange();
    let after = open(&left);
    assert_eq!([1, 2, 3].map(|n| version(&after, sample::id(n))), [Some(first), Some(second), None]);
}

#[test]
fn no_generation_is_given_twice_not_even_one_of_which_nothing_reached_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let mut path = directory.path().join("onceward.db");
    let mut before = 0;
    for opening in 0..4 {
        let store = slow(&path);
        put(&store, sample::id(1), None, sample::record("k"));
        path = cut_off(&store, &directory.path().join(opening.to_string()));
        let first = (0..2).filter_map(|part| {
            let bytes = std::fs::read(journal(&path, part)).unwrap();
            std::fs::write(journal(&path, part), "").unwrap();
            bytes.get(24..32).map(|generation| u64::from_le_bytes(generation.try_into().unwrap()))
        });
        let generation = first.max().unwrap();
        assert!(generation > before, "{generation} after {before}");
        before = generation;
    }
}
