//! The alarms of those who wait for an answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward::plumbing::time::{Alarm, Instant};

/// Alarms that nobody waits for at the moment.
pub(super) struct Alarms {
    idle: Mutex<Vec<Alarm>>,
    most: usize,
}

impl Alarms {
    /// `most` alarms are kept.
    pub(super) fn new(most: usize) -> Self {
        Self { idle: Mutex::default(), most }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Alarm>> {
        // A panic while the lock is held cannot leave half an alarm.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, deadline: Instant) -> Alarm {
        self.idle().pop().unwrap_or_else(|| Alarm::new(deadline))
    }

    /// Takes an alarm back that did not ring. Those of requests that were dropped are dropped with them.
    pub(super) fn give_back(&self, alarm: Alarm) {
        let mut idle = self.idle();
        if idle.len() < self.most {
            idle.push(alarm);
        }
    }
}
