//! Whether the process runs, and whether it should get requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use onceward::plumbing::time::{Instant, instant, sleep};
use onceward::{Engine, RecordId};
use serde_json::json;
use tokio::sync::Mutex;

use super::{Context, response};

/// How long the store may take to answer a read before it counts as silent.
const PATIENCE: Duration = Duration::from_secs(2);
/// The store is read at most once in this time, however often probes come.
const FRESH: Duration = Duration::from_secs(1);
/// A record that every store has: its own note of its identity.
const PROBED: RecordId = RecordId::from_bytes([0; 16]);

/// Whether this process should get requests. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    draining: Arc<AtomicBool>,
}

impl Readiness {
    /// Fails readiness from now on. Call it first on SIGTERM, before anything is closed.
    pub fn draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether [`draining`](Self::draining) was called.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// The store's last answer.
#[derive(Debug, Default)]
pub(super) struct Probe {
    last: Mutex<Option<(Instant, StoreHealth)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreHealth {
    Answering,
    Silent,
}

impl Probe {
    async fn store(&self, engine: &Engine) -> StoreHealth {
        let mut last = self.last.lock().await;
        if let Some((at, health)) = *last
            && at.elapsed() < FRESH
        {
            return health;
        }
        // An outage is logged when it begins, and not at every probe.
        let known = last.is_some_and(|(_, health)| matches!(health, StoreHealth::Silent));
        let health = tokio::select! {
            biased;
            loaded = engine.load(PROBED) => match loaded {
                Ok(_) => StoreHealth::Answering,
                Err(error) => {
                    not_ready(known, &error);
                    StoreHealth::Silent
                }
            },
            () = sleep(PATIENCE) => {
                not_ready(known, &format_args!("the store did not answer within {PATIENCE:?}"));
                StoreHealth::Silent
            }
        };
        if known && matches!(health, StoreHealth::Answering) {
            tracing::info!("the gateway is ready again: the store answers");
        }
        *last = Some((instant(), health));
        health
    }
}

fn not_ready(known: bool, cause: &dyn std::fmt::Display) {
    if !known {
        tracing::warn!(
            %cause,
            next = "see to the store: until it answers, GET /readyz says 503",
            "the gateway is not ready: the store does not answer"
        );
    }
}

/// `GET /livez`
pub(super) async fn live() -> &'static str {
    "ok\n"
}

/// `GET /readyz`
pub(super) async fn ready(context: Context) -> Response {
    let mut reasons = Vec::new();
    if context.readiness.is_draining() {
        reasons.push("draining");
    }
    if context.probe.store(&context.engine).await == StoreHealth::Silent {
        reasons.push("store_not_answering");
    }
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    response::json(status, &json!({ "ready": reasons.is_empty(), "reasons": reasons }))
}
