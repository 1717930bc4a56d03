//! A clock that a test controls.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::plumbing::time::{self, Instant};
use onceward::{Timestamp, store::Clock};

/// A wall clock that stands still until it is moved, or follows the elapsed time that tokio can pause.
///
/// ```
/// use std::time::Duration;
/// use onceward::{Timestamp, store::Clock};
/// use onceward_testkit::VirtualClock;
/// let clock = VirtualClock::standing_at(Timestamp::from_micros(5_000_000));
/// clock.advance(Duration::from_secs(1));
/// clock.rewind(Duration::from_secs(3));
/// assert_eq!(clock.now(), Timestamp::from_micros(3_000_000));
/// ```
#[derive(Debug)]
pub struct VirtualClock {
    hands: Mutex<Hands>,
}

#[derive(Debug)]
struct Hands {
    base: Timestamp,
    /// Since when time passes by itself, if it does.
    running_since: Option<Instant>,
}

impl VirtualClock {
    /// Shows this time until it is moved.
    pub const fn standing_at(start: Timestamp) -> Self {
        Self { hands: Mutex::new(Hands { base: start, running_since: None }) }
    }

    /// Shows this time now and runs with elapsed time. Under `tokio::time::pause` an engine that waits and a store that
    /// tells the time then agree.
    pub fn running_from(start: Timestamp) -> Self {
        Self { hands: Mutex::new(Hands { base: start, running_since: Some(time::instant()) }) }
    }

    /// Jumps to a time, earlier or later.
    pub fn set(&self, to: Timestamp) {
        let mut hands = self.hands();
        hands.base = to;
        hands.running_since = hands.running_since.map(|_| time::instant());
    }

    /// Jumps forward.
    pub fn advance(&self, by: Duration) {
        let mut hands = self.hands();
        hands.base = hands.base.after(by);
    }

    /// Jumps backward, as a wall clock does when it is corrected.
    pub fn rewind(&self, by: Duration) {
        let mut hands = self.hands();
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        hands.base = Timestamp::from_micros(hands.base.as_micros().saturating_sub(micros));
    }

    // A panic while the lock is held cannot leave the hands between two times.
    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let hands = self.hands();
        let elapsed =
            hands.running_since.map_or(Duration::ZERO, |since| time::instant().duration_since(since));
        hands.base.after(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_000_000_000);

    #[tokio::test(start_paused = true)]
    async fn a_running_clock_agrees_with_paused_time_and_a_standing_one_does_not_move() {
        let (running, standing) = (VirtualClock::running_from(START), VirtualClock::standing_at(START));
        time::sleep(Duration::from_secs(90)).await;
        assert_eq!(running.now(), START.after(Duration::from_secs(90)));
        assert_eq!(standing.now(), START);
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_clock_runs_on_from_where_it_was_set() {
        let clock = VirtualClock::running_from(START);
        time::sleep(Duration::from_secs(5)).await;
        clock.set(START);
        clock.advance(Duration::from_secs(10));
        clock.rewind(Duration::from_secs(3));
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(clock.now(), START.after(Duration::from_secs(8)));
    }

    #[test]
    fn a_clock_stops_at_the_ends_of_time_instead_of_wrapping() {
        let clock = VirtualClock::standing_at(START);
        clock.rewind(Duration::MAX);
        assert_eq!(clock.now(), Timestamp::from_micros(0));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Timestamp::NEVER);
    }
}
