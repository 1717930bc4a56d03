//! The admin listener and what the gateway tells about itself, on a real engine.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod access;
mod docs;
mod health;
mod logs;
mod metrics;
mod operations;
mod serving;
mod tokens;
mod traces;
mod workers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, Response, StatusCode};
use onceward::receipts::ReceiptFinder;
use onceward::reconcile::{FindTerms, Reconciling};
use onceward::store::Store;
use onceward::{
    Claim, Engine, Fingerprint, Identity, Key, MemoryStore, Outcome, Ran, RecordId, Reply, Scope, Timestamp,
    engine::Instance,
};
use onceward_gateway::admin::{self, AdminState, Readiness, Tokens};
use onceward_gateway::settings::{Role, Token};
use onceward_gateway::telemetry::metrics::Metrics;
use onceward_testkit::VirtualClock;
use onceward_testkit::receipts::MemoryReceipts;
use serde_json::Value;
use tower::ServiceExt as _;

const READER: &str = "a-reader-token-000";
const WORKER: &str = "a-worker-token-000";
const OPERATOR: &str = "an-operator-token-0";
const ROUTE: &str = "POST /payments";
const SECOND: Duration = Duration::from_secs(1);

/// An admin listener without its socket, and what it is about.
struct Bench {
    engine: Engine,
    metrics: Metrics,
    readiness: Readiness,
    router: Router,
    clock: Arc<VirtualClock>,
}

fn clock() -> Arc<VirtualClock> {
    Arc::new(VirtualClock::running_from(Timestamp::from_micros(1_800_000_000_000_000)))
}

/// A finder whose state is shown. The engine does not ask it.
fn receipts() -> Arc<ReceiptFinder> {
    let table = Arc::new(MemoryReceipts::with_clock(clock()));
    Arc::new(ReceiptFinder::new(Identity::in_namespace("tests"), &Reconciling::default()).route(
        ROUTE,
        table,
        FindTerms::default(),
    ))
}

fn tokens() -> Tokens {
    let token =
        |name: &str, role, token: &str| Token { name: name.to_owned(), role, token: token.to_owned() };
    Tokens::new(&[
        token("ann", Role::Reader, READER),
        token("wendy", Role::Worker, WORKER),
        token("olga", Role::Operator, OPERATOR),
    ])
    .unwrap()
}

impl Bench {
    async fn new() -> Self {
        let clock = clock();
        Self::on(MemoryStore::with_clock(clock.clone()), clock).await
    }

    async fn on(store: impl Store, clock: Arc<VirtualClock>) -> Self {
        let metrics = Metrics::new([ROUTE, "default"].into_iter()).unwrap();
        metrics.receipts(receipts());
        let builder = Engine::builder(metrics.measured(Arc::new(store)))
            .instance(Instance::named(1))
            .clock(clock.clone())
            .observer(metrics.observer());
        let identity = Identity::in_namespace("tests").scoped_by("fixed:all").unwrap();
        let engine = builder.open(identity).await.unwrap();
        let readiness = Readiness::default();
        let bench = Self { engine, metrics, readiness, router: Router::new(), clock };
        Self { router: admin::router(bench.state("127.0.0.1:8421")), ..bench }
    }

    /// What a listener at this address is about.
    fn state(&self, listener: &str) -> AdminState {
        AdminState {
            engine: self.engine.clone(),
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            tokens: Arc::new(ArcSwap::from_pointee(tokens())),
            listener: listener.parse().unwrap(),
        }
    }

    async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// An operator's request from elsewhere, and its JSON answer.
    async fn operate(&self, method: Method, path: &str, body: &str) -> (StatusCode, Value) {
        self.ask(method, path, body, OPERATOR).await
    }

    async fn ask(&self, method: Method, path: &str, body: &str, token: &str) -> (StatusCode, Value) {
        let request = request(method, path, "10.0.0.9:5000")
            .header(AUTHORIZATION, format!("Bearer {token}"))
            .body(Body::from(body.to_owned()))
            .unwrap();
        let response = self.send(request).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{path}: {body:?} is not JSON")))
    }

    async fn run(&self, key: &str, body: &str, outcome: Outcome) -> Ran {
        self.engine.run(claim(key, body), async move |_| outcome).await.unwrap()
    }

    /// Leaves an operation whose outcome nobody knows.
    async fn lose(&self, key: &str) -> RecordId {
        let ran = self.run(key, "body", Outcome::lost("the upstream went away")).await;
        assert!(matches!(ran, Ran::Unknown(_)), "{ran:?}");
        id(key)
    }

    /// Makes an unknown outcome a dead letter.
    async fn bury(&self, key: &str) {
        let fence = self.engine.load(id(key)).await.unwrap().unwrap().record.fence;
        let terms = FindTerms::default().attempts(1);
        self.engine.inconclusive(id(key), fence, terms, "nobody can tell").await.unwrap();
    }

    fn text(&self) -> String {
        self.metrics.text()
    }
}

fn request(method: Method, path: &str, peer: &str) -> http::request::Builder {
    let peer: SocketAddr = peer.parse().unwrap();
    Request::builder().method(method).uri(path).header(HOST, "127.0.0.1:8421").extension(ConnectInfo(peer))
}

fn claim(key: &str, body: &str) -> Claim {
    let (scope, key) = (Scope::new("acme").unwrap(), Key::new(key).unwrap());
    Claim::new(scope, key, Fingerprint::of_bytes(body.as_bytes())).route(ROUTE).unwrap()
}

fn id(key: &str) -> RecordId {
    Identity::in_namespace("tests")
        .scoped_by("fixed:all")
        .unwrap()
        .id_of(&Scope::new("acme").unwrap(), &Key::new(key).unwrap())
}

fn done() -> Outcome {
    Outcome::completed(Reply::new("paid").with_status(201))
}
