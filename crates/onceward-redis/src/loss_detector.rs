//! Whether the store may be believed: which generation of it is known, and how far each bucket had come.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::ACCEPT;
use crate::keys::BUCKETS;

pub(crate) struct Guard {
    state: Mutex<State>,
    /// The last version that each bucket was seen to have given. A bucket that has given fewer was rolled back.
    seen: [AtomicU64; BUCKETS],
}

#[derive(Debug, Clone)]
enum State {
    Whole { generation: Arc<str> },
    Lost { generation: Arc<str>, what: String, loss: Loss },
}

/// What is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// A marker. If it comes back with all writes that were known of, nothing was lost.
    Marker,
    /// Writes, under a marker that is still there. Others may write on top of them, and that does not bring them back.
    Writes,
}

/// What a marker is known to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marker {
    pub generation: String,
    pub last: u64,
}

/// What all markers together say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// All is there that was known to be there.
    Whole,
    /// An operator has accepted a loss, under this generation.
    Accepted(String),
    /// Something is gone.
    Lost(String),
    /// Writes are gone that were known of, while the marker is still the old one.
    RolledBack(String),
}

impl Guard {
    pub(crate) fn new(generation: &str, markers: &[Marker]) -> Self {
        let guard = Self {
            state: Mutex::new(State::Whole { generation: generation.into() }),
            seen: [const { AtomicU64::new(0) }; BUCKETS],
        };
        guard.learn(markers);
        guard
    }

    /// The generation that calls must find, or why there can be no call.
    pub(crate) fn generation(&self) -> Result<Arc<str>, String> {
        match &*self.state() {
            State::Whole { generation } => Ok(generation.clone()),
            State::Lost { what, .. } => Err(format!("{what}; {ACCEPT}")),
        }
    }

    /// The generation that was last believed, whether it still is or not.
    pub(crate) fn known(&self) -> Arc<str> {
        match &*self.state() {
            State::Whole { generation } | State::Lost { generation, .. } => generation.clone(),
        }
    }

    pub(crate) fn seen(&self, bucket: u8) -> u64 {
        self.seen[usize::from(bucket)].load(Ordering::Acquire)
    }

    pub(crate) fn saw(&self, bucket: u8, last: u64) {
        self.seen[usize::from(bucket)].fetch_max(last, Ordering::AcqRel);
    }

    fn learn(&self, markers: &[Marker]) {
        for (bucket, marker) in (0..=u8::MAX).zip(markers) {
            self.saw(bucket, marker.last);
        }
    }

    /// Nothing is served from now on. True where that is news.
    pub(crate) fn lose(&self, what: &str, loss: Loss) -> bool {
        let mut state = self.state();
        let (generation, before) = match &*state {
            State::Whole { generation } => (generation.clone(), None),
            State::Lost { generation, loss, .. } => (generation.clone(), Some(*loss)),
        };
        // Writes that are gone stay gone, whatever else is found out.
        let loss = if before == Some(Loss::Writes) { Loss::Writes } else { loss };
        *state = State::Lost { generation, what: what.to_owned(), loss };
        before.is_none()
    }

    fn misses_writes(&self) -> bool {
        matches!(*self.state(), State::Lost { loss: Loss::Writes, .. })
    }

    /// The store is whole under this generation.
    pub(crate) fn believe(&self, generation: &str, markers: &[Marker]) {
        self.learn(markers);
        *self.state() = State::Whole { generation: generation.into() };
    }

    /// Judges markers that were read after `seen` was noted.
    pub(crate) fn judge(&self, markers: &[Option<Marker>], seen: &[u64]) -> Sight {
        let known = self.known();
        let there: Vec<&Marker> = markers.iter().flatten().collect();
        let missing = markers.len() - there.len();
        let [first, ..] = there.as_slice() else {
            return Sight::Lost(
                "the marker is gone: Redis was flushed or restarted without persistence".to_owned(),
            );
        };
        if missing > 0 {
            return Sight::Lost(format!(
                "{missing} of {} markers are gone: a node of Redis was flushed, or restarted without persistence",
                markers.len()
            ));
        }
        if there.iter().any(|marker| marker.generation != first.generation) {
            return Sight::Lost(
                "the markers disagree: a part of Redis was restored from elsewhere, or a loss is being accepted just now"
                    .to_owned(),
            );
        }
        if first.generation != *known {
            return if first.generation.starts_with(ACCEPTED) {
                Sight::Accepted(first.generation.clone())
            } else {
                Sight::Lost(
                    "another marker stands there: Redis was emptied and set up anew, or writes were rolled back"
                        .to_owned(),
                )
            };
        }
        let back = there.iter().zip(seen).filter(|(marker, seen)| marker.last < **seen).count();
        if back > 0 || self.misses_writes() {
            let back = back.max(1);
            return Sight::RolledBack(format!(
                "writes are gone in {back} of {} buckets: Redis was restored from a snapshot, crashed without `appendfsync always`, or failed over to a replica that was behind",
                markers.len()
            ));
        }
        Sight::Whole
    }

    // A panic while the lock is held leaves one whole state or the other.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the name of a generation begins: by whom it was set up, and whether that is finished.
pub(crate) const FIRST: &str = "first-";
pub(crate) const ACCEPTED: &str = "accepted-";
pub(crate) const MAKING: &str = "making-";
/// What a gateway that misses writes puts in place of the generation, so that all others stop, too.
pub(crate) const ROLLED_BACK: &str = "rolled-back-";

#[cfg(test)]
mod tests {
    use super::*;

    fn all(generation: &str, last: u64) -> Vec<Marker> {
        vec![Marker { generation: generation.to_owned(), last }; BUCKETS]
    }

    fn judged(guard: &Guard, markers: Vec<Marker>) -> Sight {
        let seen: Vec<_> = (0..=u8::MAX).map(|bucket| guard.seen(bucket)).collect();
        guard.judge(&markers.into_iter().map(Some).collect::<Vec<_>>(), &seen)
    }

    #[test]
    fn what_is_gone_is_missed_and_only_an_operator_can_say_that_it_does_not_matter() {
        let guard = Guard::new("first-a", &all("first-a", 10));
        assert_eq!(judged(&guard, all("first-a", 10)), Sight::Whole);
        assert_eq!(judged(&guard, all("first-a", 11)), Sight::Whole);
        assert!(
            matches!(judged(&guard, all("first-b", 99)), Sight::Lost(_)),
            "set up anew by another process"
        );
        assert_eq!(judged(&guard, all("accepted-c", 99)), Sight::Accepted("accepted-c".to_owned()));
        assert!(matches!(judged(&guard, all("making-accepted-c", 99)), Sight::Lost(_)));
        guard.saw(7, 11);
        assert!(matches!(judged(&guard, all("first-a", 10)), Sight::RolledBack(_)));
        let mut some: Vec<_> = all("first-a", 11).into_iter().map(Some).collect();
        some[200] = None;
        assert!(matches!(guard.judge(&some, &[0; BUCKETS]), Sight::Lost(_)));
        assert!(matches!(guard.judge(&vec![None; BUCKETS], &[0; BUCKETS]), Sight::Lost(_)));
    }

    #[test]
    fn after_a_loss_nothing_is_served_until_something_is_believed_again() {
        let guard = Guard::new("first-a", &all("first-a", 10));
        assert!(guard.lose("gone", Loss::Marker));
        assert!(!guard.lose("gone", Loss::Marker), "the second time is no news");
        assert!(guard.generation().unwrap_err().contains("accept-loss"));
        guard.believe("accepted-b", &all("accepted-b", 20));
        assert_eq!(&*guard.generation().unwrap(), "accepted-b");
        assert_eq!(guard.seen(0), 20);
    }

    #[test]
    fn writes_that_are_gone_do_not_come_back_with_the_writes_of_others() {
        let guard = Guard::new("first-a", &all("first-a", 10));
        guard.lose("rolled back", Loss::Writes);
        guard.lose("unreachable meanwhile", Loss::Marker);
        assert!(matches!(judged(&guard, all("first-a", 99)), Sight::RolledBack(_)));
    }
}
