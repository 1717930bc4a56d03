//! The background task that maintains the connection and checks the markers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use onceward::plumbing::time::sleep;

use crate::connection::Connection;
use crate::error::Failure;
use crate::keys::buckets;
use crate::loss_detector::{Loss, MarkerCheck};
use crate::marker;
use crate::store::StoreInner;

/// How often all markers are read. Each call checks its own bucket's marker; this is for readiness, and for gateways without
/// calls.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The pause between attempts to connect. A server that restarts is back after a few of them.
const CONNECT_EVERY: Duration = Duration::from_millis(50);

/// Runs until the last store is dropped.
pub(crate) async fn run(inner: Weak<StoreInner>) {
    let Some(wake_monitor) = inner.upgrade().map(|inner| inner.wake_monitor.clone()) else { return };
    loop {
        let Some(store) = inner.upgrade() else { return };
        let pause = store.tick().await;
        drop(store);
        tokio::select! {
            biased;
            () = wake_monitor.notified() => {}
            () = sleep(pause) => {}
        }
    }
}

impl StoreInner {
    async fn tick(self: &Arc<Self>) -> Duration {
        if let Connection::SingleServer(single) = &self.connection
            && !single.is_connected()
        {
            if single.connect().await.is_err() {
                return CONNECT_EVERY;
            }
            self.counters.reconnects.add(1);
            tracing::info!(server = %self.server, "connected to Redis again");
        }
        if let Err(failure) = self.check_markers().await {
            tracing::warn!(
                server = %self.server,
                cause = failure.reason(),
                "whether Redis has lost records could not be checked: it is checked again shortly"
            );
            return CONNECT_EVERY;
        }
        LOOK_EVERY
    }

    /// Reads all markers and compares them with what is known.
    pub(crate) async fn check_markers(&self) -> Result<(), Failure> {
        // Recorded before the markers are read: calls may see newer versions while the markers are being read.
        let seen: Vec<u64> = buckets().map(|bucket| self.loss_detector.last_seen(bucket)).collect();
        let markers = marker::read(&self.connection, &self.keys).await?;
        let there: Vec<_> = markers.iter().flatten().cloned().collect();
        match self.loss_detector.check(&markers, &seen) {
            MarkerCheck::Intact => {
                self.loss_detector.set_intact(&self.loss_detector.known_generation(), &there)
            }
            MarkerCheck::Accepted(generation) => {
                tracing::warn!(
                    server = %self.server,
                    "an operator has accepted that Redis lost records: keys are served again, and lost ones execute again"
                );
                self.loss_detector.set_intact(&generation, &there);
            }
            MarkerCheck::Lost(what) => self.report_loss(&what, Loss::Marker),
            MarkerCheck::RolledBack(what) => {
                self.report_loss(&what, Loss::Writes);
                marker::spread(&self.connection, &self.keys, &self.loss_detector.known_generation()).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn report_loss(&self, what: &str, loss: Loss) {
        if self.loss_detector.set_lost(what, loss) {
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
