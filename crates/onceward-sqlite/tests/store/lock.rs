//! The lock of a store within one process. Another process is in `tests/processes/second_process.rs`.

use std::path::Path;

use crate::support::{open, put};
use onceward_sqlite::{OpenError, Options, SqliteStore};
use onceward_testkit::sample;

fn refused(path: &Path) -> OpenError {
    SqliteStore::open(path, Options::default()).unwrap_err()
}

#[test]
fn a_second_open_in_this_process_is_refused_through_whichever_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = open(&path);
    let mut names = vec![path.clone(), directory.path().join(".").join("onceward.db")];
    #[cfg(unix)]
    {
        let link = directory.path().join("link.db");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        names.push(link);
    }
    for name in names {
        let error = refused(&name);
        let OpenError::InUse { path, holder } = &error else { panic!("{name:?}: {error}") };
        assert_eq!((path.as_path(), *holder), (store.path(), Some(std::process::id())));
    }
    // The refused opens released no lock: the store still works, and others are still refused.
    put(&store, sample::id(1), None, sample::record("k"));
    assert!(matches!(refused(&path), OpenError::InUse { .. }));
    drop(store);
    put(&open(&path), sample::id(2), None, sample::record("k"));
}
