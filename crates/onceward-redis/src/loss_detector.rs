//! Detects the loss of records: knows the store's generation, and the last version of each bucket.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::ACCEPT;
use crate::keys::BUCKETS;

pub(crate) struct LossDetector {
    state: Mutex<State>,
    /// The highest version that was seen in each bucket. A bucket with a lower one was rolled back.
    seen: [AtomicU64; BUCKETS],
}

#[derive(Debug, Clone)]
enum State {
    Intact { generation: Arc<str> },
    Lost { generation: Arc<str>, what: String, loss: Loss },
}

/// What was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// A marker. If it reappears with all known writes, nothing was lost.
    Marker,
    /// Writes, while the marker still exists. New writes of others do not restore them.
    Writes,
}

/// The content of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marker {
    pub generation: String,
    pub last: u64,
}

/// The result of comparing all markers with what is known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MarkerCheck {
    /// All known writes are there.
    Intact,
    /// An operator has accepted a loss, with this new generation.
    Accepted(String),
    /// Records or markers are missing.
    Lost(String),
    /// Known writes are missing, while the generation is unchanged.
    RolledBack(String),
}

impl LossDetector {
    pub(crate) fn new(generation: &str, markers: &[Marker]) -> Self {
        let detector = Self {
            state: Mutex::new(State::Intact { generation: generation.into() }),
            seen: [const { AtomicU64::new(0) }; BUCKETS],
        };
        detector.observe_all(markers);
        detector
    }

    /// The generation that scripts must find, or why no call is allowed.
    pub(crate) fn generation(&self) -> Result<Arc<str>, String> {
        match &*self.state() {
            State::Intact { generation } => Ok(generation.clone()),
            State::Lost { what, .. } => Err(format!("{what}; {ACCEPT}")),
        }
    }

    /// The last known generation, whether it is intact or lost.
    pub(crate) fn known_generation(&self) -> Arc<str> {
        match &*self.state() {
            State::Intact { generation } | State::Lost { generation, .. } => generation.clone(),
        }
    }

    pub(crate) fn last_seen(&self, bucket: u8) -> u64 {
        self.seen[usize::from(bucket)].load(Ordering::Acquire)
    }

    pub(crate) fn observe(&self, bucket: u8, last: u64) {
        self.seen[usize::from(bucket)].fetch_max(last, Ordering::AcqRel);
    }

    fn observe_all(&self, markers: &[Marker]) {
        for (bucket, marker) in (0..=u8::MAX).zip(markers) {
            self.observe(bucket, marker.last);
        }
    }

    /// Refuses all calls from now on. Returns whether the loss is new.
    pub(crate) fn set_lost(&self, what: &str, loss: Loss) -> bool {
        let mut state = self.state();
        let (generation, before) = match &*state {
            State::Intact { generation } => (generation.clone(), None),
            State::Lost { generation, loss, .. } => (generation.clone(), Some(*loss)),
        };
        // Lost writes stay lost, whatever is found later.
        let loss = if before == Some(Loss::Writes) { Loss::Writes } else { loss };
        *state = State::Lost { generation, what: what.to_owned(), loss };
        before.is_none()
    }

    fn misses_writes(&self) -> bool {
        matches!(*self.state(), State::Lost { loss: Loss::Writes, .. })
    }

    /// The store is intact, with this generation.
    pub(crate) fn set_intact(&self, generation: &str, markers: &[Marker]) {
        self.observe_all(markers);
        *self.state() = State::Intact { generation: generation.into() };
    }

    /// Compares markers that were read after `seen` was recorded.
    pub(crate) fn check(&self, markers: &[Option<Marker>], seen: &[u64]) -> MarkerCheck {
        let known = self.known_generation();
        let there: Vec<&Marker> = markers.iter().flatten().collect();
        let missing = markers.len() - there.len();
        let [first, ..] = there.as_slice() else {
            return MarkerCheck::Lost(
                "all markers are missing: Redis was flushed or restarted without persistence".to_owned(),
            );
        };
        if missing > 0 {
            return MarkerCheck::Lost(format!(
                "{missing} of {} markers are missing: a node of Redis was flushed, or restarted without persistence",
                markers.len()
            ));
        }
        if there.iter().any(|marker| marker.generation != first.generation) {
            return MarkerCheck::Lost(
                "the markers disagree: a part of Redis was restored from another store, or a loss is being accepted at this moment"
                    .to_owned(),
            );
        }
        if first.generation != *known {
            return if first.generation.starts_with(ACCEPTED) {
                MarkerCheck::Accepted(first.generation.clone())
            } else {
                MarkerCheck::Lost(
                    "the markers belong to another generation: Redis was emptied and set up again, or writes were rolled back"
                        .to_owned(),
                )
            };
        }
        let back = there.iter().zip(seen).filter(|(marker, seen)| marker.last < **seen).count();
        if back > 0 || self.misses_writes() {
            let back = back.max(1);
            return MarkerCheck::RolledBack(format!(
                "writes are missing in {back} of {} buckets: Redis was restored from a snapshot, crashed without `appendfsync always`, or failed over to a replica that was behind",
                markers.len()
            ));
        }
        MarkerCheck::Intact
    }

    // A panic while the lock is held leaves one complete state or the other.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The prefix of a generation's name: how it was created, and whether that is finished.
pub(crate) const FIRST: &str = "first-";
pub(crate) const ACCEPTED: &str = "accepted-";
pub(crate) const MAKING: &str = "making-";
/// The prefix that a gateway adds when it misses writes, so that all others stop too.
pub(crate) const ROLLED_BACK: &str = "rolled-back-";

#[cfg(test)]
mod tests {
    use super::*;

    fn all(generation: &str, last: u64) -> Vec<Marker> {
        vec![Marker { generation: generation.to_owned(), last }; BUCKETS]
    }

    fn checked(detector: &LossDetector, markers: Vec<Marker>) -> MarkerCheck {
        let seen: Vec<_> = (0..=u8::MAX).map(|bucket| detector.last_seen(bucket)).collect();
        detector.check(&markers.into_iter().map(Some).collect::<Vec<_>>(), &seen)
    }

    #[test]
    fn a_loss_is_detected_and_only_an_operator_can_accept_it() {
        let detector = LossDetector::new("first-a", &all("first-a", 10));
        assert_eq!(checked(&detector, all("first-a", 10)), MarkerCheck::Intact);
        assert_eq!(checked(&detector, all("first-a", 11)), MarkerCheck::Intact);
        assert!(
            matches!(checked(&detector, all("first-b", 99)), MarkerCheck::Lost(_)),
            "set up again by another process"
        );
        assert_eq!(checked(&detector, all("accepted-c", 99)), MarkerCheck::Accepted("accepted-c".to_owned()));
        assert!(matches!(checked(&detector, all("making-accepted-c", 99)), MarkerCheck::Lost(_)));
        detector.observe(7, 11);
        assert!(matches!(checked(&detector, all("first-a", 10)), MarkerCheck::RolledBack(_)));
        let mut some: Vec<_> = all("first-a", 11).into_iter().map(Some).collect();
        some[200] = None;
        assert!(matches!(detector.check(&some, &[0; BUCKETS]), MarkerCheck::Lost(_)));
        assert!(matches!(detector.check(&vec![None; BUCKETS], &[0; BUCKETS]), MarkerCheck::Lost(_)));
    }

    #[test]
    fn after_a_loss_nothing_is_served_until_the_store_is_intact_again() {
        let detector = LossDetector::new("first-a", &all("first-a", 10));
        assert!(detector.set_lost("gone", Loss::Marker));
        assert!(!detector.set_lost("gone", Loss::Marker), "the second time is not new");
        assert!(detector.generation().unwrap_err().contains("accept-loss"));
        detector.set_intact("accepted-b", &all("accepted-b", 20));
        assert_eq!(&*detector.generation().unwrap(), "accepted-b");
        assert_eq!(detector.last_seen(0), 20);
    }

    #[test]
    fn lost_writes_are_not_restored_by_the_writes_of_others() {
        let detector = LossDetector::new("first-a", &all("first-a", 10));
        detector.set_lost("rolled back", Loss::Writes);
        detector.set_lost("unreachable meanwhile", Loss::Marker);
        assert!(matches!(checked(&detector, all("first-a", 99)), MarkerCheck::RolledBack(_)));
    }
}
