//! Completed records, kept in memory so that a replay costs no read.
//!
//! Only `completed` is cached: it is the one state that cannot change before it expires, so a stale copy is still true. For
//! every other state the store is asked.

use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use quick_cache::Weighter;
use quick_cache::sync::{Cache as BoundedMap, DefaultLifecycle};

use crate::RecordId;
use crate::event::Moment;
use crate::record::{Record, State, Subject};
use crate::time::{Instant, instant};

/// The bytes of a record besides its reply: its fields, the texts of its subject, and overhead of cache and allocator.
const RECORD_OVERHEAD_BYTES: u64 = (size_of::<Record>() + size_of::<Subject>() + 256) as u64;
/// Only for the initial capacity; the limit is in bytes.
const TYPICAL_RECORD_BYTES: u64 = 2048;

/// A map bounded by bytes.
pub(crate) struct Cache {
    entries: BoundedMap<RecordId, Cached, ByBytes, FixedState, DefaultLifecycle<RecordId, Cached>>,
    revalidate: Duration,
}

#[derive(Clone)]
struct Cached {
    record: Arc<Record>,
    believed_until: Instant,
}

#[derive(Clone)]
struct ByBytes;

/// The record without what a replay does not need and the weight does not count. Most records have nothing else.
fn answer_only(record: &Arc<Record>) -> Arc<Record> {
    if record.is_answer_only() { record.clone() } else { Arc::new(record.answer_only()) }
}

impl Weighter<RecordId, Cached> for ByBytes {
    fn weight(&self, _: &RecordId, cached: &Cached) -> u64 {
        let reply = match &cached.record.state {
            State::Completed { reply, .. } => reply.bytes() as u64,
            State::InProgress { .. }
            | State::FailedRetryable { .. }
            | State::Unknown { .. }
            | State::Expired { .. } => 0,
        };
        RECORD_OVERHEAD_BYTES + reply
    }
}

impl Cache {
    /// `seed` keys the hash, so that clients cannot choose keys that all fall into one slot.
    pub(crate) fn new(max_bytes: u64, revalidate: Duration, seed: u64) -> Self {
        let items = usize::try_from(max_bytes / TYPICAL_RECORD_BYTES).unwrap_or(usize::MAX).max(1);
        let hasher = FixedState::with_seed(seed);
        let entries = BoundedMap::with(items, max_bytes, ByBytes, hasher, DefaultLifecycle::default());
        Self { entries, revalidate }
    }

    /// The record, while it is believed and its answer still promised.
    pub(crate) fn get(&self, id: RecordId, at: Moment) -> Option<Arc<Record>> {
        let cached = self.entries.get(&id)?;
        let promised = cached.record.published_expiry().is_some_and(|expiry| expiry > at.now);
        (promised && cached.believed_until > instant()).then_some(cached.record)
    }

    /// Keeps a record if it is completed. Its time to revalidation begins when the store was asked, and not when it answered,
    /// because the record may have changed in between.
    pub(crate) fn keep(&self, id: RecordId, record: &Arc<Record>, asked: Instant) {
        self.keep_until(id, record, asked + self.revalidate);
    }

    /// Keeps a record that another engine read, for as long as its reading may be believed.
    pub(crate) fn keep_until(&self, id: RecordId, record: &Arc<Record>, believed_until: Instant) {
        if matches!(record.state, State::Completed { .. }) {
            self.entries.insert(id, Cached { record: answer_only(record), believed_until });
        }
    }
}
