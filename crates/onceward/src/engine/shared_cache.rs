//! A cache of completed records that several engines share, in front of the store.
//!
//! An engine asks the shared cache after its own memory and before it claims. An entry carries the store's time at which it
//! was read, and is believed for as long as if this engine had read it then. So a record is believed for
//! [`Limits::cache_revalidate`](crate::Limits::cache_revalidate) altogether, however many caches it passes. An entry that is
//! late, damaged, old, of another id or not completed is a miss, and a miss costs one call of the store.

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

/// A key-value cache that several engines can reach. It may lose entries at any time.
///
/// Entries hold stored answers, with their headers and bodies. Read access to the cache is access to those answers, and write
/// access allows to forge them, so protect it like the store.
pub trait SharedCache: Send + Sync + 'static {
    /// The entry that was last put under this id, if it is still there.
    fn get(&self, id: RecordId) -> CacheFuture<'_, Option<Vec<u8>>>;

    /// Puts an entry under this id. It is of no use after `keep`.
    fn put(&self, id: RecordId, entry: Vec<u8>, keep: Duration) -> CacheFuture<'_, ()>;
}

/// A shared cache could not be used. The store is asked instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the shared cache cannot be used, and the store is asked instead: {reason}")]
pub struct CacheError {
    /// What happened.
    pub reason: String,
}

/// How long a request waits for the cache. Stores are rarely slower than this, so a longer wait gains nothing.
const GET_PATIENCE: Duration = Duration::from_millis(20);
/// How long an entry may take to be put. No request waits for it.
const PUT_PATIENCE: Duration = Duration::from_secs(1);
/// How long the cache is not used after a failure. A dead cache then delays one request in a second by its patience.
const COOL_DOWN: Duration = Duration::from_secs(1);
/// Entries that may wait to be put. More are dropped, and offered again by the next replay.
const QUEUE_ENTRIES: usize = 1_024;
/// The bytes of all waiting entries.
const QUEUE_BYTES: usize = 16 << 20;
/// The number of concurrent puts.
const CONCURRENT_PUTS: usize = 32;

const FORMAT: u8 = 1;
/// Format, time of reading, and the store's first use.
const HEADER_FIELDS_BYTES: usize = 17;
/// With a checksum.
const HEADER_BYTES: usize = HEADER_FIELDS_BYTES + 4;

/// One engine's use of the shared cache.
pub(crate) struct SharedCacheClient {
    cache: Arc<dyn SharedCache>,
    queue: mpsc::Sender<Put>,
    waiting_bytes: Arc<AtomicUsize>,
    cool_down: Arc<CoolDown>,
    revalidate: Duration,
    /// When the store was first used. Two stores with the same settings give the same ids. If they share a cache by mistake,
    /// this keeps their entries apart.
    since: Timestamp,
}

struct Put {
    id: RecordId,
    entry: Vec<u8>,
}

/// Until when a cache that failed is not used.
#[derive(Default)]
struct CoolDown(Mutex<Option<Instant>>);

impl CoolDown {
    fn is_over(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none_or(|until| until <= instant())
    }

    fn begin(&self, reason: &dyn fmt::Display) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(instant() + COOL_DOWN);
        tracing::debug!(%reason, "the shared cache failed, and is not used for a while");
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
            cool_down: Arc::default(),
            revalidate,
            since,
        };
        tokio::spawn(fill(
            cache,
            waiting,
            shared.waiting_bytes.clone(),
            shared.cool_down.clone(),
            revalidate,
        ));
        shared
    }

    /// A completed record and when it was read from the store. `None` where the cache has none, fails or is slow.
    pub(crate) async fn get(&self, id: RecordId) -> Option<(Record, Timestamp)> {
        if !self.cool_down.is_over() {
            return None;
        }
        let answer = tokio::select! {
            biased;
            answer = self.cache.get(id) => answer,
            () = sleep(GET_PATIENCE) => Err(CacheError { reason: format!("no answer within {GET_PATIENCE:?}") }),
        };
        match answer {
            Ok(entry) => decode(id, self.since, &entry?),
            Err(error) => {
                self.cool_down.begin(&error);
                None
            }
        }
    }

    /// How much longer a record is believed that was read at `as_of`. `None` also for a time in the future: the store's clock was
    /// set back, and the record's age is not known.
    pub(crate) fn believed_for(&self, as_of: Timestamp, now: Timestamp) -> Option<Duration> {
        let left = as_of.after(self.revalidate).since(now);
        (as_of <= now && left > Duration::ZERO).then_some(left)
    }

    /// Offers a record that was read or written no earlier than at `as_of`.
    pub(crate) fn offer(&self, id: RecordId, record: &Record, as_of: Timestamp) {
        if !matches!(record.state, State::Completed { .. }) || !self.cool_down.is_over() {
            return;
        }
        let Some(entry) = encode(id, self.since, record, as_of) else { return };
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
    cool_down: Arc<CoolDown>,
    keep: Duration,
) {
    let mut batch = Vec::with_capacity(CONCURRENT_PUTS);
    while waiting.recv_many(&mut batch, CONCURRENT_PUTS).await > 0 {
        let puts = batch.drain(..).map(|Put { id, entry }| {
            let (cache, cool_down, waiting_bytes) = (&cache, &cool_down, &waiting_bytes);
            async move {
                let bytes = entry.len();
                if cool_down.is_over() {
                    let done = tokio::select! {
                        biased;
                        done = cache.put(id, entry, keep) => done,
                        () = sleep(PUT_PATIENCE) => {
                            Err(CacheError { reason: format!("nothing was taken within {PUT_PATIENCE:?}") })
                        }
                    };
                    if let Err(error) = done {
                        cool_down.begin(&error);
                    }
                }
                waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
        });
        join_all(puts).await;
    }
}

/// An entry: format, time of reading, the store's first use, a checksum of these and the id, and the record as stores encode it.
fn encode(id: RecordId, since: Timestamp, record: &Record, as_of: Timestamp) -> Option<Vec<u8>> {
    let encoded = codec::encode(id, &record.answer_only()).ok()?;
    let mut entry = Vec::with_capacity(HEADER_BYTES + encoded.len());
    entry.push(FORMAT);
    entry.extend(as_of.as_micros().to_be_bytes());
    entry.extend(since.as_micros().to_be_bytes());
    entry.extend(checksum(id, &entry).to_be_bytes());
    entry.extend(encoded);
    Some(entry)
}

fn decode(id: RecordId, since: Timestamp, entry: &[u8]) -> Option<(Record, Timestamp)> {
    let (header, encoded) = entry.split_at_checked(HEADER_BYTES)?;
    let (fields, sum) = header.split_at_checked(HEADER_FIELDS_BYTES)?;
    let (&[format], times) = fields.split_first_chunk()?;
    let (as_of, store) = times.split_first_chunk()?;
    if format != FORMAT
        || checksum(id, fields).to_be_bytes() != sum
        || *store != since.as_micros().to_be_bytes()
    {
        return None;
    }
    let as_of = Timestamp::from_micros(u64::from_be_bytes(*as_of));
    let record = codec::decode(id, encoded).ok()?;
    matches!(record.state, State::Completed { .. }).then_some((record, as_of))
}

fn checksum(id: RecordId, fields: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(id.as_bytes());
    hasher.update(fields);
    hasher.finalize()
}
