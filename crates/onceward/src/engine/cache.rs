//! Completed records, kept in memory so that a replay costs no read.
//!
//! Only `completed` is cached: it is the one state that cannot change before it expires, so a stale copy is still the
//! truth. Everything else is asked of the store.

use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use quick_cache::Weighter;
use quick_cache::sync::{Cache as Kept, DefaultLifecycle};

use crate::RecordId;
use crate::event::Moment;
use crate::record::{Record, State, Subject};
use crate::time::{Instant, instant};

/// What a record weighs beside its reply: itself, the texts of its subject, and the bookkeeping of cache and allocator.
const RECORD_OVERHEAD_BYTES: u64 = (size_of::<Record>() + size_of::<Subject>() + 256) as u64;
/// Only sizes the cache's first tables; the bytes are what bounds it.
const TYPICAL_RECORD_BYTES: u64 = 2048;

/// A bounded map, weighed by bytes.
pub(crate) struct Cache {
    kept: Kept<RecordId, Cached, Bytes, FixedState, DefaultLifecycle<RecordId, Cached>>,
    revalidate: Duration,
}

#[derive(Clone)]
struct Cached {
    record: Arc<Record>,
    believed_until: Instant,
}

#[derive(Clone)]
struct Bytes;

/// Only the answer is needed here; the rest of a record would not be weighed. Most records have nothing else.
fn bare(record: &Arc<Record>) -> Arc<Record> {
    if record.is_answer_only() { record.clone() } else { Arc::new(record.answer_only()) }
}

impl Weighter<RecordId, Cached> for Bytes {
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
    /// `seed` keys the hash, so that nobody can choose keys that all fall into one slot.
    pub(crate) fn new(max_bytes: u64, revalidate: Duration, seed: u64) -> Self {
        let items = usize::try_from(max_bytes / TYPICAL_RECORD_BYTES).unwrap_or(usize::MAX).max(1);
        let hasher = FixedState::with_seed(seed);
        Self { kept: Kept::with(items, max_bytes, Bytes, hasher, DefaultLifecycle::default()), revalidate }
    }

    /// The record, while it is believed and its answer still promised.
    pub(crate) fn get(&self, id: RecordId, at: Moment) -> Option<Arc<Record>> {
        let cached = self.kept.get(&id)?;
        let promised = cached.record.published_expiry().is_some_and(|expiry| expiry > at.now);
        (promised && cached.believed_until > instant()).then_some(cached.record)
    }

    /// Keeps a record if it is completed. It is believed from when the store was asked, not from when it answered: the
    /// record may have changed while the answer was on its way.
    pub(crate) fn keep(&self, id: RecordId, record: &Arc<Record>, asked: Instant) {
        self.keep_until(id, record, asked + self.revalidate);
    }

    /// Keeps a record that somebody else read, for as long as their reading may be believed.
    pub(crate) fn keep_until(&self, id: RecordId, record: &Arc<Record>, believed_until: Instant) {
        if matches!(record.state, State::Completed { .. }) {
            self.kept.insert(id, Cached { record: bare(record), believed_until });
        }
    }
}
