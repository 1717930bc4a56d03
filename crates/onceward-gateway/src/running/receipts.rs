//! What a gateway does for its receipt tables in the background.

use std::sync::Arc;
use std::time::Duration;

use onceward::Engine;
use onceward::plumbing::time::{instant, sleep};
use onceward::receipts::ReceiptFinder;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Stage;

/// How often the state of the voids is read again, which other gateways and operators change. It is a metric, and alarms on it
/// wait for minutes.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// How often old rows are looked for. They are days old by then.
const DELETE_EVERY: Duration = Duration::from_secs(60 * 60);

/// Reads the state of the voids now and then, and deletes old rows, until the gateway stops.
pub(super) fn keep(
    finder: Arc<ReceiptFinder>,
    engine: Engine,
    mut stage: watch::Receiver<Stage>,
) -> JoinHandle<()> {
    let work = async move {
        let mut deleted_at = None;
        loop {
            if let Err(error) = finder.refresh().await {
                tracing::debug!(%error, "the state of the receipts could not be read");
            }
            if deleted_at.is_none_or(|at| instant().duration_since(at) >= DELETE_EVERY) {
                deleted_at = Some(instant());
                match finder.delete_old_rows(&engine).await {
                    Ok(0) => {}
                    Ok(rows) => {
                        tracing::info!(rows, "old receipts were deleted: their operations are forgotten")
                    }
                    Err(error) => tracing::warn!(
                        %error,
                        next = "see to that database: `onceward check` tells more",
                        "old receipts could not be deleted, which is tried again in an hour"
                    ),
                }
            }
            sleep(REFRESH_EVERY).await;
        }
    };
    tokio::spawn(async move {
        tokio::select! {
            biased;
            _ = stage.wait_for(|stage| *stage >= Stage::Draining) => {}
            () = work => {}
        }
    })
}
