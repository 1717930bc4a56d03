//! Bounded polling: waits for a condition that sends no event, and fails instead of hanging.
//!
//! The closure returns `Ok` with a value once the condition holds, else `Err` with what it saw. The limit bounds a hang; it
//! is not an assertion about speed. It is wall-clock time, because paused elapsed time stands still while a task yields.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use onceward_testkit::wait;
//! let mut count = 0;
//! let seen = wait::until("the count is 3", async || {
//!     count += 1;
//!     if count == 3 { Ok(count) } else { Err(count) }
//! });
//! assert_eq!(seen.await, 3);
//! # }
//! ```

use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

use onceward::{
    Timestamp,
    store::{Clock, SystemClock},
};

/// Far longer than anything that a test waits for takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Polls until the closure returns `Ok`, and yields to other tasks between two polls.
///
/// # Panics
/// After two minutes, with what was awaited, what was last seen and the caller's line.
#[track_caller]
pub fn until<T, S: Debug>(
    awaited: &str,
    mut poll: impl AsyncFnMut() -> Result<T, S>,
) -> impl Future<Output = T> {
    let bound = Bound::start(awaited, LIMIT);
    async move {
        loop {
            match poll().await {
                Ok(value) => return value,
                Err(seen) => bound.check(&seen),
            }
            tokio::task::yield_now().await;
        }
    }
}

/// The same on a thread, for conditions outside the process: a server's state, a file.
///
/// # Panics
/// As [`until`].
#[track_caller]
pub fn until_blocking<T, S: Debug>(awaited: &str, mut poll: impl FnMut() -> Result<T, S>) -> T {
    let bound = Bound::start(awaited, LIMIT);
    loop {
        match poll() {
            Ok(value) => return value,
            Err(seen) => bound.check(&seen),
        }
        std::thread::yield_now();
    }
}

/// `Ok` if the condition holds, else `Err` with what was seen.
pub fn seen<S>(seen: S, holds: impl FnOnce(&S) -> bool) -> Result<S, S> {
    if holds(&seen) { Ok(seen) } else { Err(seen) }
}

struct Bound<'a> {
    awaited: &'a str,
    caller: &'static Location<'static>,
    started: Timestamp,
    limit: Duration,
}

impl<'a> Bound<'a> {
    #[track_caller]
    fn start(awaited: &'a str, limit: Duration) -> Self {
        Self { awaited, caller: Location::caller(), started: SystemClock.now(), limit }
    }

    fn check(&self, seen: &dyn Debug) {
        assert!(
            SystemClock.now().since(self.started) < self.limit,
            "{}: waited {:?} until {}; last seen: {seen:?}",
            self.caller,
            self.limit,
            self.awaited
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "until the moon is full; last seen: \"half\"")]
    fn a_wait_beyond_its_limit_fails_with_what_was_awaited_and_last_seen() {
        Bound::start("the moon is full", Duration::ZERO).check(&"half");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_lets_other_tasks_run_and_returns_the_value() {
        let (sender, receiver) = tokio::sync::watch::channel(0);
        let task = tokio::spawn(async move { sender.send(7) });
        let value = until("the task ran", async || seen(*receiver.borrow(), |&value| value == 7)).await;
        assert_eq!(value, 7);
        task.await.unwrap().unwrap();
    }

    #[test]
    fn a_blocking_wait_polls_until_the_condition_holds() {
        let mut count = 0;
        let value = until_blocking("the count is 3", || {
            count += 1;
            seen(count, |&count| count == 3)
        });
        assert_eq!(value, 3);
    }
}
