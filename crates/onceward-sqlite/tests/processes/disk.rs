//! A disk that fails: syncs that are not confirmed or do not end, and no space left.
//!
//! A preloaded library replaces the C library's disk functions. It is compiled here, with the compiler that SQLite needs
//! too.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::support::{self, applied, block_on, open, put, submit};
use onceward::RecordId;
use onceward::store::{Due, Scan, Store, StoreError, Version, Which};
use onceward_sqlite::{FatalHook, Options, SqliteStore};
use onceward_testkit::{sample, wait};

/// The source of the preloaded library.
const SHIM: &str = include_str!("../support/disk.c");

fn compile_shim(directory: &Path) -> PathBuf {
    let (source, library) = (directory.join("shim.c"), directory.join("shim.so"));
    std::fs::write(&source, SHIM).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output();
    // Not skipped without a compiler: SQLite needs one too.
    let compiled = compiled.unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

#[test]
fn a_failed_sync_stops_the_process_and_loses_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let shim = compile_shim(directory.path());
    let mut most = 0;
    for (from, checkpoint_pages) in [(10, 16_000), (17, 16_000), (11, 8), (12, 8), (13, 8), (20, 8), (31, 8)]
    {
        let path = directory.path().join(format!("failing-{from}-{checkpoint_pages}.db"));
        let mut child = support::child("disk::a_child_writes_until_a_sync_fails", &path);
        child.env("LD_PRELOAD", &shim).env("FAIL_SYNCS_FROM", from.to_string());
        let output = child.env(PAGES, checkpoint_pages.to_string()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(SIGABRT), "sync {from}: {:?}: {errors}", output.status);
        assert!(errors.contains("did not confirm a write") && errors.contains("failing-"), "{errors}");

        let said = String::from_utf8_lossy(&output.stdout);
        let acknowledged: Vec<_> = said.lines().filter_map(parse).collect();
        // One caller writes one record at a time, so each answer had its own sync.
        assert!(acknowledged.len() < from, "{} answers from fewer than {from} syncs", acknowledged.len());
        most = most.max(acknowledged.len());
        let store = open(&path);
        for (id, version) in acknowledged {
            let found = block_on(store.load(id)).unwrap().record.map(|found| found.version);
            assert_eq!(found, Some(version), "sync {from}: {id} was acknowledged");
        }
    }
    assert!(most > 0, "no child lived to acknowledge anything");
}

/// A store with a short log that flushes its journal after every write, so that every kind of sync is among the first.
fn busy(checkpoint_pages: u32) -> Options {
    let options = Options { checkpoint_pages, ..Options::default() };
    let journal_bytes = if checkpoint_pages < 100 { 1 } else { options.journal_bytes };
    Options { journal_bytes, ..options }
}

const SIGABRT: i32 = 6;
const PAGES: &str = "ONCEWARD_TEST_PAGES";

fn parse(line: &str) -> Option<(RecordId, Version)> {
    let (id, version) = line.strip_prefix("acknowledged ")?.split_once(' ')?;
    Some((id.parse().ok()?, Version::from_number(version.parse().ok()?)))
}

#[test]
fn a_child_writes_until_a_sync_fails() {
    let Some(path) = support::child_path() else { return };
    let checkpoint_pages = std::env::var(PAGES).unwrap().parse().unwrap();
    let store = SqliteStore::open(path, busy(checkpoint_pages)).unwrap();
    for n in 0..1_000 {
        let version = put(&store, sample::id(n), None, sample::record("k"));
        println!("acknowledged {} {version}", sample::id(n));
    }
}

#[test]
fn a_hook_that_does_not_stop_the_process_leaves_a_store_that_refuses_everything() {
    let directory = tempfile::tempdir().unwrap();
    let shim = compile_shim(directory.path());
    for (from, checkpoint_pages) in [(10, 16_000), (11, 8), (12, 8)] {
        let path = directory.path().join(format!("hooked-{from}.db"));
        let mut child = support::child("disk::a_child_goes_on_after_a_failed_sync", &path);
        child.env("LD_PRELOAD", &shim).env("FAIL_SYNCS_FROM", from.to_string());
        let output = child.env(PAGES, checkpoint_pages.to_string()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "sync {from}: {:?}: {errors}", output.status);
        drop(open(&path));
    }
}

#[test]
fn a_child_goes_on_after_a_failed_sync() {
    let Some(path) = support::child_path() else { return };
    let checkpoint_pages = std::env::var(PAGES).unwrap().parse().unwrap();
    let fatal = Arc::new(Mutex::new(Vec::new()));
    let hook = fatal.clone();
    let on_fatal: FatalHook = Arc::new(move |message: &str| hook.lock().unwrap().push(message.to_owned()));
    let store = SqliteStore::open(path, Options { on_fatal, ..busy(checkpoint_pages) }).unwrap();
    let failed = (0..1_000)
        .map(|n| block_on(store.swap(sample::id(n), None, sample::record("k"))))
        .find_map(Result::err);
    assert!(
        matches!(failed, Some(StoreError::Ambiguous { .. } | StoreError::Unavailable { .. })),
        "{failed:?}"
    );
    block_on(store.close());
    let messages = fatal.lock().unwrap().clone();
    assert!(!messages.is_empty() && messages[0].contains("did not confirm a write"), "{messages:?}");
    let later = block_on(store.swap(sample::id(1), None, sample::record("k")));
    assert!(matches!(later, Err(StoreError::Unavailable { .. })), "{later:?}");
    assert!(matches!(block_on(store.load(sample::id(0))), Err(StoreError::Unavailable { .. })));
}

#[test]
fn a_full_disk_makes_the_store_unavailable_until_there_is_space_again() {
    let directory = tempfile::tempdir().unwrap();
    let shim = compile_shim(directory.path());
    let path = directory.path().join("onceward.db");
    let mut child = support::child("disk::a_child_meets_a_full_disk", &path);
    child.env("LD_PRELOAD", &shim).env("DISK_FULL_WHILE", directory.path().join("full"));
    let output = child.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("there was space again"), "{said}{errors}");
    let store = open(&path);
    for n in [1, 2, 3] {
        assert!(block_on(store.load(sample::id(n))).unwrap().record.is_some(), "{n} was acknowledged");
    }
}

#[test]
fn a_child_meets_a_full_disk() {
    let Some(path) = support::child_path() else { return };
    let full = PathBuf::from(std::env::var_os("DISK_FULL_WHILE").unwrap());
    let store = SqliteStore::open(path, busy(8)).unwrap();
    put(&store, sample::id(1), None, sample::record("before"));
    for _ in 0..20 {
        std::fs::File::create(&full).unwrap();
        let answer = block_on(store.swap(sample::id(2), None, sample::record("no space")));
        match &answer {
            Err(StoreError::Unavailable { reason }) => {
                assert!(reason.contains("is full") && reason.contains("onceward.db"), "{reason}");
            }
            other => panic!("a full disk got {other:?}"),
        }
        std::fs::remove_file(&full).unwrap();
        assert_eq!(block_on(store.load(sample::id(2))).unwrap().record, None, "nothing was written");
        let version = put(&store, sample::id(3), None, sample::record("after"));
        assert_eq!(block_on(store.forget(vec![(sample::id(3), version)])), Ok(1));
    }
    applied(block_on(store.swap(sample::id(2), None, sample::record("again"))));
    applied(block_on(store.swap(sample::id(3), None, sample::record("again"))));
    println!("there was space again");
}

#[test]
fn what_a_killed_process_left_in_the_log_is_synced_before_it_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let shim = compile_shim(directory.path());
    let path = directory.path().join("onceward.db");
    let left = support::child("disk::a_child_leaves_its_log_behind", &path).output().unwrap();
    assert!(!left.status.success(), "it was to be killed");
    let mut reads = support::child("disk::a_child_opens_and_reads", &path);
    let reads = reads.env("LD_PRELOAD", &shim).env("FAIL_SYNCS_FROM", "1").output().unwrap();
    let said = String::from_utf8_lossy(&reads.stdout).into_owned();
    assert!(said.contains("refused"), "a log that cannot be synced was believed: {said}");
    // The disk works again: everything that was acknowledged is there.
    assert!(block_on(open(&path).load(sample::id(1))).unwrap().record.is_some());
}

#[test]
fn a_child_leaves_its_log_behind() {
    let Some(path) = support::child_path() else { return };
    let store = SqliteStore::open(path, Options::default()).unwrap();
    put(&store, sample::id(1), None, sample::record("k"));
    std::process::abort();
}

#[test]
fn a_child_opens_and_reads() {
    let Some(path) = support::child_path() else { return };
    match SqliteStore::open(path, Options::default()) {
        Err(error) => println!("refused: {error}"),
        Ok(store) => println!("read: {}", block_on(store.load(sample::id(1))).unwrap().record.is_some()),
    }
}

#[test]
fn a_record_that_found_no_space_leaves_the_space_to_what_needs_less() {
    let directory = tempfile::tempdir().unwrap();
    let shim = compile_shim(directory.path());
    let path = directory.path().join("onceward.db");
    let mut child = support::child("disk::a_child_writes_more_than_there_is_space_for", &path);
    let output =
        child.env("LD_PRELOAD", &shim).env("DISK_FULL_BEYOND", (4 << 20).to_string()).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("the small one was written"), "{said}{errors}");
}

#[test]
fn a_child_writes_more_than_there_is_space_for() {
    let Some(path) = support::child_path() else { return };
    let store = open(&path);
    put(&store, sample::id(1), None, sample::record("small"));
    let mut large = sample::record("large");
    std::sync::Arc::make_mut(&mut large.subject).route = "r".repeat(8 << 20);
    let refused = block_on(store.swap(sample::id(2), None, large));
    assert!(
        matches!(&refused, Err(StoreError::Unavailable { reason }) if reason.contains("is full")),
        "{refused:?}"
    );
    for part in [0, 1] {
        let length = path.with_extension(format!("db.journal-{part}")).metadata().unwrap().len();
        assert!(length <= 1 << 20, "the journal keeps {length} bytes");
    }
    put(&store, sample::id(3), None, sample::record("small"));
    println!("the small one was written");
}

#[test]
fn a_hook_that_drops_the_last_handle_on_the_flusher_thread_does_not_wait_for_itself() {
    let directory = tempfile::tempdir().unwrap();
    let shim = compile_shim(directory.path());
    let mut child =
        support::child("disk::a_child_drops_its_store_in_the_hook", &directory.path().join("onceward.db"));
    child.env("LD_PRELOAD", &shim).env("FAIL_SYNCS_WHILE", directory.path().join("failing"));
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the hook is through"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_child_drops_its_store_in_the_hook() {
    let Some(path) = support::child_path() else { return };
    let last: Arc<Mutex<Option<SqliteStore>>> = Arc::default();
    let (through, wait) = std::sync::mpsc::sync_channel(1);
    let slot = last.clone();
    let on_fatal: FatalHook = Arc::new(move |_: &str| {
        let store = slot.lock().unwrap().take();
        drop(store);
        through.send(()).unwrap();
    });
    let options =
        Options { on_fatal, fold_after: std::time::Duration::from_millis(10), ..Options::default() };
    let store = SqliteStore::open(path, options).unwrap();
    // From now on syncs fail; the first one belongs to a flush.
    put(&store, sample::id(1), None, sample::record("k"));
    *last.lock().unwrap() = Some(store);
    std::fs::File::create(std::env::var_os("FAIL_SYNCS_WHILE").unwrap()).unwrap();
    if let Some(store) = &*last.lock().unwrap() {
        drop(submit(&mut store.scan(Scan { which: Which::Due(Due::Leases), after: None, limit: 0 })));
    }
    wait.recv().unwrap();
    println!("the hook is through");
}

#[test]
fn swaps_that_were_given_up_while_a_sync_stalled_are_not_written_when_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let shim = compile_shim(directory.path());
    let mut child = support::child(
        "disk::a_child_gives_swaps_up_while_a_sync_stalls",
        &directory.path().join("onceward.db"),
    );
    child.env("LD_PRELOAD", &shim).env(STALL, directory.path().join("stalled"));
    let output = child.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("only awaited swaps were written"), "{said}{errors}");
}

const STALL: &str = "STALL_SYNCS_WHILE";

#[test]
fn a_child_gives_swaps_up_while_a_sync_stalls() {
    let Some(path) = support::child_path() else { return };
    let stalled = PathBuf::from(std::env::var_os(STALL).unwrap());
    // Nothing is flushed meanwhile: the flusher is another thread, with its own syncs.
    let fold_after = std::time::Duration::from_secs(3600);
    let store = SqliteStore::open(path, Options { fold_after, ..Options::default() }).unwrap();
    let settled = put(&store, sample::id(0), None, sample::record("settled"));
    std::fs::File::create(&stalled).unwrap();
    let claim = |n: u64| store.swap(sample::id(n), None, sample::record("claim"));
    let mut syncing = claim(1);
    assert!(submit(&mut syncing).is_pending());
    let reached = PathBuf::from(format!("{}.reached", stalled.display()));
    wait::until_blocking("the sync stalls", || wait::seen(reached.exists(), |&reached| reached));
    // Jobs that are queued behind the stalled sync, and not decided yet.
    let mut abandoned: Vec<_> = (2..300).map(claim).collect();
    abandoned.push(store.swap(sample::id(0), Some(settled), sample::record("abandoned renewal")));
    let mut awaited = claim(300);
    for call in abandoned.iter_mut().chain([&mut awaited]) {
        assert!(submit(call).is_pending());
    }
    drop((syncing, abandoned));
    std::fs::remove_file(&stalled).unwrap();
    applied(block_on(awaited));
    let written = |n: u64| block_on(store.load(sample::id(n))).unwrap().record.map(|found| found.version);
    assert!(written(1).is_some(), "the batch that was being synced is on the disk");
    assert_eq!(written(0), Some(settled), "an abandoned renewal was written");
    for n in 2..300 {
        assert_eq!(written(n), None, "the abandoned claim {n} was written");
    }
    println!("only awaited swaps were written");
}
