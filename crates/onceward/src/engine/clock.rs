//! The store's clock, as far as this process knows it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event::Moment;
use crate::time::{Clock, Instant, Reading, Timestamp};

/// Expiry does not follow a clock that is further ahead than this: a clock that jumps by a day would make the store forget a
/// day of keys. Real clocks drift by less, and are corrected in smaller steps.
const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);
/// Clocks drift. One part in a thousand is ten times the drift of common hardware.
const DRIFT_DIVISOR: u32 = 1000;

/// A larger difference between elapsed time and this machine's wall clock means that the machine was suspended, or that its
/// clock was set. In both cases the store's time cannot be told from elapsed time.
const DISAGREEMENT_MAX: Duration = Duration::from_secs(1);

/// Estimates the store's time between its answers.
///
/// Every answer of the store carries its time, which it read at some moment between the call and the answer. So an answer
/// gives two bounds of the store's time, and elapsed time moves both. An answer that took long gives wide bounds, and does
/// not replace narrower ones. A lease is given from the later bound, because its owner must not believe in it for longer than
/// the store does. Expiry uses the earlier bound, because expiry that is too early would execute again. A decision about a
/// record that was just read uses the time that came with it.
pub(crate) struct StoreClock {
    calibration: Mutex<Option<Calibration>>,
    /// This machine's wall clock. It is not compared with the store's: it only shows that the machine was suspended.
    local: Arc<dyn Clock>,
}

/// At this instant, the store's clock was between these two times.
#[derive(Clone, Copy)]
struct Bounds {
    at: Instant,
    earliest: Timestamp,
    latest: Timestamp,
}

impl Bounds {
    /// The bounds at a later instant, if both clocks ran equally fast.
    fn at(self, at: Instant) -> Self {
        let elapsed = at.saturating_duration_since(self.at);
        Self { at, earliest: self.earliest.after(elapsed), latest: self.latest.after(elapsed) }
    }

    /// The bounds at a later instant, widened by the clocks' possible drift.
    fn drifted(self, at: Instant) -> Self {
        let drift = at.saturating_duration_since(self.at) / DRIFT_DIVISOR;
        let Self { at, earliest, latest } = self.at(at);
        Self { at, earliest: earliest.before(drift), latest: latest.after(drift) }
    }

    /// The intersection with earlier bounds. If it is empty, the store's clock was set, and these bounds are kept.
    fn and(self, earlier: Self) -> Self {
        let earlier = earlier.drifted(self.at);
        let (earliest, latest) = (self.earliest.max(earlier.earliest), self.latest.min(earlier.latest));
        if earliest <= latest { Self { at: self.at, earliest, latest } } else { self }
    }
}

/// What the answers of the store have shown so far.
#[derive(Clone, Copy)]
struct Calibration {
    last: Bounds,
    /// This machine's wall clock when `last` was read.
    local: Timestamp,
    /// The answer in which the store's clock was furthest behind, against elapsed time.
    slowest: Bounds,
}

impl Calibration {
    /// The moment for a decision, when the store's time is between these bounds.
    fn moment(&self, Bounds { at, earliest, latest }: Bounds) -> Moment {
        let elapsed = at.saturating_duration_since(self.slowest.at);
        let expected = self.slowest.at(at);
        let trusted = expected.latest.after(AHEAD_MAX + elapsed / DRIFT_DIVISOR);
        Moment { now: latest, expiry_now: if latest > trusted { expected.earliest } else { earliest } }
    }

    /// Whether elapsed time and the wall clock agree about the time since `last`.
    fn is_continuous(&self, Reading { at, wall: local }: Reading) -> bool {
        let elapsed = at.saturating_duration_since(self.last.at);
        let by_the_wall = local.since(self.local);
        let backwards = self.local.since(local);
        by_the_wall.abs_diff(elapsed).max(backwards) <= DISAGREEMENT_MAX
    }
}

impl StoreClock {
    pub(crate) const fn new(local: Arc<dyn Clock>) -> Self {
        Self { calibration: Mutex::new(None), local }
    }

    /// Takes in an answer of the store to a call that was sent at `sent`. Returns the moment at which the store read its clock,
    /// which is never later than the store's time now.
    pub(crate) fn saw(&self, now: Timestamp, sent: Instant) -> Moment {
        let mut calibration = self.calibration();
        // Read under the lock, so that concurrent answers are applied in the order of their readings.
        let reading = self.read();
        let at = reading.at;
        let answered = Bounds { at, earliest: now, latest: now.after(at.saturating_duration_since(sent)) };
        let known =
            calibration.get_or_insert(Calibration { last: answered, local: reading.wall, slowest: answered });
        let last = if known.is_continuous(reading) { answered.and(known.last) } else { answered };
        (known.last, known.local) = (last, reading.wall);
        if answered.latest < known.slowest.at(at).latest {
            known.slowest = answered;
        }
        known.moment(Bounds { latest: now, ..answered })
    }

    /// The store's time by now; `None` where only the store can tell.
    pub(crate) fn estimate(&self) -> Option<Moment> {
        self.bounds(self.read()).map(|(calibration, bounds)| calibration.moment(bounds))
    }

    /// This machine's clocks.
    pub(crate) fn read(&self) -> Reading {
        Reading::take(&*self.local)
    }

    /// The store's time for writing a lease of this length, with a given reading of this machine's clocks. `None` also where
    /// the bounds are wider apart than half the lease: a lease that ends later than twice its length from now is taken for one
    /// that was written by a wrong clock.
    pub(crate) fn estimate_at(&self, reading: Reading, lease: Duration) -> Option<Moment> {
        let (calibration, bounds) = self.bounds(reading)?;
        (bounds.latest.since(bounds.earliest) <= lease / 2).then(|| calibration.moment(bounds))
    }

    fn bounds(&self, reading: Reading) -> Option<(Calibration, Bounds)> {
        let calibration = (*self.calibration())?;
        calibration.is_continuous(reading).then(|| (calibration, calibration.last.drifted(reading.at)))
    }

    /// An operator confirms that the store's clock is right, after a jump that suspended expiry.
    pub(crate) fn trust(&self) {
        if let Some(calibration) = self.calibration().as_mut() {
            calibration.slowest = calibration.last;
        }
    }

    // A panic while the lock is held leaves an older calibration at worst.
    fn calibration(&self) -> MutexGuard<'_, Option<Calibration>> {
        self.calibration.lock().unwrap_or_else(PoisonError::into_inner)
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
            if self.clock.get().is_some_and(|clock| clock.calibration.try_lock().is_ok()) {
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
    async fn a_machine_that_was_suspended_does_not_guess_the_time() {
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
        // When the store reads its clock, within a call that takes a minute.
        for read_after in [Duration::ZERO, MINUTE / 2, MINUTE] {
            let (clock, _) = clock();
            let sent = instant();
            tokio::time::advance(MINUTE).await;
            clock.saw(at(0).after(read_after), sent);
            let truth = at(0).after(MINUTE);
            let Some(Moment { now, expiry_now }) = clock.estimate() else {
                panic!("the machine was not suspended")
            };
            assert!(expiry_now <= truth, "{expiry_now:?} is later than {truth:?}");
            assert!(now >= truth, "{now:?} is earlier than {truth:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_does_not_widen_the_bounds_that_quick_ones_gave() {
        let (clock, _) = clock();
        clock.saw(at(0), instant());
        let sent = instant();
        tokio::time::advance(MINUTE).await;
        // The store was asked a minute ago, and read its clock just now.
        clock.saw(at(0).after(MINUTE), sent);
        let (truth, drift) = (at(0).after(MINUTE), MINUTE / DRIFT_DIVISOR);
        let Some(Moment { now, expiry_now }) = clock.estimate() else {
            panic!("the machine was not suspended")
        };
        assert!(now <= truth.after(drift) && expiry_now >= truth.before(drift), "{now:?} {expiry_now:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_expiry_is_not_ahead_by_the_time_of_a_call() {
        let (clock, _) = clock();
        let sent = instant();
        tokio::time::advance(MINUTE).await;
        clock.saw(at(0).after(MINUTE), sent);
        assert_eq!(clock.saw(at(24), instant()).expiry_now, at(0).after(MINUTE));
    }
}
