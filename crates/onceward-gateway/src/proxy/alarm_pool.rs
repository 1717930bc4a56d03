//! Timers for answers, used again because making one costs an allocation and a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward::plumbing::time::{Alarm, Instant};

/// Alarms that no request uses at the moment.
pub(super) struct AlarmPool {
    idle: Mutex<Vec<Alarm>>,
    most: usize,
}

impl AlarmPool {
    /// A pool that keeps at most `most` alarms.
    pub(super) fn new(most: usize) -> Self {
        Self { idle: Mutex::default(), most }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Alarm>> {
        // A panic while the lock is held cannot leave half an alarm.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An alarm for a request that must be answered before this deadline.
    pub(super) fn take(&self, deadline: Instant) -> Alarm {
        self.idle().pop().unwrap_or_else(|| Alarm::new(deadline))
    }

    /// Takes back an alarm that did not ring. A request that is dropped drops its alarm.
    pub(super) fn give_back(&self, alarm: Alarm) {
        let mut idle = self.idle();
        if idle.len() < self.most {
            idle.push(alarm);
        }
    }
}
