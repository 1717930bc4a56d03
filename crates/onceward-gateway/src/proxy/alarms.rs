//! The alarms of those who wait for an answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward::time::{Alarm, Instant};

/// Alarms that nobody waits for at the moment. There are never more than requests that were in flight at once.
#[derive(Default)]
pub(super) struct Alarms {
    idle: Mutex<Vec<Alarm>>,
}

impl Alarms {
    fn idle(&self) -> MutexGuard<'_, Vec<Alarm>> {
        // A panic while the lock is held cannot leave half an alarm.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, deadline: Instant) -> Alarm {
        self.idle().pop().unwrap_or_else(|| Alarm::new(deadline))
    }

    /// Takes an alarm back that did not ring. Those of requests that were dropped are dropped with them.
    pub(super) fn give_back(&self, alarm: Alarm) {
        self.idle().push(alarm);
    }
}
