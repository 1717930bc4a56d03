//! The only file that reads the machine's clocks or waits.
//!
//! Two kinds of time are kept apart. A [`Timestamp`] is wall-clock time and always the *store's*: leases, retention and
//! every other time that is compared with a time are in it. An [`Instant`] is elapsed time in this process and decides
//! how long to wait; tests pause it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
pub use tokio::time::Instant;

/// Microseconds since 1970 by the store's clock. Every database can hold it in a signed 64-bit column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Later than every time that can occur.
    pub const NEVER: Self = Self(i64::MAX as u64);

    /// Takes microseconds since 1970; what does not fit a signed 64-bit number becomes [`Timestamp::NEVER`].
    pub const fn from_micros(micros: u64) -> Self {
        if micros > Self::NEVER.0 { Self::NEVER } else { Self(micros) }
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This time plus a duration; never overflows.
    pub fn after(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// This time minus a duration; not before 1970.
    pub(crate) fn before(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(micros))
    }

    /// How long after `earlier` this is; zero where it is not after.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// A wall clock. Stores have one; engines use their store's.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// This machine's wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp::from_micros(0).after(elapsed)
    }
}

/// Elapsed time, which tests can pause.
pub fn instant() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads elapsed time")]
    Instant::now()
}

/// Waits; tests that pause time pass over it at once.
pub async fn sleep(duration: Duration) {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that sleeps")]
    tokio::time::sleep(duration).await;
}

/// A reusable timeout, for repeated waits that nearly always end before it.
///
/// Each [`sleep`] registers in the runtime's timer list and leaves it again, both under a lock that all tasks share. An alarm
/// stays registered with its old deadline, and is moved only if that passes before the present one.
#[derive(Debug)]
pub struct Alarm {
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl Alarm {
    /// An alarm for this time, or any later one. Must be called within a runtime.
    pub fn new(deadline: Instant) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep_until(deadline)) }
    }

    /// Ready when the deadline has passed.
    pub fn poll_until(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        if deadline < self.sleep.deadline() {
            self.sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(self.sleep.as_mut().poll(context));
            if self.sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(deadline);
        }
    }
}

/// The deadline after this duration. One that an `Instant` cannot represent becomes 30 years.
pub fn deadline(since: Instant, after: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    since.checked_add(after).unwrap_or(since + FAR)
}

/// Both of this machine's clocks, read together. Reading is expensive, so one reading is passed on as long as nothing is
/// awaited in between.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub at: Instant,
    pub wall: Timestamp,
}

impl Reading {
    pub(crate) fn take(clock: &dyn Clock) -> Self {
        Self { at: instant(), wall: clock.now() }
    }
}

/// Measures a span that a suspended machine must not shorten.
///
/// Elapsed time stands still while a laptop or a virtual machine is suspended, and the wall clock can be set. The
/// longer of the two is taken: wrongly believing that too much time has passed costs a retry, the opposite could send a
/// request whose lease has long lapsed.
pub(crate) struct Stopwatch(Reading);

impl Stopwatch {
    pub(crate) fn start(reading: Reading) -> Self {
        Self(reading)
    }

    pub(crate) fn elapsed(&self, clock: &dyn Clock) -> Duration {
        let now = Reading::take(clock);
        now.at.duration_since(self.0.at).max(now.wall.since(self.0.wall))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_never_overflow_and_never_run_backwards() {
        assert_eq!(Timestamp::NEVER.after(Duration::MAX), Timestamp::NEVER);
        assert_eq!(Timestamp::from_micros(u64::MAX), Timestamp::NEVER);
        assert_eq!(Timestamp::from_micros(1).since(Timestamp::from_micros(2)), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_rings_at_the_present_deadline_whether_it_was_moved_forward_or_back() {
        let start = instant();
        let mut alarm = Alarm::new(deadline(start, Duration::from_secs(10)));
        for (set, rings) in [(10, 10), (40, 40), (41, 41), (300, 300)] {
            let set = start + Duration::from_secs(set);
            std::future::poll_fn(|context| alarm.poll_until(set, context)).await;
            assert_eq!(instant().duration_since(start).as_secs(), rings);
        }
        // A later deadline was polled first and abandoned.
        let (later, sooner) = (start + Duration::from_secs(900), start + Duration::from_secs(600));
        let asked = std::future::poll_fn(|context| Poll::Ready(alarm.poll_until(later, context))).await;
        assert!(asked.is_pending());
        std::future::poll_fn(|context| alarm.poll_until(sooner, context)).await;
        assert_eq!(instant().duration_since(start).as_secs(), 600);
        std::future::poll_fn(|context| alarm.poll_until(later, context)).await;
        assert_eq!(instant().duration_since(start).as_secs(), 900);
    }

    #[test]
    fn a_deadline_beyond_what_an_instant_holds_is_far_away() {
        assert!(deadline(instant(), Duration::MAX) > instant() + Duration::from_secs(3600));
    }

    #[test]
    fn a_stopwatch_believes_the_clock_that_moved_more() {
        struct Jumping(std::sync::atomic::AtomicU64);
        impl Clock for Jumping {
            fn now(&self) -> Timestamp {
                Timestamp::from_micros(self.0.fetch_add(3_600_000_000, std::sync::atomic::Ordering::Relaxed))
            }
        }
        let clock = Jumping(0.into());
        let watch = Stopwatch::start(Reading::take(&clock));
        assert!(watch.elapsed(&clock) >= Duration::from_secs(3600));
    }
}
