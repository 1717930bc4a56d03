//! Requests on routes that may go through unprotected while the store is unavailable.
//!
//! Without the store, only this process knows that a key is in use. So such a request is registered before its claim is sent.
//! While two requests under one key are under way, neither may go through unprotected, because the claim of the other one may
//! still reach the store and execute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;

use crate::RecordId;

/// The requests that are under way, by the id of their key.
pub(crate) struct PassThrough(Mutex<HashMap<RecordId, Requests, FixedState>>);

#[derive(Default)]
struct Requests {
    entered: usize,
    /// Whether one goes through unprotected. It is the only one then.
    unprotected: bool,
}

/// A request that is under way, until this is dropped.
pub(crate) struct Entry {
    all: Arc<PassThrough>,
    id: RecordId,
}

impl PassThrough {
    /// `seed` keys the hash, so that no client can choose keys that all fall into one slot.
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(HashMap::with_hasher(FixedState::with_seed(seed)))))
    }

    /// Registers a request before its claim is sent. `None` where another one goes through unprotected, because a claim could
    /// execute beside it.
    pub(crate) fn enter(self: &Arc<Self>, id: RecordId) -> Option<Entry> {
        let mut map = self.map();
        let requests = map.entry(id).or_default();
        if requests.unprotected {
            return None;
        }
        requests.entered += 1;
        Some(Entry { all: self.clone(), id })
    }

    // A panic while the lock is held cannot leave the map half changed.
    fn map(&self) -> MutexGuard<'_, HashMap<RecordId, Requests, FixedState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Whether the request may go through unprotected, which is while no other one under its key is under way. If it may,
    /// [`PassThrough::enter`] refuses others until it has ended.
    pub(crate) fn may_pass(&self) -> bool {
        let mut map = self.all.map();
        let Some(requests) = map.get_mut(&self.id) else { return false };
        requests.unprotected = requests.entered == 1;
        requests.unprotected
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut map = self.all.map();
        let Some(requests) = map.get_mut(&self.id) else { return };
        requests.entered -= 1;
        if requests.entered == 0 {
            map.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: RecordId = RecordId::from_bytes([7; 16]);

    #[test]
    fn a_request_goes_through_alone_or_not_at_all() {
        let all = PassThrough::new(1);
        let first = all.enter(ID).unwrap();
        let second = all.enter(ID).unwrap();
        assert!(!first.may_pass() && !second.may_pass());
        drop(first);
        assert!(second.may_pass());
        assert!(all.enter(ID).is_none());
        assert!(all.enter(RecordId::from_bytes([8; 16])).is_some());
        drop(second);
        assert!(all.enter(ID).is_some());
        assert!(all.map().is_empty(), "what has ended is forgotten");
    }
}
