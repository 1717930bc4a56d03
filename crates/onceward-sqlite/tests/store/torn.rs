//! Repeated crashes, each in the middle of a batch of which the disk wrote a random set of sectors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{block_on, flush, put};
use onceward::store::{Filter, Scan, Store, Version, Which};
use onceward_sqlite::{Options, SqliteStore};
use onceward_testkit::{Random, sample};

const FILES: [&str; 4] = ["", "-wal", ".journal-0", ".journal-1"];

fn slow(path: &Path) -> SqliteStore {
    let options = Options { fold_after: Duration::from_secs(3_600), ..Options::default() };
    SqliteStore::open(path, options).unwrap()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn bytes(path: &Path) -> [Option<Vec<u8>>; 4] {
    FILES.map(|suffix| std::fs::read(beside(path, suffix)).ok())
}

/// Restores files as a killed process left them. The index is in shared memory, which a crash empties.
fn put_back(path: &Path, left: [Option<Vec<u8>>; 4]) {
    for (suffix, left) in FILES.iter().zip(left) {
        let Some(left) = left else { continue };
        std::fs::write(beside(path, suffix), left).unwrap();
    }
    let index = beside(path, "-shm");
    if index.exists() {
        std::fs::remove_file(index).unwrap();
    }
}

/// A random set of sectors of the new bytes, and the old ones elsewhere; sometimes the file did not grow.
fn torn(before: &[u8], after: &[u8], random: &mut Random) -> Vec<u8> {
    let (few, length) =
        (1 + random.next() % 8, if random.next().is_multiple_of(4) { before.len() } else { after.len() });
    let mut mixed = after[..length].to_vec();
    for (n, sector) in mixed.chunks_mut(512).enumerate() {
        if random.next() % 8 < few {
            let old = before.get(n * 512..n * 512 + sector.len()).map(<[u8]>::to_vec);
            sector.copy_from_slice(&old.unwrap_or_else(|| vec![0; sector.len()]));
        }
    }
    mixed
}

#[test]
fn nothing_acknowledged_is_lost_to_crashes_in_a_row_that_tear_the_last_batch() {
    let (mut whole, mut none) = (0, 0);
    for seed in 0..3 {
        let mut random = Random::seeded(0xbad + seed);
        let directory = tempfile::tempdir().unwrap();
        let mut path = directory.path().join("0/onceward.db");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut stands: BTreeMap<u64, Version> = BTreeMap::new();
        let mut highest = Version::from_number(0);
        for round in 1..30 {
            let store = slow(&path);
            let step = |random: &mut Random, stands: &mut BTreeMap<u64, Version>, highest: &mut Version| {
                let n = random.next() % 12;
                let mut record = sample::record("k");
                std::sync::Arc::make_mut(&mut record.subject).route =
                    "r".repeat(usize::try_from(random.next() % 20_000).unwrap());
                match stands.get(&n).copied() {
                    Some(version) if random.next().is_multiple_of(3) => {
                        assert_eq!(block_on(store.forget(vec![(sample::id(n), version)])), Ok(1));
                        stands.remove(&n);
                    }
                    expect => {
                        let version = put(&store, sample::id(n), expect, record);
                        assert!(version > *highest, "{version} after {highest}");
                        *highest = version;
                        stands.insert(n, version);
                    }
                }
                n
            };
            for _ in 0..random.next() % 6 {
                step(&mut random, &mut stands, &mut highest);
                if random.next().is_multiple_of(3) {
                    flush(&store);
                }
            }
            let (before, acknowledged, highest_before) = (bytes(store.path()), stands.clone(), highest);
            let in_doubt = step(&mut random, &mut stands, &mut highest);
            let after = bytes(store.path());
            drop(store);
            path = directory.path().join(format!("{round}/onceward.db"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            for ((suffix, old), new) in FILES.iter().zip(before).zip(after) {
                let (old, Some(new)) = (old.unwrap_or_default(), new) else { continue };
                std::fs::write(beside(&path, suffix), torn(&old, &new, &mut random)).unwrap();
            }
            // Some processes die again before they have written anything.
            for _ in 0..random.next() % 3 {
                let store = slow(&path);
                let left = bytes(store.path());
                drop(store);
                put_back(&path, left);
            }
            let store = slow(&path);
            for n in 0..12 {
                let found = block_on(store.load(sample::id(n))).unwrap().record.map(|found| found.version);
                let old = acknowledged.get(&n).copied();
                if n == in_doubt && found != old {
                    assert_eq!(found, stands.get(&n).copied(), "seed {seed}, round {round}");
                    whole += 1;
                    continue;
                }
                if n == in_doubt {
                    none += 1;
                    highest = highest_before;
                }
                assert_eq!(found, old, "seed {seed}, round {round}, {n}");
                match old {
                    Some(old) => drop(stands.insert(n, old)),
                    None => drop(stands.remove(&n)),
                }
            }
            let all = Scan { which: Which::Filter(Filter::default()), after: None, limit: 100 };
            assert_eq!(block_on(store.scan(all)).unwrap().entries.len(), stands.len());
            let left = bytes(store.path());
            drop(store);
            put_back(&path, left);
        }
    }
    println!("{whole} batches were whole, {none} were not");
    assert!(whole > 0 && none > 0);
}
