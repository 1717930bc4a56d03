//! The store's clock, as far as this process knows it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event::Moment;
use crate::time::{Clock, Instant, Reading, Timestamp};

/// Further ahead than this, expiry no longer believes the store's clock: a clock that jumps a day would forget a day of
/// keys. Real clocks drift by less, and are corrected in smaller steps.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);
/// Every clock drifts a little: one part in a thousand is ten times worse than any that is sold.
const DRIFT_DIVISOR: u32 = 1000;

/// More than this between elapsed time and this machine's wall clock means that the machine slept, or that its clock was
/// set: either way elapsed time no longer tells what time it is at the store.
const DISAGREEMENT_MAX: Duration = Duration::from_secs(1);

/// Every answer of the store carries its time; between two answers, elapsed time is added.
///
/// Decisions about a record always use the time that came with it. The estimate is used only for what is written about
/// a record that is believed absent or held, where a few milliseconds do not matter.
pub(crate) struct StoreClock {
    sight: Mutex<Option<Sight>>,
    /// This machine's wall clock. Never compared with the store's: it only tells that the machine slept.
    local: Arc<dyn Clock>,
}

#[derive(Clone, Copy)]
struct Sight {
    /// The last time that was told, and when it was asked for.
    last: (Timestamp, Instant),
    /// This machine's wall clock then.
    local: Timestamp,
    /// The slowest that the store's clock was ever seen, against elapsed time.
    slowest: (Timestamp, Instant),
}

impl Sight {
    fn moment(&self, now: Timestamp, at: Instant) -> Moment {
        let elapsed = at.saturating_duration_since(self.slowest.1);
        let expected = self.slowest.0.after(elapsed);
        let trusted = expected.after(AHEAD_MAX + elapsed / DRIFT_DIVISOR);
        Moment { now, expiry_now: if now > trusted { expected } else { now } }
    }
}

impl StoreClock {
    pub(crate) const fn new(local: Arc<dyn Clock>) -> Self {
        Self { sight: Mutex::new(None), local }
    }

    /// The store told its time in answer to what was sent at `sent`. The time of asking counts, not that of the answer: an
    /// answer that took long must not make the store's clock look slow.
    pub(crate) fn saw(&self, now: Timestamp, sent: Instant) -> Moment {
        let Reading { at, wall: local } = self.read();
        let waited = at.saturating_duration_since(sent);
        let asked_at = Timestamp::from_micros(
            local.as_micros().saturating_sub(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX)),
        );
        let mut sight = self.sight();
        let known = sight.get_or_insert(Sight { last: (now, sent), local: asked_at, slowest: (now, sent) });
        (known.last, known.local) = ((now, sent), asked_at);
        if now < known.slowest.0.after(sent.saturating_duration_since(known.slowest.1)) {
            known.slowest = (now, sent);
        }
        known.moment(now, at)
    }

    /// What time it must be there by now; `None` where only the store can tell.
    pub(crate) fn estimate(&self) -> Option<Moment> {
        self.estimate_at(self.read())
    }

    /// This machine's clocks.
    pub(crate) fn read(&self) -> Reading {
        Reading::take(&*self.local)
    }

    /// The same, for whoever has just read this machine's clocks.
    pub(crate) fn estimate_at(&self, Reading { at, wall: local }: Reading) -> Option<Moment> {
        let sight = (*self.sight())?;
        let elapsed = at.saturating_duration_since(sight.last.1);
        let by_the_wall = local.since(sight.local);
        let backwards = sight.local.since(local);
        let apart = by_the_wall.abs_diff(elapsed).max(backwards);
        (apart <= DISAGREEMENT_MAX).then(|| sight.moment(sight.last.0.after(elapsed), at))
    }

    /// An operator confirms that the store's clock is right, after a jump that suspended expiry.
    pub(crate) fn trust(&self) {
        if let Some(sight) = self.sight().as_mut() {
            sight.slowest = sight.last;
        }
    }

    // A panic while the lock is held leaves at worst an older time behind.
    fn sight(&self) -> MutexGuard<'_, Option<Sight>> {
        self.sight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::instant;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A wall clock that runs with elapsed time, and can be moved as a suspension would.
    struct Wall(Instant, std::sync::atomic::AtomicU64);

    impl Clock for Wall {
        fn now(&self) -> Timestamp {
            let slept = Duration::from_secs(self.1.load(std::sync::atomic::Ordering::Relaxed));
            Timestamp::from_micros(0).after(instant().duration_since(self.0)).after(slept)
        }
    }

    fn clock() -> (StoreClock, Arc<Wall>) {
        let wall = Arc::new(Wall(instant(), 0.into()));
        (StoreClock::new(wall.clone()), wall)
    }

    fn at(hours: u32) -> Timestamp {
        Timestamp::from_micros(1_000_000_000_000).after(HOUR * hours)
    }

    #[tokio::test(start_paused = true)]
    async fn expiry_is_suspended_while_the_stores_clock_runs_ahead_and_resumes_when_it_is_set_right() {
        let (clock, _) = clock();
        assert_eq!(clock.saw(at(0), instant()), Moment { now: at(0), expiry_now: at(0) });
        assert_eq!(clock.saw(at(24), instant()), Moment { now: at(24), expiry_now: at(0) });
        tokio::time::advance(HOUR).await;
        assert_eq!(clock.saw(at(25), instant()).expiry_now, at(1));
        assert_eq!(clock.saw(at(1), instant()), Moment { now: at(1), expiry_now: at(1) });
    }

    #[tokio::test(start_paused = true)]
    async fn a_confirmed_jump_is_believed() {
        let (clock, _) = clock();
        clock.saw(at(0), instant());
        clock.saw(at(24), instant());
        clock.trust();
        assert_eq!(clock.saw(at(24), instant()).expiry_now, at(24));
    }

    #[tokio::test(start_paused = true)]
    async fn between_two_answers_elapsed_time_is_added() {
        let (clock, _) = clock();
        clock.saw(at(0), instant());
        tokio::time::advance(HOUR).await;
        assert_eq!(clock.estimate(), Some(Moment { now: at(1), expiry_now: at(1) }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_slept_does_not_guess_what_time_it_is() {
        let (clock, wall) = clock();
        clock.saw(at(0), instant());
        wall.1.store(300, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(clock.estimate(), None);
        clock.saw(at(0), instant());
        assert!(clock.estimate().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_took_long_does_not_make_the_stores_clock_look_slow() {
        let (clock, _) = clock();
        clock.saw(at(0), instant());
        let sent = instant();
        tokio::time::advance(HOUR).await;
        clock.saw(at(0), sent);
        assert_eq!(clock.saw(at(1), instant()), Moment { now: at(1), expiry_now: at(1) });
    }
}
