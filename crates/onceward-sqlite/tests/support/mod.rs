//! Shared helpers of the tests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    dead_code,
    reason = "a panic is how a test reports, and no test needs all of it"
)]

pub mod files;
pub mod forged;

use std::future::Future;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};

use onceward::store::{Due, Scan, Store, StoreError, StoreFuture, Swapped, Version, Which};
use onceward::{Record, RecordId, Timestamp, store::Clock};
use onceward_sqlite::{Options, SqliteStore};
use onceward_testkit::sample;

pub fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, Options::default()).unwrap()
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Writes a record that must be applied.
pub fn put(store: &SqliteStore, id: RecordId, expect: Option<Version>, record: Record) -> Version {
    applied(block_on(store.swap(id, expect, record)))
}

/// Flushes the journal into the database, as every list does.
pub fn flush(store: &SqliteStore) {
    block_on(store.scan(Scan { which: Which::Due(Due::Leases), after: None, limit: 0 })).unwrap();
}

#[track_caller]
pub fn applied(answer: Result<Swapped, StoreError>) -> Version {
    match answer {
        Ok(Swapped::Applied { version, .. }) => version,
        other => panic!("it was not applied: {other:?}"),
    }
}

/// Submits a call and leaves it pending. A write yields once before it waits, so it is polled twice.
pub fn submit<T>(call: &mut StoreFuture<'_, T>) -> Poll<Result<T, StoreError>> {
    let mut context = Context::from_waker(Waker::noop());
    match call.as_mut().poll(&mut context) {
        Poll::Pending => call.as_mut().poll(&mut context),
        ready @ Poll::Ready(_) => ready,
    }
}

/// A clock that blocks the writer, which reads it after every commit, until the test opens the gate.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    shut: bool,
    waiting: usize,
}

impl Gate {
    pub fn shut(&self) {
        self.state.lock().unwrap().shut = true;
    }

    pub fn open(&self) {
        self.state.lock().unwrap().shut = false;
        self.changed.notify_all();
    }

    /// Returns when the writer is blocked at the gate.
    pub fn wait_for_the_writer(&self) {
        let mut state = self.state.lock().unwrap();
        while state.waiting == 0 {
            state = self.changed.wait(state).unwrap();
        }
    }
}

impl Clock for Gate {
    fn now(&self) -> Timestamp {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        while state.shut {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
        sample::START
    }
}

/// A store whose writer has committed one record, `sample::id(0)`, and is blocked at the gate.
pub struct BlockedStore {
    pub store: SqliteStore,
    pub gate: Arc<Gate>,
}

pub fn blocked_store(path: &Path, options: Options) -> BlockedStore {
    let gate = Arc::new(Gate::default());
    let store = SqliteStore::open(path, Options { clock: gate.clone(), ..options }).unwrap();
    gate.shut();
    let mut first = store.swap(sample::id(0), None, sample::record("first"));
    assert!(submit(&mut first).is_pending());
    gate.wait_for_the_writer();
    drop(first);
    BlockedStore { store, gate }
}

/// This test program as a child process that runs one test, named with its module.
pub fn child(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

const CHILD: &str = "ONCEWARD_TEST_CHILD";

/// The file that a child uses; `None` in a parent.
pub fn child_path() -> Option<std::path::PathBuf> {
    std::env::var_os(CHILD).map(Into::into)
}
