//! The layer: what is the same for every request.

use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use super::advice::Advice;
use super::body_budget::{BodyBudget, DEFAULT_BODY_BUDGET};
use super::classify::EveryErrorUnknown;
use super::routes::Routes;
use super::scope::ScopeRules;
use super::service::Idempotency;
use super::wellknown::Links;
use crate::Engine;
use crate::record::Receipts;

/// Makes every retried write behind it happen once. See the [module](super) for what happens to a request.
///
/// `C` says what an error of the inner service means; by default every error leaves the outcome unknown.
#[derive(Debug)]
pub struct IdempotencyLayer<C = EveryErrorUnknown> {
    shared: Arc<LayerState>,
    on_error: Arc<C>,
}

/// The state that all requests of a layer share.
#[derive(Clone)]
pub(super) struct LayerState {
    pub engine: Engine,
    pub scope: ScopeRules,
    pub routes: Routes,
    pub links: Links,
    pub body_budget: Arc<BodyBudget>,
    pub body_patience: Duration,
    pub advice: Arc<Advice>,
}

/// Enough for the largest default body over a slow mobile line, and an end for a client that sends a byte now and then.
const BODY_PATIENCE: Duration = Duration::from_secs(60);

/// A problem with its headers and the longest base URL takes less than this.
const PROBLEM_BYTES: usize = 2048;

/// Why a layer cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// An answer that the layer accepts could not be stored.
    #[error(
        "max_response_body = {found} of the route {route:?} is over the engine's limit for replies: raise Limits::reply_bytes above {limit}, or lower it"
    )]
    ResponseBody {
        /// The route.
        route: String,
        /// The route's setting.
        found: usize,
        /// The engine's limit.
        limit: usize,
    },
    /// A fingerprint is keyed with a secret of its own. Once that secret changes, every retry would look like another
    /// request.
    #[error(
        "the fingerprint of the route {route:?} is keyed with another secret than the engine's: leave it without one, and the layer keys it with the secret of `Identity::with_secret`"
    )]
    FingerprintSecret {
        /// The route.
        route: String,
    },
    /// The layer would scope keys by another rule than the engine's identity names.
    #[error(
        "the layer scopes keys by {layer:?}, but the engine's identity by {engine:?}: give `scoped_by` of the identity the layer's rules"
    )]
    Scope {
        /// The layer's rules.
        layer: String,
        /// What the engine's identity says.
        engine: String,
    },
    /// Nothing reads the receipts of the route, so that its unknown outcomes would never be found out.
    #[error(
        "the route {route:?} has receipts, and the engine has no reconciler that finds them out: give `Engine::builder` a `ReceiptFinder` that knows this route"
    )]
    Receipts {
        /// The route.
        route: String,
    },
    /// The 502 that stands for an answer that is too large could not be stored either.
    #[error(
        "the engine keeps replies of at most {limit} bytes: raise Limits::reply_bytes to at least {PROBLEM_BYTES}"
    )]
    Replies {
        /// The engine's limit.
        limit: usize,
    },
    /// A body that the route accepts would never fit into memory.
    #[error(
        "held_bytes = {limit} is less than max_request_body = {found} of the route {route:?}: raise it, or lower that"
    )]
    HeldBytes {
        /// The route.
        route: String,
        /// The route's setting.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// No body would arrive in time.
    #[error("body_patience = 0 would refuse every body: choose some seconds")]
    BodyPatience,
    /// The text cannot be the beginning of a URL.
    #[error(
        "{url:?} cannot stand before /.well-known: give an origin such as \"https://api.example.com\", with a path or without"
    )]
    BaseUrl {
        /// The text as it was given.
        url: String,
    },
}

impl IdempotencyLayer {
    /// A layer on an engine whose [`Identity`](crate::Identity) is scoped by the same rules. Fingerprints are keyed with the engine's
    /// secret, if it has one.
    pub fn new(engine: Engine, scope: ScopeRules, routes: Routes) -> Result<Self, LayerError> {
        let limit = engine.limits().reply_bytes;
        if limit < PROBLEM_BYTES {
            return Err(LayerError::Replies { limit });
        }
        let (rules, identity) = (scope.to_string(), engine.scope_rule());
        if rules != identity {
            return Err(LayerError::Scope { layer: rules, engine: identity.to_owned() });
        }
        let routes = match engine.secret() {
            Some(secret) => routes.keyed_by(secret),
            None => routes,
        };
        for (route, _, policy) in routes.policies() {
            if !policy.fingerprint.is_keyed_by(engine.secret()) {
                return Err(LayerError::FingerprintSecret { route: route.to_owned() });
            }
            if policy.kept_receipts() == Receipts::Kept && !engine.finds_out(route) {
                return Err(LayerError::Receipts { route: route.to_owned() });
            }
            if policy.max_response_body > limit {
                let found = policy.max_response_body;
                return Err(LayerError::ResponseBody { route: route.to_owned(), found, limit });
            }
        }
        let links = Links::new("").ok_or_else(|| LayerError::BaseUrl { url: String::new() })?;
        let largest = routes.policies().map(|(_, _, policy)| policy.max_request_body).max().unwrap_or(0);
        let body_budget = BodyBudget::new(DEFAULT_BODY_BUDGET.max(largest));
        let advice = Arc::default();
        let shared =
            LayerState { engine, scope, routes, links, body_budget, body_patience: BODY_PATIENCE, advice };
        Ok(Self { shared: Arc::new(shared), on_error: Arc::new(EveryErrorUnknown) })
    }
}

impl<C> IdempotencyLayer<C> {
    /// Says what an error of the inner service means, such as that a refused connection proves that nothing was done.
    pub fn on_error<D>(self, on_error: D) -> IdempotencyLayer<D> {
        IdempotencyLayer { shared: self.shared, on_error: Arc::new(on_error) }
    }

    /// Sets how many bytes of keyed requests' bodies are held at once, 256 MiB by default. A body draws from it as it is
    /// read; where it does not fit, its request is refused with 503 before anything is claimed.
    pub fn held_bytes(mut self, limit: usize) -> Result<Self, LayerError> {
        for (route, _, policy) in self.shared.routes.policies() {
            let found = policy.max_request_body;
            if found > limit {
                return Err(LayerError::HeldBytes { route: route.to_owned(), found, limit });
            }
        }
        Arc::make_mut(&mut self.shared).body_budget = BodyBudget::new(limit);
        Ok(self)
    }

    /// Sets how long the body of a keyed request may take as a whole, a minute by default. Then it is refused with 408.
    pub fn body_patience(mut self, patience: Duration) -> Result<Self, LayerError> {
        if patience.is_zero() {
            return Err(LayerError::BodyPatience);
        }
        Arc::make_mut(&mut self.shared).body_patience = patience;
        Ok(self)
    }

    /// Sets what clients see before `/.well-known`, where a proxy changes origin or path.
    pub fn base_url(mut self, url: &str) -> Result<Self, LayerError> {
        let links =
            Links::new(url).ok_or_else(|| LayerError::BaseUrl { url: url.chars().take(255).collect() })?;
        Arc::make_mut(&mut self.shared).links = links;
        Ok(self)
    }
}

impl<C> Clone for IdempotencyLayer<C> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), on_error: self.on_error.clone() }
    }
}

impl<S, C> Layer<S> for IdempotencyLayer<C> {
    type Service = Idempotency<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency::new(inner, self.shared.clone(), self.on_error.clone())
    }
}

impl std::fmt::Debug for LayerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerState")
            .field("scope", &self.scope)
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}
