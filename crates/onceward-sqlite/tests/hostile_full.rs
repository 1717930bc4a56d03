//! A disk with little space left. Run by hand, with ONCEWARD_TEST_SMALL_DISK naming a directory on a file system of 24 MiB.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

mod support;

use onceward::store::{Filter, Scan, Store, StoreError, Which};
use onceward_testkit::sample;
use support::{block_on, open, put};

#[test]
fn a_record_that_found_no_space_leaves_the_space_to_what_needs_less() {
    let Some(directory) = std::env::var_os("ONCEWARD_TEST_SMALL_DISK") else { return };
    let path = std::path::PathBuf::from(directory).join("onceward.db");
    let store = open(&path);
    put(&store, sample::id(1), None, sample::record("small"));
    let mut large = sample::record("large");
    large.subject.route = "r".repeat(60 << 20);
    let refused = block_on(store.swap(sample::id(2), None, large));
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    for part in [0, 1] {
        let file = path.with_extension(format!("db.journal-{part}"));
        println!("{file:?}: {} bytes", file.metadata().unwrap().len());
    }
    let all = || Scan { which: Which::Filter(Filter::default()), after: None, limit: 10 };
    let listed = block_on(store.scan(all())).map(|page| page.entries.len());
    put(&store, sample::id(3), None, sample::record("small"));
    let again = block_on(store.scan(all())).map(|page| page.entries.len());
    drop(store);
    let reopened = onceward_sqlite::SqliteStore::open(&path, onceward_sqlite::Options::default()).map(drop);
    assert_eq!((listed, again, reopened), (Ok(1), Ok(2), Ok(())));
}
