//! A process that is killed at any moment loses nothing that it acknowledged.
//!
//! This binary runs itself as a child that claims and completes operations, and prints a line for each acknowledged write.
//! The parent kills the child after a random number of lines and reads the file.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use onceward::RecordId;
use onceward::store::{Filter, Scan, Store, Version, Which};
use onceward_sqlite::{Options, SqliteStore};
use onceward_testkit::{Random, sample};
use support::{applied, block_on, open};

const KILLS: u64 = 50;
const CALLERS: u64 = 16;
/// No child lives long enough to print more lines than this.
const LINES_MAX: u64 = 400;
const ROUND: &str = "ONCEWARD_TEST_ROUND";

#[derive(Debug, Clone, PartialEq, Eq)]
struct Acknowledged {
    version: Version,
    state: String,
}

#[test]
fn nothing_that_was_acknowledged_is_lost_to_fifty_kills() {
    let seed = 0x5eed_0f50;
    println!("seed {seed:#x}");
    let mut random = Random::seeded(seed);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let mut all: BTreeMap<RecordId, Acknowledged> = BTreeMap::new();
    for round in 0..KILLS {
        let highest = all.values().map(|one| one.version).max();
        let lines = run_and_kill(&path, round, random.next() % LINES_MAX);
        for (id, one) in &lines {
            assert!(
                highest.is_none_or(|highest| one.version > highest),
                "round {round}: {one:?} of {id} came back"
            );
        }
        all.extend(lines.iter().cloned());
        check(&path, lines.iter().map(|(id, one)| (*id, one)), round);
    }
    println!("{} operations were acknowledged", all.len());
    assert!(all.len() > 100, "the children hardly lived");
    check(&path, all.iter().map(|(id, one)| (*id, one)), KILLS);
}

/// The last acknowledged write for each id, of a child that is killed after this many lines or more.
fn run_and_kill(path: &Path, round: u64, after: u64) -> Vec<(RecordId, Acknowledged)> {
    let mut child = support::child("a_child_claims_and_completes_until_it_is_killed", path)
        .env(ROUND, round.to_string())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut last = BTreeMap::new();
    let (mut line, mut read, mut killed) = (String::new(), 0, false);
    loop {
        // The lines that the child wrote before it died are still read, except an incomplete last one.
        line.clear();
        if output.read_line(&mut line).unwrap() == 0 || !line.ends_with('\n') {
            break;
        }
        if let Some((id, one)) = parse(&line) {
            last.insert(id, one);
            read += 1;
        }
        if read >= after && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    assert!(killed, "the child of round {round} ended by itself: {:?}", child.wait_with_output());
    child.wait().unwrap();
    last.into_iter().collect()
}

fn parse(line: &str) -> Option<(RecordId, Acknowledged)> {
    let mut words = line.trim_end().strip_prefix("acknowledged ")?.split(' ');
    let id = words.next()?.parse().ok()?;
    let version = Version::from_number(words.next()?.parse().ok()?);
    Some((id, Acknowledged { version, state: words.next()?.to_owned() }))
}

fn check<'a>(path: &Path, expected: impl Iterator<Item = (RecordId, &'a Acknowledged)>, round: u64) {
    let store = open(path);
    for (id, acknowledged) in expected {
        let seen = block_on(store.load(id)).unwrap();
        let found =
            seen.record.unwrap_or_else(|| panic!("round {round}: {id} is lost, which was {acknowledged:?}"));
        assert!(
            found.version >= acknowledged.version,
            "round {round}: {id} fell back behind {acknowledged:?}"
        );
        if found.version == acknowledged.version || acknowledged.state == "completed" {
            assert_eq!(found.record.state.name(), acknowledged.state, "round {round}: {id}");
        }
    }
    let mut after = None;
    loop {
        let scan = Scan { which: Which::Filter(Filter::default()), after, limit: 1_000 };
        let page = block_on(store.scan(scan)).unwrap();
        for entry in page.entries {
            assert!(entry.record.is_ok(), "round {round}: {} is half written: {:?}", entry.id, entry.record);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let other = rusqlite::Connection::open(path).unwrap();
    let verdict: String = other.pragma_query_value(None, "integrity_check", |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok", "round {round}");
}

#[test]
fn a_child_claims_and_completes_until_it_is_killed() {
    let Some(path) = support::child_path() else { return };
    let round: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
    // A short journal and a short log, so that some children are killed during a flush or a checkpoint.
    let options = Options { journal_bytes: 8 << 10, checkpoint_pages: 64, ..Options::default() };
    let store = SqliteStore::open(path, options).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = store.clone();
            runtime.spawn(async move {
                // Many more than the parent waits for.
                for n in 0..LINES_MAX {
                    let id = sample::id((round << 32) | (caller << 16) | n);
                    let version = applied(store.swap(id, None, sample::record("k")).await);
                    println!("acknowledged {id} {version} in_progress");
                    let completed = sample::in_state("k", sample::completed(sample::START));
                    let version = applied(store.swap(id, Some(version), completed).await);
                    println!("acknowledged {id} {version} completed");
                }
            })
        })
        .collect();
    for caller in callers {
        runtime.block_on(caller).unwrap();
    }
    // The parent must find the child alive.
    std::io::Read::read_to_end(&mut std::io::stdin(), &mut Vec::new()).unwrap();
}
