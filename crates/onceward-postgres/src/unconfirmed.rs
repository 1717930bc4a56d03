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
pub(crate) struct Doubts(Mutex<Doubted>);

#[derive(Default)]
struct Doubted {
    ids: HashSet<RecordId>,
    /// There were too many to be remembered.
    all: bool,
}

impl Doubts {
    // A panic while the lock is held cannot leave half an id.
    fn doubted(&self) -> MutexGuard<'_, Doubted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn raise(&self, lost: &[RecordId]) {
        if lost.is_empty() {
            return;
        }
        let mut doubted = self.doubted();
        doubted.ids.extend(lost);
        if doubted.ids.len() > REMEMBERED_MAX {
            *doubted = Doubted { ids: HashSet::new(), all: true };
        }
    }

    /// Which of these are in doubt, if any is.
    pub(crate) fn among(&self, ids: &[Id]) -> Option<Vec<RecordId>> {
        let doubted = self.doubted();
        if doubted.ids.is_empty() && !doubted.all {
            return None;
        }
        let found: Vec<_> =
            ids.iter().map(|id| id.0).filter(|id| doubted.all || doubted.ids.contains(id)).collect();
        (!found.is_empty()).then_some(found)
    }

    pub(crate) fn settle(&self, found: &[RecordId]) {
        let mut doubted = self.doubted();
        for id in found {
            doubted.ids.remove(id);
        }
    }
}
