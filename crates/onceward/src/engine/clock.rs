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
/// The store read its clock at some moment between the call and its answer, so an answer tells between which two times it is
/// there now, and no more. An answer that took long tells little: what was known before it stays known. Each of the two
/// bounds has its use. A lease is given from the later one, because its owner must never believe in it for longer than the
/// store does. Expiry goes by the earlier one, because too early would execute again. Decisions about a record that was just
/// read use the time that came with it.
pub(crate) struct StoreClock {
    sight: Mutex<Option<Sight>>,
    /// This machine's wall clock. Never compared with the store's: it only tells that the machine slept.
    local: Arc<dyn Clock>,
}

/// At this instant, the store's clock stood between these two times.
#[derive(Clone, Copy)]
struct Bounds {
    at: Instant,
    earliest: Timestamp,
    latest: Timestamp,
}

impl Bounds {
    /// The same bounds at another instant, if both clocks ran alike meanwhile.
    fn at(self, at: Instant) -> Self {
        let elapsed = at.saturating_duration_since(self.at);
        Self { at, earliest: self.earliest.after(elapsed), latest: self.latest.after(elapsed) }
    }

    /// The same, and wider by what the clocks may have drifted apart.
    fn drifted(self, at: Instant) -> Self {
        let drift = at.saturating_duration_since(self.at) / DRIFT_DIVISOR;
        let Self { at, earliest, latest } = self.at(at);
        Self { at, earliest: earliest.before(drift), latest: latest.after(drift) }
    }

    /// What both say; what this says alone where they contradict each other, because then the store's clock was set.
    fn and(self, earlier: Self) -> Self {
        let earlier = earlier.drifted(self.at);
        let (earliest, latest) = (self.earliest.max(earlier.earliest), self.latest.min(earlier.latest));
        if earliest <= latest { Self { at: self.at, earliest, latest } } else { self }
    }
}

#[derive(Clone, Copy)]
struct Sight {
    last: Bounds,
    /// This machine's wall clock then.
    local: Timestamp,
    /// The slowest that the store's clock was ever seen, against elapsed time.
    slowest: Bounds,
}

impl Sight {
    /// The moment of a decision by a time that is at least `earliest` and at most `latest`.
    fn moment(&self, Bounds { at, earliest, latest }: Bounds) -> Moment {
        let elapsed = at.saturating_duration_since(self.slowest.at);
        let expected = self.slowest.at(at);
        let trusted = expected.latest.after(AHEAD_MAX + elapsed / DRIFT_DIVISOR);
        Moment { now: latest, expiry_now: if latest > trusted { expected.earliest } else { earliest } }
    }

    /// Whether elapsed time and the wall clock agree about how long ago this was.
    fn is_counted(&self, Reading { at, wall: local }: Reading) -> bool {
        let elapsed = at.saturating_duration_since(self.last.at);
        let by_the_wall = local.since(self.local);
        let backwards = self.local.since(local);
        by_the_wall.abs_diff(elapsed).max(backwards) <= DISAGREEMENT_MAX
    }
}

impl StoreClock {
    pub(crate) const fn new(local: Arc<dyn Clock>) -> Self {
        Self { sight: Mutex::new(None), local }
    }

    /// The store told its time in answer to what was sent at `sent`. Returns the moment that was told: it is past by now, but
    /// never later than the store's time.
    pub(crate) fn saw(&self, now: Timestamp, sent: Instant) -> Moment {
        let mut sight = self.sight();
        // Read under the lock: of two answers at once, the one that is applied last has the later reading.
        let reading = self.read();
        let at = reading.at;
        let told = Bounds { at, earliest: now, latest: now.after(at.saturating_duration_since(sent)) };
        let known = sight.get_or_insert(Sight { last: told, local: reading.wall, slowest: told });
        let last = if known.is_counted(reading) { told.and(known.last) } else { told };
        (known.last, known.local) = (last, reading.wall);
        if told.latest < known.slowest.at(at).latest {
            known.slowest = told;
        }
        known.moment(Bounds { latest: now, ..told })
    }

    /// What time it must be there by now; `None` where only the store can tell.
    pub(crate) fn estimate(&self) -> Option<Moment> {
        self.bounds(self.read()).map(|(sight, bounds)| sight.moment(bounds))
    }

    /// This machine's clocks.
    pub(crate) fn read(&self) -> Reading {
        Reading::take(&*self.local)
    }

    /// The same for a caller that has just read this machine's clocks and writes a lease of this length; `None` also where the
    /// store's time is not known to within half of it. A lease counts as live while it ends within twice its length, so one
    /// that is given too far ahead would be taken for one from a clock that was wrong.
    pub(crate) fn estimate_at(&self, reading: Reading, lease: Duration) -> Option<Moment> {
        let (sight, bounds) = self.bounds(reading)?;
        (bounds.latest.since(bounds.earliest) <= lease / 2).then(|| sight.moment(bounds))
    }

    fn bounds(&self, reading: Reading) -> Option<(Sight, Bounds)> {
        let sight = (*self.sight())?;
        sight.is_counted(reading).then(|| (sight, sight.last.drifted(reading.at)))
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
    const MINUTE: Duration = Duration::from_secs(60);

    /// A wall clock that runs with elapsed time, and can be moved as a suspension would.
    struct Wall(Instant, std::sync::atomic::AtomicU64);

    impl Clock for Wall {
        fn now(&self) -> Timestamp {
            let slept = Duration::from_secs(self.1.load(std::sync::atomic::Ordering::Relaxed));
            Timestamp::from_micros(0).after(instant().duration_since(self.0)).after(slept)
        }
    }

    /// A wall clock that notes whether another answer could be applied while it is read.
    #[derive(Default)]
    struct Watched {
        clock: std::sync::OnceLock<StoreClock>,
        unlocked: std::sync::atomic::AtomicBool,
    }

    impl Clock for Watched {
        fn now(&self) -> Timestamp {
            if self.clock.get().is_some_and(|clock| clock.sight.try_lock().is_ok()) {
                self.unlocked.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            at(0)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_other_answer_is_applied_between_the_reading_of_this_machines_clocks_and_its_own() {
        let watched = Arc::new(Watched::default());
        let clock = watched.clock.get_or_init(|| StoreClock::new(watched.clone()));
        for hour in 0..2 {
            clock.saw(at(hour), instant());
        }
        assert!(!watched.unlocked.load(std::sync::atomic::Ordering::Relaxed));
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
        let drift = HOUR / DRIFT_DIVISOR;
        let expected = Moment { now: at(1).after(drift), expiry_now: at(1).before(drift) };
        assert_eq!(clock.estimate(), Some(expected));
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

    #[tokio::test(start_paused = true)]
    async fn an_estimate_never_expires_too_early_and_never_gives_a_lease_that_is_too_short() {
        // When the store reads its clock, on a way of a minute there and back.
        for read_after in [Duration::ZERO, MINUTE / 2, MINUTE] {
            let (clock, _) = clock();
            let sent = instant();
            tokio::time::advance(MINUTE).await;
            clock.saw(at(0).after(read_after), sent);
            let truth = at(0).after(MINUTE);
            let Some(Moment { now, expiry_now }) = clock.estimate() else { panic!("nobody slept") };
            assert!(expiry_now <= truth, "{expiry_now:?} is later than {truth:?}");
            assert!(now >= truth, "{now:?} is earlier than {truth:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_does_not_put_in_doubt_what_quick_ones_told() {
        let (clock, _) = clock();
        clock.saw(at(0), instant());
        let sent = instant();
        tokio::time::advance(MINUTE).await;
        // The store was asked a minute ago, and read its clock just now.
        clock.saw(at(0).after(MINUTE), sent);
        let (truth, drift) = (at(0).after(MINUTE), MINUTE / DRIFT_DIVISOR);
        let Some(Moment { now, expiry_now }) = clock.estimate() else { panic!("nobody slept") };
        assert!(now <= truth.after(drift) && expiry_now >= truth.before(drift), "{now:?} {expiry_now:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_expiry_is_not_ahead_by_the_way_to_the_store() {
        let (clock, _) = clock();
        let sent = instant();
        tokio::time::advance(MINUTE).await;
        clock.saw(at(0).after(MINUTE), sent);
        assert_eq!(clock.saw(at(24), instant()).expiry_now, at(0).after(MINUTE));
    }
}
