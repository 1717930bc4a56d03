//! A second process at a store that is in use.

use std::io::{BufRead, BufReader, Read};

use onceward::store::Store;
use onceward_sqlite::{OpenError, Options, SqliteStore};
use onceward_testkit::sample;

use crate::support::{self, block_on, open, put};

#[test]
fn a_second_process_is_refused_with_the_firsts_number_and_a_killed_one_leaves_no_lock() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let mut holder = support::child("second_process::a_child_holds_the_store", &path).spawn().unwrap();
    let mut said = BufReader::new(holder.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("the store is open") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "the child ended early");
    }
    let error = SqliteStore::open(&path, Options::default()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, OpenError::InUse { holder: Some(pid), .. } if pid == holder.id()), "{text}");
    assert!(text.contains("onceward.db") && text.contains(&holder.id().to_string()), "{text}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(path.with_extension("db.lock").exists(), "the killed process left its lock file behind");
    assert!(block_on(open(&path).load(sample::id(7))).unwrap().record.is_some());
}

#[test]
fn a_child_holds_the_store() {
    let Some(path) = support::child_path() else { return };
    let store = open(&path);
    put(&store, sample::id(7), None, sample::record("held"));
    println!("the store is open");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
