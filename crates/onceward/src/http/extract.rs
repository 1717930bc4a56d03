//! [`Operation`] as an argument of an axum handler (feature `axum`).
//!
//! The layer puts it among the request's extensions. A request has none where it passed unprotected: without a key on a route
//! that requires none, by a method that its policy does not list, on a route that only observes, with `StoreDown::Pass` while the
//! store is away, or where the layer is missing. A handler on such a route takes `Option<Operation>`; one that takes `Operation`
//! answers those requests with 500 and does not run.
//!
//! ```
//! # use std::sync::Arc;
//! use axum::{Router, routing::post};
//! use onceward::http::{IdempotencyLayer, KeyRule, Policy, Routes, ScopeRules};
//! use onceward::{Engine, Identity, MemoryStore, Operation};
//!
//! async fn charge(operation: Operation) -> String {
//!     format!("charged under the provider's key {}", operation.operation_id())
//! }
//!
//! # async fn example() -> Result<Router, Box<dyn std::error::Error>> {
//! # let scope = ScopeRules::parse(["authorization"])?;
//! # let identity = Identity::in_namespace("payments").scoped_by(&scope)?;
//! # let engine = Engine::builder(Arc::new(MemoryStore::default())).open(identity).await?;
//! let routes = Routes::new(Policy::new().key(KeyRule::Required))?;
//! let layer = IdempotencyLayer::new(engine, scope, routes)?;
//! let app: Router = Router::new().route("/charges", post(charge)).layer(layer);
//! # Ok(app)
//! # }
//! ```

use std::convert::Infallible;

use ::http::StatusCode;
use ::http::header::CONTENT_TYPE;
use ::http::request::Parts;
use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};

use crate::Operation;

/// A handler takes an [`Operation`], but its request has none. This is an error of the service, so the client gets a 500.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the handler takes an `Operation`, but its request has none: put `IdempotencyLayer` around the router, with a policy that lists the method and has `KeyRule::Required`; where the route only observes, or has `StoreDown::Pass`, take `Option<Operation>`"
)]
pub struct NoOperation;

/// The reason is logged, and not sent to the client, because it shows how the service is built.
const PROBLEM: &str = r#"{"type":"about:blank","title":"Internal Server Error","status":500,"detail":"This service is not set up to protect this request from being executed twice, and did not execute it."}"#;

impl IntoResponse for NoOperation {
    fn into_response(self) -> Response {
        tracing::error!("{self}");
        let headers = [(CONTENT_TYPE, "application/problem+json")];
        (StatusCode::INTERNAL_SERVER_ERROR, headers, PROBLEM).into_response()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Operation {
    type Rejection = NoOperation;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoOperation> {
        parts.extensions.get::<Self>().cloned().ok_or(NoOperation)
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for Operation {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}
