//! The admin listener: health, metrics and the operations API.
//!
//! What happens to a request, in order:
//!
//! 1. `/livez` and `/readyz` are answered to everybody.
//! 2. Everything else needs a token; looking from the same machine at a listener on loopback does not, but at stored bodies it
//!    does. [`token`] says which token allows what.
//! 3. `/v1/operations` is a thin door to the engine: it adds no rule of its own, and every change is a compare-and-swap.
//! 4. Whatever goes wrong is told as `application/problem+json` with a `code`.

mod access;
mod change;
mod health;
mod input;
mod look;
mod problem;
mod record;
mod reply;
pub mod token;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State as Held};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use onceward::Engine;
use onceward::plumbing::time::sleep;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

pub use self::health::Readiness;
pub use self::token::Tokens;

use self::access::{Ends, Need, admit};
use self::problem::Problem;
use crate::settings::Role;
use crate::telemetry::metrics::Metrics;

/// Operators, probes and a scraper or two. Beyond, they wait to be accepted.
const CONNECTIONS_MAX: usize = 256;
/// How long the head of a request may take, and how long a connection may stay idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long answers may take to go out when the listener ends.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// A listener that fails, for want of file descriptors, would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the admin listener tells about and works on.
#[derive(Debug, Clone)]
pub struct AdminState {
    /// Everything that is done to operations goes through it.
    pub engine: Engine,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// What `/readyz` tells.
    pub readiness: Readiness,
    /// Who may do what, from now on.
    pub tokens: Arc<ArcSwap<Tokens>>,
    /// Where it listens. Only one on loopback may be looked at without a token.
    pub listener: SocketAddr,
}

struct Shared {
    engine: Engine,
    metrics: Metrics,
    readiness: Readiness,
    tokens: Arc<ArcSwap<Tokens>>,
    listener: SocketAddr,
    probe: health::Probe,
}

/// Every path of the admin listener. Requests must carry their peer's address as [`ConnectInfo`]; those that do not are
/// treated as coming from elsewhere.
pub fn router(state: AdminState) -> Router {
    let AdminState { engine, metrics, readiness, tokens, listener } = state;
    let probe = health::Probe::default();
    let shared = Arc::new(Shared { engine, metrics, readiness, tokens, listener, probe });
    let guarded = |need: Need, method: MethodRouter<Arc<Shared>>| {
        let shared = shared.clone();
        method
            .route_layer(middleware::from_fn(move |request, next| guard(shared.clone(), need, request, next)))
    };
    let by_worker = |method| guarded(Need::Change(Role::Worker), method);
    let by_operator = |method| guarded(Need::Change(Role::Operator), method);
    let claims = by_worker(post(change::claim));
    Router::new()
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", guarded(Need::Look, get(metrics_text)))
        .route("/v1/operations", guarded(Need::Look, get(look::list)).merge(claims))
        .route("/v1/operations/{id}", guarded(Need::Look, get(look::one)))
        .route("/v1/operations/{id}/renew", by_worker(post(change::renew)))
        .route("/v1/operations/{id}/checkpoint", by_worker(post(change::checkpoint)))
        .route("/v1/operations/{id}/settle", by_worker(post(change::settle)))
        .route("/v1/operations/{id}/resolve", by_operator(post(change::resolve)))
        .route("/v1/operations/{id}/expire", by_operator(post(change::expire)))
        .method_not_allowed_fallback(async || Problem::NoSuchMethod)
        .fallback(async || Problem::NoSuchPath)
        .with_state(shared)
}

async fn guard(shared: Arc<Shared>, need: Need, mut request: Request, next: Next) -> Response {
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map_or(unknown, |peer| peer.0);
    let ends = Ends { listener: shared.listener, peer };
    match admit(need, ends, request.headers(), &shared.tokens.load()) {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

async fn metrics_text(Held(shared): Held<Arc<Shared>>) -> Response {
    shared.metrics.look(&shared.engine).await;
    let mut response = shared.metrics.text().into_response();
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    response
}

/// Answers on a listener until `stop` ends, and then what was begun, for a few seconds.
pub async fn serve(listener: TcpListener, state: AdminState, stop: impl Future<Output = ()>) {
    let router = router(state);
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    let accepting = async {
        loop {
            let Ok(permit) = connections.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let answered = graceful.watch(connection(router.clone(), stream, peer));
                    tokio::spawn(async move {
                        // A client that breaks off harms nobody but itself.
                        drop(answered.await);
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(cause = %error, "the admin listener could not accept a connection: it is tried again");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop => {}
    }
    tokio::select! {
        () = graceful.shutdown() => {}
        () = sleep(LAST_ANSWERS) => tracing::warn!("stopping: answers of the admin listener were cut off"),
    }
}

type Connection = hyper::server::conn::http1::Connection<
    TokioIo<TcpStream>,
    TowerToHyperService<axum::middleware::AddExtension<Router, ConnectInfo<SocketAddr>>>,
>;

fn connection(router: Router, stream: TcpStream, peer: SocketAddr) -> Connection {
    use tower_layer::Layer as _;
    let service = axum::Extension(ConnectInfo(peer)).layer(router);
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
}
