//! Writes whose answer was lost.
//!
//! Such a write may stand on the primary alone: a backend that is ended while it waits for a synchronous standby has
//! committed already, and everybody sees its row. Whoever finds it and goes to work would do it a second time after a
//! failover. So it is remembered here, and before it is looked for, the standbys are waited for.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward::RecordId;

use crate::values::Id;

/// Beyond this many every record is doubted, which costs a commit for each load and nothing else.
const REMEMBERED_MAX: usize = 65_536;

/// The ids of lost writes that have not been looked for yet.
#[derive(Default)]
pub(crate) struct UnconfirmedWrites(Mutex<LostIds>);

#[derive(Default)]
struct LostIds {
    ids: HashSet<RecordId>,
    /// There were too many to be remembered.
    all: bool,
}

impl UnconfirmedWrites {
    // A panic while the lock is held cannot leave half an id.
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

    /// Which of these are in doubt, if any is.
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
