//! Bounds on waiting: a test that waits for something that does not happen fails and says what it was.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use onceward::time::Instant;

/// How long a test waits for anything before it fails. Nothing here may be about speed: the machine may be slow and busy.
pub const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// Reads a value again and again until it is as wanted, and returns it. Fails with the last value that was read.
pub async fn eventually<T: Debug>(
    what: &str,
    mut read: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> T {
    let started = Instant::now();
    loop {
        let value = read().await;
        if wanted(&value) {
            return value;
        }
        assert!(started.elapsed() < LONGEST_WAIT, "waited {LONGEST_WAIT:?} for {what}; last seen: {value:?}");
        tokio::task::yield_now().await;
    }
}

/// Waits for a future, and fails if it takes too long.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(LONGEST_WAIT, future).await;
    result.unwrap_or_else(|_| panic!("waited {LONGEST_WAIT:?} for {what}"))
}
