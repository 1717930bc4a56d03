//! The tower layer, with a ledger that only the inner service writes.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod attack;
mod bodies;
mod body_budget;
mod contract;

mod doors;
mod encoding;
mod execution;
mod extract;
mod fault;
mod h2;
mod handled;
mod keys;
#[path = "../support/log.rs"]
mod log;
mod observations;
mod observe;
mod operation;
mod outcome;
mod protocol_doc;
mod receipts;
mod replies;

mod tenants;
mod upstream;
mod wellknown;
mod wire;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use onceward::http::{Failure, Handled, IdempotencyLayer, Policy, Routes, ScopeRules};
use onceward::store::Store;
use onceward::{Engine, EngineBuilder, Identity, MemoryStore, RecordId, Timestamp};
use onceward::{engine::Instance, event::FindTerms};
use onceward_testkit::VirtualClock;
use tower::{Layer as _, ServiceExt as _};

use crate::upstream::{Broke, Upstream};

const SECOND: Duration = Duration::from_secs(1);

/// A protected service: the engine, the layer's settings, and the upstream behind it.
#[derive(Clone)]
struct World {
    engine: Engine,
    routes: Routes,
    scope: ScopeRules,
    upstream: Upstream,
}

/// An answer, read whole.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
    handled: Handled,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Status and code of a problem, whose form is checked on the way.
    fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.header("link"), Some("</.well-known/idempotency>; rel=\"describedby\""));
        let body = self.json();
        for member in ["type", "title", "detail", "code", "next_action"] {
            assert!(body[member].as_str().is_some_and(|text| !text.is_empty()), "{member} in {body}");
        }
        assert_eq!(body["status"], self.status);
        let code = body["code"].as_str().unwrap().to_owned();
        let again = matches!(body["next_action"].as_str(), Some("wait" | "retry_same_key"));
        assert_eq!(self.header("x-should-retry"), Some(if again { "true" } else { "false" }), "{body}");
        if let Some(stripe) = self.header("stripe-should-retry") {
            assert_eq!(Some(stripe), self.header("x-should-retry"));
        }
        assert_eq!(body["operation"].as_str(), self.header("onceward-operation"), "{self:?}");
        assert!(body["type"].as_str().unwrap().ends_with(&format!("/.well-known/idempotency#{code}")));
        (self.status, code)
    }

    fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }
}

fn builder(store: impl Store) -> EngineBuilder {
    Engine::builder(Arc::new(store)).instance(Instance::named(1))
}

fn memory() -> MemoryStore {
    let start = Timestamp::from_micros(1_800_000_000_000_000);
    MemoryStore::with_clock(Arc::new(VirtualClock::running_from(start)))
}

async fn world(policy: Policy) -> World {
    world_on(memory(), policy).await
}

async fn world_on(store: impl Store, policy: Policy) -> World {
    world_with(builder(store), policy).await
}

async fn world_with(builder: EngineBuilder, policy: Policy) -> World {
    let scope = ScopeRules::parse_verified(["header:x-tenant"]).unwrap();
    world_of(builder, policy, scope).await
}

/// A world whose keys are scoped by other rules.
async fn scoped_by(scope: ScopeRules) -> World {
    world_of(builder(memory()), Policy::new(), scope).await
}

async fn world_of(builder: EngineBuilder, policy: Policy, scope: ScopeRules) -> World {
    let identity = Identity::in_namespace("tests").scoped_by(&scope).unwrap();
    let engine = builder.open(identity).await.unwrap();
    World { engine, routes: Routes::new(policy).unwrap(), scope, upstream: Upstream::default() }
}

impl World {
    async fn send(&self, request: Request<Full<Bytes>>) -> Got {
        let layer = IdempotencyLayer::new(self.engine.clone(), self.scope.clone(), self.routes.clone())
            .unwrap()
            .on_error(|error: &Broke| match error {
                Broke::Refused => Failure::NotExecuted,
                Broke::Late => Failure::TimedOut,
                Broke::Off => Failure::Broken,
            });
        let upstream = self.upstream.clone();
        let service = layer.layer(tower::service_fn(move |request| upstream.clone().answer(request)));
        let (parts, body) = service.oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        // Every response has this extension.
        let handled = parts.extensions.get::<Handled>().unwrap().clone();
        Got {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.to_bytes(),
            trailers,
            handled,
        }
    }

    /// Leaves an unknown outcome to a person.
    async fn give_up(&self, id: RecordId) {
        let fence = self.engine.load(id).await.unwrap().unwrap().record.fence;
        let terms = FindTerms::default().attempts(1);
        self.engine.inconclusive(id, fence, terms, "nobody can tell").await.unwrap();
    }

    fn ledger(&self) -> u64 {
        self.upstream.ledger.load(Ordering::SeqCst)
    }
}

/// `POST /payments` with a key, for the tenant `acme`.
fn post(key: &str, body: &str) -> Request<Full<Bytes>> {
    doing("", key, body)
}

/// The same, with a header that tells the upstream how to behave. It is not part of the fingerprint.
fn doing(what: &str, key: &str, body: &str) -> Request<Full<Bytes>> {
    Request::post("/payments")
        .header("x-tenant", "acme")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .header("x-do", what)
        .body(Full::from(body.to_owned()))
        .unwrap()
}

fn with(mut request: Request<Full<Bytes>>, name: &'static str, value: &str) -> Request<Full<Bytes>> {
    request.headers_mut().append(name, value.parse().unwrap());
    request
}

fn without(mut request: Request<Full<Bytes>>, name: &str) -> Request<Full<Bytes>> {
    while request.headers_mut().remove(name).is_some() {}
    request
}
