//! The admin listener: health, metrics and the operations API.
//!
//! What happens to a request, in order:
//!
//! 1. `/livez` and `/readyz` need no token.
//! 2. Everything else needs one. Reads from the same machine through a listener on loopback do not, except for stored bodies.
//!    [`token`] has what each token allows.
//! 3. `/v1/operations` calls the engine: it adds no rule of its own, and every change is a compare-and-swap.
//! 4. Every error is `application/problem+json` with a `code`.

mod access;
mod health;
mod input;
mod operator;
mod problem;
mod queries;
mod record_json;
mod reply_json;
mod response;
pub mod token;
mod worker;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use onceward::Engine;
use onceward::plumbing::time::sleep;
use tokio::net::TcpListener;
use tower_layer::Layer as _;

pub use self::health::Readiness;
pub use self::token::Tokens;

use self::access::{Ends, Need, admit};
use self::problem::Problem;
use crate::listener::{Accepted, Ended, Listener};
use crate::settings::Role;
use crate::telemetry::metrics::Metrics;

/// Enough for operators, probes and a scraper or two. Beyond, connections wait to be accepted.
const CONNECTIONS_MAX: usize = 256;
/// How long the head of a request may take, and how long a connection may stay idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long answers may take to go out when the listener ends.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// What the admin listener reads and changes.
#[derive(Debug, Clone)]
pub struct AdminState {
    /// Every operation is read and changed through it.
    pub engine: Engine,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// What `/readyz` answers.
    pub readiness: Readiness,
    /// The tokens that are valid now; a reload replaces them.
    pub tokens: Arc<ArcSwap<Tokens>>,
    /// The listener's address. Only one on loopback can be read without a token.
    pub listener: SocketAddr,
}

/// What every handler gets.
struct AdminContext {
    engine: Engine,
    metrics: Metrics,
    readiness: Readiness,
    tokens: Arc<ArcSwap<Tokens>>,
    listener: SocketAddr,
    probe: health::Probe,
}

type Context = State<Arc<AdminContext>>;

/// Every path of the admin listener. Requests must carry their peer's address as [`ConnectInfo`]; those that do not are
/// treated as coming from elsewhere.
pub fn router(state: AdminState) -> Router {
    let AdminState { engine, metrics, readiness, tokens, listener } = state;
    let probe = health::Probe::default();
    let context = Arc::new(AdminContext { engine, metrics, readiness, tokens, listener, probe });
    let guarded = |need: Need, method: MethodRouter<Arc<AdminContext>>| {
        let context = context.clone();
        method.route_layer(middleware::from_fn(move |request, next| {
            guard(context.clone(), need, request, next)
        }))
    };
    let by_worker = |method| guarded(Need::Change(Role::Worker), method);
    let by_operator = |method| guarded(Need::Change(Role::Operator), method);
    let claims = by_worker(post(worker::claim));
    Router::new()
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", guarded(Need::Read, get(metrics_text)))
        .route("/v1/operations", guarded(Need::Read, get(queries::list)).merge(claims))
        .route("/v1/operations/{id}", guarded(Need::Read, get(queries::one)))
        .route("/v1/operations/{id}/renew", by_worker(post(worker::renew)))
        .route("/v1/operations/{id}/checkpoint", by_worker(post(worker::checkpoint)))
        .route("/v1/operations/{id}/settle", by_worker(post(worker::settle)))
        .route("/v1/operations/{id}/resolve", by_operator(post(operator::resolve)))
        .route("/v1/operations/{id}/expire", by_operator(post(operator::expire)))
        .method_not_allowed_fallback(async || Problem::NoSuchMethod)
        .fallback(async || Problem::NoSuchPath)
        .with_state(context)
}

async fn guard(context: Arc<AdminContext>, need: Need, mut request: Request, next: Next) -> Response {
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map_or(unknown, |peer| peer.0);
    let ends = Ends { listener: context.listener, peer };
    match admit(need, ends, request.headers(), &context.tokens.load()) {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

async fn metrics_text(context: Context) -> Response {
    context.metrics.count_unknown(&context.engine).await;
    let mut response = context.metrics.text().into_response();
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    response
}

/// Answers on a listener until `stop` ends, and then what was begun, for a few seconds.
pub async fn serve(socket: TcpListener, state: AdminState, stop: impl Future<Output = ()>) {
    let router = router(state);
    let listener = Listener { socket, connections_max: CONNECTIONS_MAX, log_failure: log_accept_failure };
    let connection = move |accepted| connection(router.clone(), accepted);
    match listener.serve(connection, stop, sleep(LAST_ANSWERS)).await {
        Ended::Drained => {}
        Ended::CutOff { .. } => tracing::warn!("stopping: answers of the admin listener were cut off"),
    }
}

fn log_accept_failure(error: &io::Error) {
    tracing::warn!(cause = %error, "the admin listener could not accept a connection: it is tried again");
}

async fn connection(router: Router, accepted: Accepted) {
    let Accepted { stream, address, place, stopping } = accepted;
    let service = axum::Extension(ConnectInfo(address)).layer(router);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = pin!(connection);
    // How a connection ends matters to its client only.
    tokio::select! {
        biased;
        ended = connection.as_mut() => drop(ended),
        () = stopping.wait() => {
            connection.as_mut().graceful_shutdown();
            drop(connection.await);
        }
    }
    drop(place);
}
