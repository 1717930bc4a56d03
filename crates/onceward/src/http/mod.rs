//! The tower layer: HTTP wrapped around the engine, for axum, hyper, tonic and anything else that is a tower service.
//!
//! What happens to a request, in order:
//!
//! 1. Copies of the operation headers (`Onceward-Operation` and its kin) that a client sent are removed.
//! 2. A method that differs from a known one only in case, such as `post`, is refused, because a service may treat it as
//!    the known one.
//! 3. `GET /.well-known/idempotency` is answered here: the policy of every route, and the state of a caller's own key.
//! 4. The first route that matches gives the request its [`Policy`]. A request with a method that the policy does not list,
//!    or without a key where none is required, passes through untouched and unbuffered. So does every request on a route in
//!    [`Mode::Observe`], which is also counted.
//! 5. The key is read, then the scope. If either is missing or malformed, the request is refused before the store is asked.
//! 6. The body is read whole, within limits of size, memory and time. Its fingerprint shows whether a retry is the same
//!    request.
//! 7. The engine claims the key. From here on everything is detached: a client that goes away stops nothing.
//! 8. Refused: the client gets a problem that says what to do next. Replayed: it gets the first answer. Every answer from here
//!    on names the operation.
//! 9. Executed: the inner service is called once, with the [`Operation`](crate::Operation) in headers and extensions, and asked for an answer
//!    without a content coding. Its answer is read whole, up to a limit, and [classified](Class): completed, retryable or
//!    unknown.
//! 10. The outcome is stored. Only when that is durable does the first byte go to the client.
//!
//! Every response has [`Handled`] among its extensions, which says how the request was handled.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use axum::{Router, body::Body, routing::post};
//! use http::Request;
//! use onceward::http::{IdempotencyLayer, Policy, Routes, ScopeRules};
//! use onceward::{Engine, Identity, MemoryStore};
//! use tower::ServiceExt as _;
//!
//! static CHARGES: AtomicU32 = AtomicU32::new(0);
//!
//! async fn charge() -> String {
//!     format!("charge {}", CHARGES.fetch_add(1, Ordering::SeqCst) + 1)
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let scope = ScopeRules::parse(["authorization"])?;
//! let identity = Identity::in_namespace("payments").scoped_by(&scope)?;
//! let engine = Engine::builder(Arc::new(MemoryStore::default())).open(identity).await?;
//! let layer = IdempotencyLayer::new(engine, scope, Routes::new(Policy::new())?)?;
//!
//! let app = Router::new().route("/charges", post(charge)).layer(layer);
//!
//! for replayed in [None, Some("true")] {
//!     let request = Request::post("/charges")
//!         .header("authorization", "Bearer sk_live_1")
//!         .header("idempotency-key", "order-17")
//!         .body(Body::from("{\"amount\":1299}"))?;
//!     let response = app.clone().oneshot(request).await?;
//!     assert_eq!(response.headers().get("idempotency-replayed").map(|value| value.to_str()).transpose()?, replayed);
//!     assert_eq!(axum::body::to_bytes(response.into_body(), 1024).await?, "charge 1");
//! }
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admit;
mod advice;
mod body;
mod body_budget;
mod classify;
mod close_delimited;
mod credential;
mod encoding;
mod exchange;
mod execute;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod handled;
mod layer;
mod list_header;
mod method;
mod operation_headers;
mod path;
mod percent;
mod policy;
mod problem;
mod problem_json;
mod receipt;
mod reply;
mod routes;
mod scope;
mod service;
mod shadow;
mod suspicion;
mod unprotected;
mod wellknown;

pub use self::body::Body;
pub use self::classify::{Class, EveryErrorUnknown, Failure, OnError};
pub use self::close_delimited::{CloseDelimited, EndsWithConnection};
#[cfg(feature = "axum")]
pub use self::extract::NoOperation;
pub use self::future::ResponseFuture;
pub use self::handled::{Disposition, Handled};
pub use self::layer::{IdempotencyLayer, LayerError};
pub use self::method::is_miscased;
pub use self::policy::{Flavor, InProgress, KeyRule, Mode, Policy, PolicyError, SetCookie, StoreDown};
pub use self::problem::{AnswerFault, KeyFault, NextAction, Problem, ProblemDetails};
#[doc(hidden)]
pub use self::problem_json::ProblemJson;
pub use self::routes::{Routes, RoutesError};
pub use self::scope::{ScopeMissing, ScopeRule, ScopeRuleError, ScopeRules};
pub use self::service::Idempotency;
pub use self::wellknown::STATUS as STATUS_PATH;

/// The headers that this layer reads and writes, in the lower case that HTTP/2 and the `http` crate use.
pub mod header {
    use ::http::HeaderName;

    /// A client's name for its operation.
    pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
    /// `true` on an answer that was given before.
    pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
    /// The same, as Stripe spells it.
    pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
    /// Until when retries are promised the same answer, as RFC 3339 has it.
    pub const IDEMPOTENCY_EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");
    /// What became of the operation: in the inner service's answer, as the service says; in this layer's, as the layer
    /// says.
    pub const OUTCOME: HeaderName = HeaderName::from_static("onceward-outcome");
    /// `unavailable` on an answer that was given without protection.
    pub const STORE: HeaderName = HeaderName::from_static("onceward-store");
    /// `true` or `false` on this layer's problems: whether a client library should send the same request again by itself.
    pub const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
    /// The same, as Stripe spells it.
    pub const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");
    /// The operation's id, the same in every retry: tells it the inner service, and the client in every answer under a key.
    pub const OPERATION: HeaderName = HeaderName::from_static("onceward-operation");
    /// Tells the inner service its fence.
    pub const FENCE: HeaderName = HeaderName::from_static("onceward-fence");
    /// Tells the inner service which tenure this is.
    pub const ATTEMPT: HeaderName = HeaderName::from_static("onceward-attempt");
    /// Tells the inner service the last phase that was committed, `started` where there is none.
    pub const RECOVERY_POINT: HeaderName = HeaderName::from_static("onceward-recovery-point");

    /// The inner service trusts these, so those that a client sent are removed.
    pub(super) const OPERATION_HEADERS: [HeaderName; 4] = [OPERATION, FENCE, ATTEMPT, RECOVERY_POINT];
}
