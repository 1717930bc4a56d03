//! Requests that go to the service without protection, on routes that allow it while the store is unavailable.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::{Request, Response};
use tower_service::Service;
use tracing::{Instrument as _, Span};

use super::body::Body;
use super::exchange::Exchange;
use super::policy::{KeyRule, StoreDown};
use super::problem::Problem;
use crate::engine::PassThroughEntry;
use crate::store::StoreError;
use crate::{EngineError, RecordId};

/// When to retry while another request under the same key goes through unprotected: most end within a second.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A request until it is sent. It can be taken out once: by the work, or to be sent unprotected.
pub(super) struct Envelope<B>(Mutex<Option<Request<Body<B>>>>);

impl<B> Envelope<B> {
    pub(super) fn new(request: Request<Body<B>>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(request))))
    }

    pub(super) fn take(&self) -> Option<Request<Body<B>>> {
        // A panic while the lock is held cannot leave half a request.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<C> Exchange<C> {
    /// Whether the route lets requests through while the store is unavailable.
    fn allows_unprotected(&self) -> bool {
        let policy = &self.keyed.policy;
        (policy.store_down, policy.key) == (StoreDown::Pass, KeyRule::Optional)
    }

    /// Registers a request that may go through unprotected, before its claim is sent. The work keeps the entry as well,
    /// because it goes on when the client goes away.
    pub(super) fn enter(&self, id: RecordId) -> Result<Option<Arc<PassThroughEntry>>, Problem> {
        if !self.allows_unprotected() {
            return Ok(None);
        }
        let entry = self.layer.engine.enter(id).ok_or(Problem::InProgress { retry_after: RETRY_AFTER })?;
        Ok(Some(Arc::new(entry)))
    }

    /// Whether a request may go through unprotected: only where its claim cannot be in the store, and no other request under
    /// its key is under way in this process.
    pub(super) fn may_go_unprotected(
        &self,
        id: RecordId,
        error: &EngineError,
        entry: Option<&PassThroughEntry>,
    ) -> bool {
        let away = match error {
            EngineError::Store(StoreError::Unavailable { .. } | StoreError::Overloaded { .. }) => true,
            EngineError::Store(
                StoreError::Ambiguous { .. } | StoreError::Unreadable { .. } | StoreError::Refused { .. },
            )
            | EngineError::Overloaded { .. }
            | EngineError::ReplyTooLarge { .. }
            | EngineError::NotVoided { .. }
            | EngineError::PhaseInReceipt
            | EngineError::Stopping
            | EngineError::Contended { .. } => false,
        };
        away && !self.layer.engine.has(id) && entry.is_some_and(PassThroughEntry::may_pass)
    }
}

/// Sends a request unprotected, in a task of its own, so that it goes on when its client goes away. Until its answer has been
/// read, no other request under its key goes through.
pub(super) async fn send_unprotected<S, B, R>(
    mut inner: S,
    request: Request<Body<B>>,
    entry: Option<Arc<PassThroughEntry>>,
) -> Result<Response<Body<R>>, S::Error>
where
    S: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    let sending = async move {
        std::future::poll_fn(|context| inner.poll_ready(context)).await?;
        let response = inner.call(request).await?;
        Ok(response.map(|body| Body::with_entry(body, entry)))
    };
    match tokio::spawn(sending.instrument(Span::current())).await {
        Ok(answered) => answered,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and drops this future as well.
            Err(_) => std::future::pending().await,
        },
    }
}
