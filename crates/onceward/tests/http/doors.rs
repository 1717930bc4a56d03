//! Real servers over loopback: axum's router, and plain hyper with what a raw socket sees.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::routing::post;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use onceward::http::{IdempotencyLayer, KeyRule, Policy, Routes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tower::Layer as _;

use super::{Upstream, World, world};

async fn layer() -> IdempotencyLayer {
    let World { engine, scope, .. } = world(Policy::new()).await;
    let required = Policy::new().key(KeyRule::Required);
    let routes = Routes::new(Policy::new()).unwrap().route("POST /payments", required).unwrap();
    IdempotencyLayer::new(engine, scope, routes).unwrap()
}

/// An axum router behind the layer, on a port of its own.
async fn axum_server(ledger: Arc<AtomicU64>) -> TcpStream {
    let pay =
        async move |body: String| format!("payment {} of {body}", ledger.fetch_add(1, Ordering::SeqCst) + 1);
    let app = Router::new().route("/payments", post(pay)).layer(layer().await);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    TcpStream::connect(address).await.unwrap()
}

/// The same with nothing but hyper.
async fn hyper_server(upstream: Upstream) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let inner = tower::service_fn(move |request: http::Request<_>| upstream.clone().answer(request));
    let service = layer().await.layer(inner);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = TowerToHyperService::new(service);
        // The layer may close a connection early, which is an error here.
        drop(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await,
        );
    });
    TcpStream::connect(address).await.unwrap()
}

/// Sends bytes, and reads one answer to its end: its head, in lower case, and its body.
async fn exchange(stream: &mut TcpStream, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    let head = loop {
        read.push(stream.read_u8().await.unwrap());
        if read.ends_with(b"\r\n\r\n") {
            break String::from_utf8(read).unwrap().to_ascii_lowercase();
        }
    };
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

fn request(key: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /payments HTTP/1.1\r\nhost: x\r\nx-tenant: acme\r\n{key}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

const KEY: &str = "idempotency-key: k\r\n";

#[tokio::test]
async fn an_axum_router_answers_a_retry_with_a_fresh_date_and_the_stored_answer() {
    let ledger = Arc::<AtomicU64>::default();
    let mut stream = axum_server(ledger.clone()).await;
    let (first, body) = exchange(&mut stream, &request(KEY, "{}")).await;
    assert!(first.starts_with("http/1.1 200") && body == "payment 1 of {}", "{first}{body}");
    let (retry, again) = exchange(&mut stream, &request(KEY, "{}")).await;
    assert_eq!(again, body);
    assert!(
        retry.contains("idempotency-replayed: true") && retry.matches("\r\ndate: ").count() == 1,
        "{retry}"
    );
    assert_eq!(ledger.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_axum_router_publishes_its_policy_though_it_has_no_such_route() {
    let mut stream = axum_server(Arc::default()).await;
    let get = "GET /.well-known/idempotency HTTP/1.1\r\nhost: x\r\n\r\n";
    let (head, body) = exchange(&mut stream, get).await;
    assert!(head.starts_with("http/1.1 200") && body.contains("POST /payments"), "{head}{body}");
}

#[tokio::test]
async fn plain_hyper_answers_a_retry_from_the_record() {
    let upstream = Upstream::default();
    let mut stream = hyper_server(upstream.clone()).await;
    let (_, first) = exchange(&mut stream, &request(KEY, "{}")).await;
    let (retry, again) = exchange(&mut stream, &request(KEY, "{}")).await;
    assert!(retry.starts_with("http/1.1 201") && first == again, "{retry}");
    assert_eq!(upstream.ledger.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_refused_requests_body_is_read_away_and_what_it_hides_is_never_executed() {
    let upstream = Upstream::default();
    let mut stream = hyper_server(upstream.clone()).await;
    let hidden = request("idempotency-key: hidden\r\n", "{}");
    let (head, _) = exchange(&mut stream, &request("", &hidden)).await;
    assert!(head.starts_with("http/1.1 400") && !head.contains("connection: close"), "{head}");
    // The connection goes on with the next request, and not with the bytes hidden in the body.
    let (head, body) = exchange(&mut stream, &request(KEY, "{}")).await;
    assert!(head.starts_with("http/1.1 201") && body == "execution 1 of {}", "{head}{body}");
    assert_eq!(upstream.ledger.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_refused_request_with_too_much_left_closes_the_connection() {
    for (key, expect) in [("", ""), ("", "expect: 100-continue\r\n"), (KEY, "")] {
        let upstream = Upstream::default();
        let mut stream = hyper_server(upstream.clone()).await;
        let request = format!(
            "POST /payments HTTP/1.1\r\nhost: x\r\nx-tenant: acme\r\n{key}{expect}content-length: 9000000\r\n\r\n"
        );
        let (head, _) = exchange(&mut stream, &request).await;
        assert!(head.starts_with("http/1.1 4") && head.contains("connection: close"), "{head}");
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 0, "the connection must be closed");
        assert_eq!(upstream.ledger.load(Ordering::SeqCst), 0);
    }
}
