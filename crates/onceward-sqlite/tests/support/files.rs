//! The files of a store, and what a power cut leaves of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onceward::store::{Filter, Scan, Store, Which};
use onceward_sqlite::{Options, SqliteStore};
use onceward_testkit::{VirtualClock, sample};

use super::block_on;

/// A store that flushes its journal only on request.
pub fn slow(path: &Path) -> SqliteStore {
    let clock = Arc::new(VirtualClock::standing_at(sample::START));
    let options = Options { clock, fold_after: Duration::from_secs(3_600), ..Options::default() };
    SqliteStore::open(path, options).unwrap()
}

/// Copies what a power cut would leave of a store.
pub fn cut_off(store: &SqliteStore, to: &Path) -> PathBuf {
    std::fs::create_dir_all(to).unwrap();
    let name = |suffix: &str| {
        let mut name = store.path().as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    for suffix in ["", "-wal", ".journal-0", ".journal-1"] {
        let from = name(suffix);
        if from.exists() {
            std::fs::copy(&from, to.join(from.file_name().unwrap())).unwrap();
        }
    }
    to.join(store.path().file_name().unwrap())
}

pub fn journal(path: &Path, part: u8) -> PathBuf {
    path.with_extension(format!("db.journal-{part}"))
}

pub fn listed(store: &SqliteStore) -> usize {
    let scan = Scan { which: Which::Filter(Filter::default()), after: None, limit: 1_000 };
    block_on(store.scan(scan)).unwrap().entries.len()
}
