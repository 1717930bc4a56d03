//! The background task that keeps the connection and looks after the markers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use onceward::time::sleep;

use crate::error::Failure;
use crate::guard::{Loss, Sight};
use crate::keys::buckets;
use crate::link::Link;
use crate::marker;
use crate::store::Inner;

/// How often the markers are read. Every call looks at its own bucket's anyway; this tells readiness, and those that wait.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two tries to connect. A server that restarts is back within a few of them.
const CONNECT_EVERY: Duration = Duration::from_millis(50);

/// Runs until the last store is dropped.
pub(crate) async fn run(inner: Weak<Inner>) {
    let Some(alarm) = inner.upgrade().map(|inner| inner.alarm.clone()) else { return };
    loop {
        let Some(store) = inner.upgrade() else { return };
        let pause = store.look_after().await;
        drop(store);
        tokio::select! {
            biased;
            () = alarm.notified() => {}
            () = sleep(pause) => {}
        }
    }
}

impl Inner {
    async fn look_after(self: &Arc<Self>) -> Duration {
        if let Link::Single(single) = &self.link
            && !single.is_connected()
        {
            if single.connect().await.is_err() {
                return CONNECT_EVERY;
            }
            self.counters.reconnects.add(1);
            tracing::info!(server = %self.server, "connected to Redis again");
        }
        if let Err(failure) = self.check().await {
            tracing::warn!(
                server = %self.server,
                cause = failure.reason(),
                "whether Redis has lost records could not be looked at: it is tried again"
            );
            return CONNECT_EVERY;
        }
        LOOK_EVERY
    }

    /// Reads every marker and holds them against what is known.
    pub(crate) async fn check(&self) -> Result<(), Failure> {
        // Noted before: what is seen while the markers are on their way is newer than they are.
        let seen: Vec<u64> = buckets().map(|bucket| self.guard.seen(bucket)).collect();
        let markers = marker::read(&self.link, &self.keys).await?;
        let there: Vec<_> = markers.iter().flatten().cloned().collect();
        match self.guard.judge(&markers, &seen) {
            Sight::Whole => self.guard.believe(&self.guard.known(), &there),
            Sight::Accepted(generation) => {
                tracing::warn!(
                    server = %self.server,
                    "an operator has accepted that Redis lost records: keys are served again, and those that were lost execute again"
                );
                self.guard.believe(&generation, &there);
            }
            Sight::Lost(what) => self.lost(&what, Loss::Marker),
            Sight::RolledBack(what) => {
                self.lost(&what, Loss::Writes);
                marker::spread(&self.link, &self.keys, &self.guard.known()).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn lost(&self, what: &str, loss: Loss) {
        if self.guard.lose(what, loss) {
            self.counters.losses.add(1);
            tracing::error!(
                server = %self.server,
                cause = what,
                next = "find out which operations were lost, then run `onceward store accept-loss`",
                "Redis has lost records: every request with a key is refused until that is accepted"
            );
        }
    }
}
