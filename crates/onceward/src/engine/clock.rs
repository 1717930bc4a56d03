//! The store's clock, as far as this process knows it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event::Moment;
use crate::time::{Instant, Timestamp, instant};

/// Further ahead than this, expiry no longer believes the store's clock: a clock that jumps a day would forget a day of
/// keys. Real clocks drift by less, and are corrected in smaller steps.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);
/// Every clock drifts a little: one part in a thousand is ten times worse than any that is sold.
const DRIFT_DIVISOR: u32 = 1000;

/// Every answer of the store carries its time; between two answers, elapsed time is added.
///
/// Decisions about a record always use the time that came with it. The estimate is used only for what is written about
/// a record that is believed absent or held, where a few milliseconds do not matter.
pub(crate) struct StoreClock(Mutex<Option<Sight>>);

#[derive(Clone, Copy)]
struct Sight {
    /// The last time that was told, and when.
    last: (Timestamp, Instant),
    /// The slowest that the store's clock was ever seen, against elapsed time.
    slowest: (Timestamp, Instant),
}

impl Sight {
    fn moment(&self, now: Timestamp, at: Instant) -> Moment {
        let elapsed = at.duration_since(self.slowest.1);
        let expected = self.slowest.0.after(elapsed);
        let trusted = expected.after(AHEAD_MAX + elapsed / DRIFT_DIVISOR);
        Moment { now, expiry_now: if now > trusted { expected } else { now } }
    }
}

impl StoreClock {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The store told its time.
    pub(crate) fn saw(&self, now: Timestamp) -> Moment {
        let at = instant();
        let mut sight = self.sight();
        let first = Sight { last: (now, at), slowest: (now, at) };
        let known = sight.get_or_insert(first);
        known.last = (now, at);
        if now < known.slowest.0.after(at.duration_since(known.slowest.1)) {
            known.slowest = (now, at);
        }
        known.moment(now, at)
    }

    /// What time it must be there by now. Engines ask their store once before they begin, so it has always been told.
    pub(crate) fn estimate(&self) -> Moment {
        let at = instant();
        let beginning = Timestamp::from_micros(0);
        self.sight().map_or(Moment { now: beginning, expiry_now: beginning }, |sight| {
            sight.moment(sight.last.0.after(at.duration_since(sight.last.1)), at)
        })
    }

    /// An operator confirms that the store's clock is right, after a jump that suspended expiry.
    pub(crate) fn trust(&self) {
        if let Some(sight) = self.sight().as_mut() {
            sight.slowest = sight.last;
        }
    }

    // A panic while the lock is held leaves at worst an older time behind.
    fn sight(&self) -> MutexGuard<'_, Option<Sight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(hours: u32) -> Timestamp {
        Timestamp::from_micros(1_000_000_000_000).after(HOUR * hours)
    }

    #[tokio::test(start_paused = true)]
    async fn expiry_is_suspended_while_the_stores_clock_runs_ahead_and_resumes_when_it_is_set_right() {
        let clock = StoreClock::new();
        assert_eq!(clock.saw(at(0)), Moment { now: at(0), expiry_now: at(0) });
        assert_eq!(clock.saw(at(24)), Moment { now: at(24), expiry_now: at(0) });
        tokio::time::advance(HOUR).await;
        assert_eq!(clock.saw(at(25)).expiry_now, at(1));
        assert_eq!(clock.saw(at(1)), Moment { now: at(1), expiry_now: at(1) });
    }

    #[tokio::test(start_paused = true)]
    async fn a_confirmed_jump_is_believed() {
        let clock = StoreClock::new();
        clock.saw(at(0));
        clock.saw(at(24));
        clock.trust();
        assert_eq!(clock.saw(at(24)).expiry_now, at(24));
    }

    #[tokio::test(start_paused = true)]
    async fn between_two_answers_elapsed_time_is_added() {
        let clock = StoreClock::new();
        clock.saw(at(0));
        tokio::time::advance(HOUR).await;
        assert_eq!(clock.estimate(), Moment { now: at(1), expiry_now: at(1) });
    }
}
