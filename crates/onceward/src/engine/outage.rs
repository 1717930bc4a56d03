//! Whether the store answers, so that an outage is told when it begins and when it ends, and not once for each request.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::RecordId;
use crate::store::StoreError;
use crate::time::{Instant, instant};

/// An outage that lasts is told of again this often, for operators who look at the end of a log.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// So many damaged records are told of once each. A store with more is lost as a whole.
const TOLD_MAX: usize = 1024;

/// What was asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Write,
}

/// What was last seen of the store.
#[derive(Default)]
pub(super) struct Outages {
    present: Mutex<Option<Outage>>,
    /// Whether there is one. Read after every call.
    away: AtomicBool,
    damaged: Mutex<HashSet<RecordId>>,
    /// Whether the store's clock is ahead.
    suspended: AtomicBool,
}

struct Outage {
    since: Instant,
    /// The last failure. What comes after it may only be a time in which nothing was asked.
    last: Instant,
    told: Instant,
    failed: u64,
    /// A disk that is full still answers reads, so a write that failed is answered by a write.
    call: Call,
}

impl Outages {
    // A panic while the lock is held leaves at worst a line untold.
    fn present(&self) -> MutexGuard<'_, Option<Outage>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came of a call. What the store says about a single record is no outage.
    pub(super) fn heard(&self, call: Call, error: Option<&StoreError>) {
        match error {
            None | Some(StoreError::Unreadable { .. } | StoreError::Refused { .. }) => self.answered(call),
            Some(
                error @ (StoreError::Unavailable { .. }
                | StoreError::Overloaded { .. }
                | StoreError::Ambiguous { .. }),
            ) => self.failed(call, error),
        }
    }

    /// A call failed, or its answer was lost.
    pub(super) fn failed(&self, call: Call, error: &StoreError) {
        let now = instant();
        let mut present = self.present();
        let first = present.is_none();
        let outage = present.get_or_insert(Outage { since: now, last: now, told: now, failed: 0, call });
        outage.failed += 1;
        outage.last = now;
        if call == Call::Write {
            outage.call = call;
        }
        if !first && now.saturating_duration_since(outage.told) < AGAIN_AFTER {
            return;
        }
        outage.told = now;
        let (failed, since) = (outage.failed, now.saturating_duration_since(outage.since));
        self.away.store(true, Ordering::Relaxed);
        drop(present);
        tracing::error!(
            cause = error.to_string(),
            failed_calls = failed,
            seconds = since.as_secs(),
            next = "see to the store; nothing is executed without a record, so clients may retry with the same key",
            "the store fails: requests with a key are refused until it answers"
        );
    }

    /// A call was answered.
    pub(super) fn answered(&self, call: Call) {
        if !self.away.load(Ordering::Relaxed) {
            return;
        }
        let mut present = self.present();
        let ended = present.take_if(|outage| call == Call::Write || outage.call == Call::Read);
        let Some(Outage { since, last, failed, .. }) = ended else { return };
        self.away.store(false, Ordering::Relaxed);
        drop(present);
        let seconds = last.saturating_duration_since(since).as_secs();
        tracing::info!(failed_calls = failed, seconds, "the store answers again");
    }

    /// Whether this record is seen to be unreadable for the first time.
    pub(super) fn is_first_sight(&self, id: RecordId) -> bool {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        damaged.len() < TOLD_MAX && damaged.insert(id)
    }

    /// How far the store's clock is ahead of elapsed time, where expiry is suspended because of it.
    pub(super) fn expiry(&self, ahead: Option<Duration>) {
        let before = self.suspended.swap(ahead.is_some(), Ordering::Relaxed);
        match ahead {
            Some(ahead) if !before => tracing::error!(
                ahead_seconds = ahead.as_secs(),
                next = "look at the clock of the store's machine: set it right if it is wrong, or restart if it was wrong before (in Rust: Engine::trust_clock)",
                "nothing expires: the store's clock has jumped ahead, and keys must not be forgotten because of it"
            ),
            None if before => {
                tracing::info!("records expire again: the store's clock agrees with elapsed time");
            }
            Some(_) | None => {}
        }
    }
}
