//! A hook that gives up the last handle, on whichever thread it is called.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

mod support;

use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use onceward_sqlite::{FatalHook, Options, SqliteStore};
use onceward_testkit::sample;
use support::put;

#[test]
fn a_hook_that_drops_the_last_handle_on_the_thread_that_folds_does_not_wait_for_itself() {
    let directory = tempfile::tempdir().unwrap();
    let (source, library) = (directory.path().join("shim.c"), directory.path().join("shim.so"));
    std::fs::write(&source, include_str!("support/disk.c")).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
    assert!(compiled.unwrap().success());
    let mut child =
        support::child("a_child_drops_its_store_in_the_hook", &directory.path().join("onceward.db"));
    child.env("LD_PRELOAD", &library).env("FAIL_SYNCS_WHILE", directory.path().join("failing"));
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the hook is through"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_child_drops_its_store_in_the_hook() {
    let Some(path) = support::child_path() else { return };
    let last: Arc<Mutex<Option<SqliteStore>>> = Arc::default();
    let (through, wait) = mpsc::sync_channel(1);
    let slot = last.clone();
    let on_fatal: FatalHook = Arc::new(move |_: &str| {
        println!("the hook is called on {:?}", std::thread::current().name());
        let store = slot.lock().unwrap().take();
        drop(store);
        through.send(()).unwrap();
    });
    let store = SqliteStore::open(path, Options { on_fatal, ..Options::default() }).unwrap();
    put(&store, sample::id(1), None, sample::record("k"));
    *last.lock().unwrap() = Some(store);
    // From now on the only sync is that of the fold.
    std::fs::File::create(std::env::var_os("FAIL_SYNCS_WHILE").unwrap()).unwrap();
    // Bounded only so that this can be seen to fail.
    match wait.recv_timeout(Duration::from_secs(20)) {
        Ok(()) => println!("the hook is through"),
        Err(_) => println!("the hook waits for ever"),
    }
    std::process::exit(0);
}
