//! How many operations a second the SQLite store makes durable, against what the disk could do at all.
//!
//! An operation is two writes: a claim (nothing → in progress) and its completion (in progress → completed, with a reply
//! of some 500 bytes). The limit is one thread that appends the same bytes to a file and syncs once per batch, with
//! batches of the size that the store had on average in the same measurement: no store that promises as much can be
//! faster. Everything is measured in interleaved rounds, and the median counts.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use onceward::store::{Store, StoreError, Swapped, Version};
use onceward::{
    Record, RecordId, Reply, codec,
    plumbing::time,
    record::State,
    store::{Clock, SystemClock},
};
use onceward_sqlite::{Options as StoreOptions, SqliteStore};
use onceward_testkit::sample;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Keys in the store that is compared with an empty one.
    pub keys: u64,
    /// How often everything is measured.
    pub rounds: usize,
    /// How many callers write at a time.
    pub callers: Vec<u64>,
    /// How the stores are set up.
    pub store: StoreOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self { keys: 2_000_000, rounds: 7, callers: vec![1, 16, 64, 256], store: StoreOptions::default() }
    }
}

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures, and prints one table.
pub fn run(options: &Options) -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let full = SqliteStore::open(directory.path().join("full.db"), options.store.clone())?;
    let work = Arc::new(Work::default());
    let started = time::instant();
    runtime.block_on(preload(&full, &work, options.keys))?;
    report_size(&full, options.keys, started.elapsed())?;

    let mut rows: Vec<Row> = options.callers.iter().map(|&callers| Row::new(callers)).collect();
    for round in 0..options.rounds {
        for row in &mut rows {
            let path = directory.path().join("empty.db");
            let empty = SqliteStore::open(&path, options.store.clone())?;
            let mut measured = runtime.block_on(measure(&empty, &work, row.callers))?;
            drop(empty);
            remove(&path)?;
            let between = raw_limit(directory.path(), &measured)?;
            measured.limit = between;
            row.empty.push(measured);
            let mut measured = runtime.block_on(measure(&full, &work, row.callers))?;
            measured.limit = f64::midpoint(between, raw_limit(directory.path(), &measured)?);
            row.full.push(measured);
        }
        println!("round {} of {} done", round + 1, options.rounds);
    }
    print(&rows, options.keys);
    Ok(())
}

/// Makes operations that no two measurements share.
#[derive(Default)]
struct Work {
    next: AtomicU64,
}

impl Work {
    fn claim(&self) -> (RecordId, Record) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let now = SystemClock.now();
        let key = format!("{:08x}-6b1f-4d39-9c1e-{number:012x}", number >> 16);
        let state = State::InProgress { lease_until: now.after(Duration::from_secs(60)) };
        (sample::id(number), Record { created_at: now, ..sample::in_state(&key, state) })
    }

    fn completed(&self, id: RecordId, record: Record) -> Record {
        let now = SystemClock.now();
        // Expiries are spread over half an hour, as the machine does.
        let [a, b, ..] = *id.as_bytes();
        let spread = Duration::from_secs(1800).mul_f64(f64::from(u16::from_be_bytes([a, b])) / 65_536.0);
        let expires_at = now.after(Duration::from_secs(24 * 3600 + 1800) + spread);
        let reply = Arc::new(Reply::new(vec![b'r'; 500]).with_status(201));
        Record { state: State::Completed { reply, settled_at: now, expires_at }, ..record }
    }
}

/// Makes a store with so many completed operations in it.
pub fn preload_file(path: &Path, keys: u64) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new()?;
    let store = SqliteStore::open(path, Options::default().store)?;
    runtime.block_on(async {
        preload(&store, &Arc::default(), keys).await?;
        store.close().await;
        Ok(())
    })
}

async fn preload(store: &SqliteStore, work: &Arc<Work>, keys: u64) -> Result<(), StoreError> {
    // As many as share one commit.
    let tasks = 512;
    let spawn = |share: u64| {
        let (store, work) = (store.clone(), work.clone());
        tokio::spawn(async move {
            for _ in 0..share {
                let (id, claim) = work.claim();
                applied(store.swap(id, None, work.completed(id, claim)).await?)?;
            }
            Ok::<_, StoreError>(())
        })
    };
    let running: Vec<_> =
        (0..tasks).map(|task| spawn(keys / tasks + u64::from(task < keys % tasks))).collect();
    for task in running {
        task.await.map_err(|error| StoreError::Unavailable { reason: error.to_string() })??;
    }
    Ok(())
}

fn applied(swapped: Swapped) -> Result<Version, StoreError> {
    match swapped {
        Swapped::Applied { version, .. } => Ok(version),
        Swapped::Conflict(seen) => {
            Err(StoreError::Refused { reason: format!("two operations met: {seen:?}") })
        }
    }
}

/// One measurement of the store.
struct Measured {
    pairs_per_second: f64,
    average_batch: f64,
    /// Pairs a second that the disk could do at all, measured beside it.
    limit: f64,
    latency: Histogram<u64>,
}

/// So many operations one measurement takes: long enough for the log to be moved several times under load, and short
/// enough that a noisy neighbour spoils one of them and not all.
fn pairs_for(callers: u64) -> u64 {
    match callers {
        1 => 600,
        2..=31 => 8_000,
        _ => 24_000,
    }
}

async fn measure(store: &SqliteStore, work: &Arc<Work>, callers: u64) -> Result<Measured, Failure> {
    let share = pairs_for(callers) / callers;
    let before = store.statistics();
    let started = time::instant();
    let running: Vec<_> = (0..callers)
        .map(|_| {
            let (store, work) = (store.clone(), work.clone());
            tokio::spawn(async move {
                let mut latency = histogram();
                for _ in 0..share {
                    pair(&store, &work, &mut latency).await?;
                }
                Ok::<_, StoreError>(latency)
            })
        })
        .collect();
    let mut latency = histogram();
    for task in running {
        latency.add(task.await??)?;
    }
    let elapsed = started.elapsed().as_secs_f64();
    let after = store.statistics();
    Ok(Measured {
        pairs_per_second: (share * callers) as f64 / elapsed,
        average_batch: (after.writes - before.writes) as f64 / (after.batches - before.batches) as f64,
        limit: f64::NAN,
        latency,
    })
}

async fn pair(store: &SqliteStore, work: &Work, latency: &mut Histogram<u64>) -> Result<(), StoreError> {
    let (id, claim) = work.claim();
    let started = time::instant();
    let version = applied(store.swap(id, None, claim.clone()).await?)?;
    record(latency, started.elapsed());
    let completed = work.completed(id, claim);
    let started = time::instant();
    applied(store.swap(id, Some(version), completed).await?)?;
    record(latency, started.elapsed());
    Ok(())
}

/// Microseconds up to a minute, to three digits.
#[expect(clippy::expect_used, reason = "the bounds are constants that the histogram accepts")]
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("1 to a minute in three digits")
}

fn record(latency: &mut Histogram<u64>, took: Duration) {
    latency.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
}

/// Pairs a second that one thread can append and sync, in batches as large as the store's.
fn raw_limit(directory: &Path, measured: &Measured) -> Result<f64, Failure> {
    let work = Work::default();
    let (id, claim) = work.claim();
    let appends = [codec::encode(id, &claim)?, codec::encode(id, &work.completed(id, claim))?];
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a batch is a small positive number"
    )]
    let batch = measured.average_batch.round().max(1.0) as usize;
    // About half a second of it.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
    let batches = (measured.pairs_per_second * 2.0 / batch as f64).max(100.0) as usize;
    let path = directory.join("raw");
    let mut file = File::create(&path)?;
    let mut bytes = Vec::new();
    let started = time::instant();
    for number in 0..batches {
        bytes.clear();
        for append in 0..batch {
            bytes.extend_from_slice(&appends[(number * batch + append) % 2]);
        }
        file.write_all(&bytes)?;
        file.sync_data()?;
    }
    let elapsed = started.elapsed().as_secs_f64();
    file.rewind()?;
    std::fs::remove_file(path)?;
    Ok((batches * batch) as f64 / 2.0 / elapsed)
}

fn remove(store: &Path) -> std::io::Result<()> {
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let mut path = store.as_os_str().to_owned();
        path.push(suffix);
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn report_size(store: &SqliteStore, keys: u64, took: Duration) -> Result<(), Failure> {
    let bytes = std::fs::metadata(store.path())?.len();
    if let Some(each) = bytes.checked_div(keys) {
        let seconds = took.as_secs_f64();
        println!("{keys} keys preloaded in {seconds:.0} s: {} MiB, {each} bytes a key", bytes >> 20);
    }
    Ok(())
}

/// Everything that was measured with so many callers.
struct Row {
    callers: u64,
    empty: Vec<Measured>,
    full: Vec<Measured>,
}

impl Row {
    fn new(callers: u64) -> Self {
        Self { callers, empty: Vec::new(), full: Vec::new() }
    }
}

fn print(rows: &[Row], keys: u64) {
    println!(
        "\n| callers | keys | pairs/s | average batch | raw limit, pairs/s | ratio | against empty | p50 ms | p99 ms | p99.9 ms | max ms |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for row in rows {
        let against: Vec<f64> = row
            .full
            .iter()
            .zip(&row.empty)
            .map(|(full, empty)| full.pairs_per_second / empty.pairs_per_second)
            .collect();
        print_line(row.callers, 0, &row.empty, None);
        print_line(row.callers, keys, &row.full, Some(median(against)));
    }
}

fn print_line(callers: u64, keys: u64, all: &[Measured], against: Option<f64>) {
    let mut latency = histogram();
    for measured in all {
        // Both have the same bounds.
        latency.add(&measured.latency).unwrap_or_else(|error| println!("latencies left out: {error}"));
    }
    let ms = |quantile: f64| latency.value_at_quantile(quantile) as f64 / 1000.0;
    println!(
        "| {callers} | {keys} | {:.0} | {:.1} | {:.0} | {:.2} | {} | {:.2} | {:.2} | {:.2} | {:.2} |",
        median(all.iter().map(|measured| measured.pairs_per_second).collect()),
        median(all.iter().map(|measured| measured.average_batch).collect()),
        median(all.iter().map(|measured| measured.limit).collect()),
        median(all.iter().map(|measured| measured.pairs_per_second / measured.limit).collect()),
        against.map_or("1".to_owned(), |against| format!("{against:.2}")),
        ms(0.5),
        ms(0.99),
        ms(0.999),
        latency.max() as f64 / 1000.0,
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
