//! A store that an older version left, with a journal in the first format, whose frames have no tags.

use std::path::{Path, PathBuf};

use crate::support::files::{cut_off, journal, listed, slow};
use crate::support::forged::{self, BLOCK, Claim};
use crate::support::{block_on, open, put};
use onceward::store::Store;
use onceward::{RecordId, codec};
use onceward_sqlite::{OpenError, Options, SqliteStore};
use onceward_testkit::sample;
use rusqlite::Connection;

/// Makes a database what the older version left when it was killed after these generations were flushed.
fn downgrade(path: &Path, folded: u64, in_use: bool) {
    let connection = Connection::open(path).unwrap();
    let statements = format!(
        "DROP TABLE journal_key; DELETE FROM meta WHERE name = 'journal_opening'; PRAGMA user_version = 3;
         UPDATE meta SET value = {folded} WHERE name = 'journal_folded';
         UPDATE meta SET value = {} WHERE name = 'journal_in_use'",
        i64::from(in_use)
    );
    connection.execute_batch(&statements).unwrap();
}

fn old_store(directory: &Path) -> (PathBuf, u64) {
    let path = directory.join("onceward.db");
    put(&open(&path), sample::id(1), None, sample::record("k"));
    downgrade(&path, 4, true);
    let identity = forged::meta_value(&path, "journal_identity");
    for part in 0..2 {
        std::fs::write(journal(&path, part), "").unwrap();
    }
    (path, identity)
}

/// A record as the older version wrote it.
fn change(n: u64, version: u64) -> Vec<u8> {
    let id: RecordId = sample::id(n);
    let record = codec::encode(id, &sample::record("k")).unwrap();
    let mut bytes = vec![1];
    bytes.extend(id.as_bytes());
    bytes.extend(version.to_le_bytes());
    bytes.push(1);
    bytes.extend([sample::START.as_micros().to_le_bytes(); 2].concat());
    bytes.extend(u32::try_from(record.len()).unwrap().to_le_bytes());
    bytes.extend(record);
    bytes.push(0xff);
    bytes
}

fn frame(claim: Claim, changes: &[u8]) -> Vec<u8> {
    let mut frame = forged::first(claim, changes, u32::try_from(changes.len()).unwrap());
    frame.resize(frame.len().next_multiple_of(BLOCK), 0);
    frame
}

/// Frames of one generation, each with one record, from this sequence on.
fn generation(identity: u64, generation: u64, from: u64, ids: &[u64]) -> Vec<u8> {
    let frame = |(sequence, n): (u64, &u64)| {
        frame(Claim { identity, opening: 0, generation, sequence }, &change(*n, 100 + n))
    };
    (from..).zip(ids).flat_map(frame).collect()
}

fn is_there(store: &SqliteStore, n: u64) -> bool {
    block_on(store.load(sample::id(n))).unwrap().record.is_some()
}

#[track_caller]
fn refused(path: &Path, words: &[&str]) {
    let error = SqliteStore::open(path, Options::default()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, OpenError::Journal { .. }), "{text}");
    for word in words {
        assert!(text.contains(word), "{text}");
    }
    let connection = Connection::open(path).unwrap();
    let schema: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(schema, 3, "the database was left as it is");
}

#[test]
fn a_journal_of_the_older_version_is_recovered_and_continued_in_the_new_format() {
    let directory = tempfile::tempdir().unwrap();
    let (path, identity) = old_store(directory.path());
    let mut first = generation(identity, 5, 0, &[2, 3]);
    // An older generation after it, and an incomplete frame.
    first.extend(generation(identity, 3, 9, &[50]));
    std::fs::write(journal(&path, 1), first).unwrap();
    let mut second = generation(identity, 6, 2, &[4, 5]);
    let torn = second.len() - BLOCK;
    second[torn + 100] ^= 1;
    std::fs::write(journal(&path, 0), second).unwrap();
    let store = slow(&path);
    assert_eq!([1, 2, 3, 4, 5, 50].map(|n| is_there(&store, n)), [true, true, true, true, false, false]);
    let version = put(&store, sample::id(6), None, sample::record("k"));
    assert!(version.as_number() > 104, "no version comes back");
    let left = cut_off(&store, &directory.path().join("left"));
    let begins = |part| std::fs::read(journal(&left, part)).unwrap()[..8].to_vec();
    assert!([begins(0), begins(1)].contains(&b"OnceJrn2".to_vec()));
    let after = open(&left);
    assert_eq!(
        [1, 2, 3, 4, 5, 6, 50].map(|n| is_there(&after, n)),
        [true, true, true, true, false, true, false]
    );
    assert_eq!(listed(&after), 5);
}

#[test]
fn content_behind_the_frames_of_the_older_version_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, identity) = old_store(directory.path());
    let mut bytes = generation(identity, 5, 0, &[2]);
    for (n, claim) in (0..).zip([
        Claim { identity: identity ^ 1, opening: 0, generation: 5, sequence: 1 },
        Claim { identity, opening: 0, generation: 6, sequence: 1 },
        Claim { identity, opening: 0, generation: 3, sequence: 1 },
    ]) {
        bytes.extend(frame(claim, &change(60 + n, 900)));
        let mut huge = forged::first(claim, &[], u32::MAX);
        huge.resize(BLOCK, 0);
        bytes.extend(huge);
    }
    std::fs::write(journal(&path, 1), bytes).unwrap();
    let store = open(&path);
    assert!(is_there(&store, 2));
    assert_eq!(listed(&store), 2);
}

#[test]
fn a_damaged_or_foreign_journal_of_the_older_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (path, identity) = old_store(directory.path());
    let mut bytes = generation(identity, 5, 0, &[2, 3, 4]);
    bytes[BLOCK + 60] ^= 1;
    std::fs::write(journal(&path, 1), &bytes).unwrap();
    refused(&path, &["is damaged", "byte 4096", "check the disk", "executes again"]);
    std::fs::write(journal(&path, 1), generation(identity ^ 1, 5, 0, &[2])).unwrap();
    refused(&path, &["belongs to another database", "executes again"]);
    std::fs::write(journal(&path, 1), generation(identity, 9, 0, &[2])).unwrap();
    refused(&path, &["continues with generation 9", "ends with generation 4", "execute again"]);
    std::fs::write(journal(&path, 1), generation(identity, 6, 0, &[2])).unwrap();
    refused(&path, &["exchange the names"]);
    bytes[BLOCK + 60] ^= 1;
    std::fs::write(journal(&path, 1), &bytes).unwrap();
    assert_eq!(listed(&open(&path)), 4);
}

#[test]
fn a_sealed_journal_beside_a_backup_that_has_no_key_for_it_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = slow(&path);
    put(&store, sample::id(1), None, sample::record("k"));
    let left = cut_off(&store, &directory.path().join("left"));
    drop(store);
    downgrade(&left, 0, true);
    refused(&left, &["a key that the database does not have", "execute again"]);
}
