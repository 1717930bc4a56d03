//! Writes whose answer was lost.
//!
//! Such a write may exist on the primary alone: a backend that is terminated while it waits for a synchronous standby has
//! already committed, and its row is visible. An engine that finds the row and executes could execute again after a
//! failover. So these ids are remembered, and before one is read, the store waits until the standbys have the write.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward::RecordId;

use crate::values::Id;

/// Beyond this many, every id counts as unconfirmed, which costs a commit for each load.
const REMEMBERED_MAX: usize = 65_536;

/// The ids of lost writes that have not been confirmed.
#[derive(Default)]
pub(crate) struct UnconfirmedWrites(Mutex<LostIds>);

#[derive(Default)]
struct LostIds {
    ids: HashSet<RecordId>,
    /// There were too many ids to remember.
    all: bool,
}

impl UnconfirmedWrites {
    // A panic while the lock is held cannot leave a partial id.
    fn lost_ids(&self) -> MutexGuard<'_, LostIds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, lost: &[RecordId]) {
        if lost.is_empty() {
            return;
        }
        let mut lost_ids = self.lost_ids();
        lost_ids.ids.extend(lost);
        if lost_ids.ids.len() > REMEMBERED_MAX {
            *lost_ids = LostIds { ids: HashSet::new(), all: true };
        }
    }

    /// The unconfirmed ids among these, if there are any.
    pub(crate) fn among(&self, ids: &[Id]) -> Option<Vec<RecordId>> {
        let lost_ids = self.lost_ids();
        if lost_ids.ids.is_empty() && !lost_ids.all {
            return None;
        }
        let found: Vec<_> =
            ids.iter().map(|id| id.0).filter(|id| lost_ids.all || lost_ids.ids.contains(id)).collect();
        (!found.is_empty()).then_some(found)
    }

    pub(crate) fn remove(&self, found: &[RecordId]) {
        let mut lost_ids = self.lost_ids();
        for id in found {
            lost_ids.ids.remove(id);
        }
    }
}
