//! Requests that go through without protection, on routes that allow it while the store is away.

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

/// How soon a request is worth repeating while another one goes through unprotected: most end within a second.
const PASSING_RETRY: Duration = Duration::from_secs(1);

/// The request, until it is sent. It can be taken out once: by the work, or to be passed on unprotected.
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
    /// Whether the route lets requests through while the store is away.
    fn is_passable(&self) -> bool {
        let policy = &self.ticket.policy;
        (policy.store_down, policy.key) == (StoreDown::Pass, KeyRule::Optional)
    }

    /// Enters a request that may go through unprotected, before its claim is sent. The claim's work keeps the entry, too: it
    /// goes on when the client goes away.
    pub(super) fn enter(&self, id: RecordId) -> Result<Option<Arc<PassThroughEntry>>, Problem> {
        if !self.is_passable() {
            return Ok(None);
        }
        let entry = self.shared.engine.enter(id).ok_or(Problem::InProgress { retry_after: PASSING_RETRY })?;
        Ok(Some(Arc::new(entry)))
    }

    /// Whether a request may go through unprotected: only where nothing of its claim can be in the store, and no other request
    /// under its key is under way in this process.
    pub(super) fn passes_on(
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
            | EngineError::Stopping
            | EngineError::Contended { .. } => false,
        };
        away && !self.shared.engine.has(id) && entry.is_some_and(PassThroughEntry::may_pass)
    }
}

/// Sends a request unprotected, in a task of its own: it goes on when its client goes away, and until its answer has been read no
/// other request under its key goes through.
pub(super) async fn pass<S, B, R>(
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
    let passing = async move {
        std::future::poll_fn(|context| inner.poll_ready(context)).await?;
        let response = inner.call(request).await?;
        Ok(response.map(|body| Body::entered(body, entry)))
    };
    match tokio::spawn(passing.instrument(Span::current())).await {
        Ok(answered) => answered,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and drops this future, too.
            Err(_) => std::future::pending().await,
        },
    }
}
