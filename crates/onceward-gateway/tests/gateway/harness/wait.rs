//! Bounds on waiting for an event, so that a test fails and names what did not happen. Conditions that send no event are polled
//! with `onceward_testkit::wait`.

use std::future::Future;
use std::time::Duration;

/// How long a test waits for anything before it fails. It is no limit on speed: the machine may be slow and busy.
pub const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// Waits for a future, and fails if it takes too long.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(LONGEST_WAIT, future).await;
    result.unwrap_or_else(|_| panic!("waited {LONGEST_WAIT:?} for {what}"))
}
