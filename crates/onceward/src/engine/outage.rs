//! Whether the store answers, so that an outage is logged when it begins and when it ends, and not for each request.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::RecordId;
use crate::store::StoreError;
use crate::time::{Instant, instant};

/// A long outage is logged again this often, for operators who read the end of a log.
const LOG_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// At most this many unreadable records are logged, once each. A store with more is damaged as a whole.
const UNREADABLE_MAX: usize = 1024;

/// The kind of a call of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Read,
    Write,
}

/// The current incidents of the store.
#[derive(Default)]
pub(super) struct Outages {
    current: Mutex<Option<Outage>>,
    /// Whether there is an outage. Read after every call, without the lock.
    is_away: AtomicBool,
    unreadable: Mutex<HashSet<RecordId>>,
    is_expiry_suspended: AtomicBool,
}

struct Outage {
    since: Instant,
    /// The last failure. The outage is reported to have ended here, because no call may have followed for a while.
    last: Instant,
    logged: Instant,
    failed: u64,
    /// The kind of call that must succeed to end the outage. A full disk still answers reads, so after a failed write it is a
    /// write.
    ends_with: Call,
}

impl Outages {
    // A panic while the lock is held loses a log line at worst.
    fn current(&self) -> MutexGuard<'_, Option<Outage>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the result of a call. An error about a single record is not an outage.
    pub(super) fn observe_call(&self, call: Call, error: Option<&StoreError>) {
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
        let mut current = self.current();
        let first = current.is_none();
        let outage =
            current.get_or_insert(Outage { since: now, last: now, logged: now, failed: 0, ends_with: call });
        outage.failed += 1;
        outage.last = now;
        if call == Call::Write {
            outage.ends_with = call;
        }
        if !first && now.saturating_duration_since(outage.logged) < LOG_AGAIN_AFTER {
            return;
        }
        outage.logged = now;
        let (failed, since) = (outage.failed, now.saturating_duration_since(outage.since));
        self.is_away.store(true, Ordering::Relaxed);
        drop(current);
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
        if !self.is_away.load(Ordering::Relaxed) {
            return;
        }
        let mut current = self.current();
        let ended = current.take_if(|outage| call == Call::Write || outage.ends_with == Call::Read);
        let Some(Outage { since, last, failed, .. }) = ended else { return };
        self.is_away.store(false, Ordering::Relaxed);
        drop(current);
        let seconds = last.saturating_duration_since(since).as_secs();
        tracing::info!(failed_calls = failed, seconds, "the store answers again");
    }

    /// Whether this unreadable record was not reported before.
    pub(super) fn is_first_report(&self, id: RecordId) -> bool {
        let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        unreadable.len() < UNREADABLE_MAX && unreadable.insert(id)
    }

    /// Takes in how far the store's clock is ahead of elapsed time, where expiry is suspended because of it.
    pub(super) fn observe_expiry(&self, ahead: Option<Duration>) {
        let before = self.is_expiry_suspended.swap(ahead.is_some(), Ordering::Relaxed);
        match ahead {
            Some(ahead) if !before => tracing::error!(
                ahead_seconds = ahead.as_secs(),
                next = "check the clock of the store's machine: set it right if it is wrong, or restart if it was wrong before (in Rust: Engine::trust_clock)",
                "nothing expires: the store's clock has jumped ahead, and keys must not be forgotten because of it"
            ),
            None if before => {
                tracing::info!("records expire again: the store's clock agrees with elapsed time");
            }
            Some(_) | None => {}
        }
    }
}
