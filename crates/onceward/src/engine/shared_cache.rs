//! Completed records that several engines share, in front of the store and never in its place.
//!
//! An engine asks the shared cache after its own memory and before it claims. An entry carries the store's time at which
//! it was true, so that it is believed for as long as if this engine had read it then: however many caches a record passes,
//! it is believed for [`Limits::cache_revalidate`](crate::Limits::cache_revalidate) altogether. Whatever is late, broken,
//! old, of another id or not completed is a miss, and a miss costs one call of the store.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;

use crate::record::{Record, State};
use crate::time::{Instant, Timestamp, instant, sleep};
use crate::{RecordId, codec};

/// What a shared cache's methods return. Boxed, so that one engine serves whichever cache the configuration names.
pub type CacheFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, CacheError>> + Send + 'a>>;

/// A place for bytes that other engines can reach, and that may lose them at any time.
///
/// What is put there is what the store holds: answers, with their headers and bodies. Whoever can read the cache can read
/// them, and whoever can write to it can forge them: guard it as you guard the store.
pub trait SharedCache: Send + Sync + 'static {
    /// The bytes that were last put under this id, if they are still there.
    fn get(&self, id: RecordId) -> CacheFuture<'_, Option<Vec<u8>>>;

    /// Puts bytes there. After `keep` nobody wants them any more.
    fn put(&self, id: RecordId, entry: Vec<u8>, keep: Duration) -> CacheFuture<'_, ()>;
}

/// A shared cache could not be used. That costs speed, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the shared cache cannot be used, and the store is asked instead: {reason}")]
pub struct CacheError {
    /// What happened.
    pub reason: String,
}

/// How long a request waits for the cache. A store is hardly ever slower than this, so waiting longer gains nothing.
const GET_PATIENCE: Duration = Duration::from_millis(20);
/// How long an entry may take to be put there; nobody waits for it.
const PUT_PATIENCE: Duration = Duration::from_secs(1);
/// After a failure the cache is left alone for so long: a dead one then costs one request in a second its patience.
const COOL_DOWN: Duration = Duration::from_secs(1);
/// Entries that wait to be put there. Beyond, they are dropped: the next replay offers them again.
const QUEUE_ENTRIES: usize = 1_024;
/// Their bytes altogether.
const QUEUE_BYTES: usize = 16 << 20;
/// So many are put there at once.
const PUT_AT_ONCE: usize = 32;

const FORMAT: u8 = 1;
/// Format, time, store.
const TOLD_BYTES: usize = 17;
/// And their checksum.
const HEADER_BYTES: usize = TOLD_BYTES + 4;

/// The shared cache as one engine uses it.
pub(crate) struct SharedCacheClient {
    cache: Arc<dyn SharedCache>,
    queue: mpsc::Sender<Put>,
    waiting_bytes: Arc<AtomicUsize>,
    rest: Arc<Rest>,
    revalidate: Duration,
    /// When the store was first used. Two stores with the same settings give the same ids, and may share a cache by
    /// mistake: each must not answer for the other.
    since: Timestamp,
}

struct Put {
    id: RecordId,
    entry: Vec<u8>,
}

/// Until when a cache that failed is left alone.
#[derive(Default)]
struct Rest(Mutex<Option<Instant>>);

impl Rest {
    fn is_over(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none_or(|until| until <= instant())
    }

    fn begin(&self, reason: &dyn fmt::Display) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(instant() + COOL_DOWN);
        tracing::debug!(%reason, "the shared cache is left alone for a while");
    }
}

impl SharedCacheClient {
    /// Starts the task that fills the cache. It ends with the engine.
    pub(crate) fn start(cache: Arc<dyn SharedCache>, revalidate: Duration, since: Timestamp) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_ENTRIES);
        let shared = Self {
            cache: cache.clone(),
            queue,
            waiting_bytes: Arc::default(),
            rest: Arc::default(),
            revalidate,
            since,
        };
        tokio::spawn(fill(cache, waiting, shared.waiting_bytes.clone(), shared.rest.clone(), revalidate));
        shared
    }

    /// A completed record and when it was true, unless the cache has none, fails or is slow.
    pub(crate) async fn get(&self, id: RecordId) -> Option<(Record, Timestamp)> {
        if !self.rest.is_over() {
            return None;
        }
        let answer = tokio::select! {
            biased;
            answer = self.cache.get(id) => answer,
            () = sleep(GET_PATIENCE) => Err(CacheError { reason: format!("no answer within {GET_PATIENCE:?}") }),
        };
        match answer {
            Ok(entry) => read(id, self.since, &entry?),
            Err(error) => {
                self.rest.begin(&error);
                None
            }
        }
    }

    /// How much longer a record is believed that was true then, and never one from the future: the store's clock was set
    /// back, and nobody knows how old it is.
    pub(crate) fn believed_for(&self, as_of: Timestamp, now: Timestamp) -> Option<Duration> {
        let left = as_of.after(self.revalidate).since(now);
        (as_of <= now && left > Duration::ZERO).then_some(left)
    }

    /// Offers a record that the store showed, or took, no earlier than at `as_of`.
    pub(crate) fn offer(&self, id: RecordId, record: &Record, as_of: Timestamp) {
        if !matches!(record.state, State::Completed { .. }) || !self.rest.is_over() {
            return;
        }
        let Some(entry) = write(id, self.since, record, as_of) else { return };
        let bytes = entry.len();
        if self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > QUEUE_BYTES
            || self.queue.try_send(Put { id, entry }).is_err()
        {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

async fn fill(
    cache: Arc<dyn SharedCache>,
    mut waiting: mpsc::Receiver<Put>,
    waiting_bytes: Arc<AtomicUsize>,
    rest: Arc<Rest>,
    keep: Duration,
) {
    let mut some = Vec::with_capacity(PUT_AT_ONCE);
    while waiting.recv_many(&mut some, PUT_AT_ONCE).await > 0 {
        let puts = some.drain(..).map(|Put { id, entry }| {
            let (cache, rest, waiting_bytes) = (&cache, &rest, &waiting_bytes);
            async move {
                let bytes = entry.len();
                if rest.is_over() {
                    let done = tokio::select! {
                        biased;
                        done = cache.put(id, entry, keep) => done,
                        () = sleep(PUT_PATIENCE) => {
                            Err(CacheError { reason: format!("nothing was taken within {PUT_PATIENCE:?}") })
                        }
                    };
                    if let Err(error) = done {
                        rest.begin(&error);
                    }
                }
                waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
        });
        join_all(puts).await;
    }
}

/// An entry: format, time, store, a checksum of these and the id, and the record as the store has it, with its own.
fn write(id: RecordId, since: Timestamp, record: &Record, as_of: Timestamp) -> Option<Vec<u8>> {
    // Only the answer is needed. The store keeps the rest.
    let encoded = codec::encode(id, &record.answer_only()).ok()?;
    let mut entry = Vec::with_capacity(HEADER_BYTES + encoded.len());
    entry.push(FORMAT);
    entry.extend(as_of.as_micros().to_be_bytes());
    entry.extend(since.as_micros().to_be_bytes());
    entry.extend(checksum(id, &entry).to_be_bytes());
    entry.extend(encoded);
    Some(entry)
}

fn read(id: RecordId, since: Timestamp, entry: &[u8]) -> Option<(Record, Timestamp)> {
    let (header, encoded) = entry.split_at_checked(HEADER_BYTES)?;
    let (told, sum) = header.split_at_checked(TOLD_BYTES)?;
    let (&[format], times) = told.split_first_chunk()?;
    let (as_of, store) = times.split_first_chunk()?;
    if format != FORMAT
        || checksum(id, told).to_be_bytes() != sum
        || *store != since.as_micros().to_be_bytes()
    {
        return None;
    }
    let as_of = Timestamp::from_micros(u64::from_be_bytes(*as_of));
    let record = codec::decode(id, encoded).ok()?;
    matches!(record.state, State::Completed { .. }).then_some((record, as_of))
}

fn checksum(id: RecordId, told: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(id.as_bytes());
    hasher.update(told);
    hasher.finalize()
}
