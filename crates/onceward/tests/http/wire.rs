//! Failures of real connections, in front of the layer and behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use onceward::http::{Body, IdempotencyLayer, Policy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer as _, ServiceExt as _};

use super::{Upstream, World, post, world};

async fn layer() -> IdempotencyLayer {
    let World { engine, scope, routes, .. } = world(Policy::new()).await;
    IdempotencyLayer::new(engine, scope, routes).unwrap()
}

/// Serves any number of connections, one after the other.
async fn serve<S, B>(service: S) -> std::net::SocketAddr
where
    S: tower::Service<Request<hyper::body::Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: std::error::Error + Send + Sync + 'static,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            // Connections break in these tests.
            drop(
                hyper::server::conn::http1::Builder::new()
                    .half_close(true)
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        }
    });
    address
}

/// Sends bytes, closes, and reads everything that comes back, in lower case.
async fn exchange(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    // A reset also ends the connection.
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).to_ascii_lowercase()
}

const HEAD: &str = "POST /payments HTTP/1.1\r\nhost: x\r\nx-tenant: acme\r\nidempotency-key: k\r\n";

#[tokio::test]
async fn a_request_that_is_cut_off_is_not_executed_and_reserves_nothing() {
    let upstream = Upstream::default();
    let behind = upstream.clone();
    let inner = tower::service_fn(move |request: Request<Body<hyper::body::Incoming>>| {
        behind.clone().answer(request)
    });
    let address = serve(layer().await.layer(inner)).await;
    for cut in ["transfer-encoding: chunked\r\n\r\n5\r\n{\"a\":", "content-length: 100\r\n\r\n{\"a\":"] {
        let answer = exchange(address, &format!("{HEAD}{cut}")).await;
        assert!(!answer.starts_with("http/1.1 2"), "{answer}");
        assert_eq!(upstream.ledger.load(Ordering::SeqCst), 0);
    }
    let answer = exchange(address, &format!("{HEAD}content-length: 2\r\n\r\n{{}}")).await;
    assert!(answer.starts_with("http/1.1 201"), "{answer}");
}

#[tokio::test]
async fn trailers_reach_a_client_that_wants_them_the_first_time_and_every_time() {
    let inner = tower::service_fn(|_: Request<Body<hyper::body::Incoming>>| async {
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "42".parse().unwrap())]);
        let frames = [Frame::data(Bytes::from_static(b"body")), Frame::trailers(trailers)];
        let frames = futures_util::stream::iter(frames.map(Ok::<_, std::io::Error>));
        let response = Response::builder().header("trailer", "x-sum").body(StreamBody::new(frames)).unwrap();
        Ok::<_, std::io::Error>(response)
    });
    let address = serve(layer().await.layer(inner)).await;
    for replayed in [false, true] {
        let request = format!("{HEAD}te: trailers\r\nconnection: te\r\ncontent-length: 2\r\n\r\n{{}}");
        let answer = exchange(address, &request).await;
        assert_eq!(answer.contains("idempotency-replayed: true"), replayed);
        assert!(
            answer.contains("trailer: x-sum") && answer.contains("body") && answer.contains("x-sum: 42"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_keyed_body_is_asked_for_and_its_expectation_ends_here() {
    let upstream = Upstream::default();
    let behind = upstream.clone();
    let inner = tower::service_fn(move |request: Request<Body<hyper::body::Incoming>>| {
        behind.clone().answer(request)
    });
    let mut stream = TcpStream::connect(serve(layer().await.layer(inner)).await).await.unwrap();
    let head = format!("{HEAD}expect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{}").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert!(!upstream.saw.lock().unwrap().contains_key("expect"));
}

/// A server that answers with these bytes and closes the connection, and the number of its requests.
async fn raw_upstream(answer: &'static str) -> (std::net::SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, asked) = (listener.local_addr().unwrap(), Arc::<AtomicU64>::default());
    let counts = asked.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\n{}") {
                read.push(stream.read_u8().await.unwrap());
            }
            counts.fetch_add(1, Ordering::SeqCst);
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (address, asked)
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_never_taken_for_a_whole_one() {
    for (answer, whole) in [
        ("HTTP/1.1 201 Created\r\ncontent-length: 9\r\n\r\nhalf", false),
        ("HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", false),
        ("HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf", false),
        ("HTTP/1.1 201 Crea", false),
        // Without a length the end of the connection is the end of the answer, as RFC 9112 has it.
        ("HTTP/1.1 201 Created\r\nconnection: close\r\n\r\nhalf", true),
    ] {
        let (address, asked) = raw_upstream(answer).await;
        let inner =
            tower::service_fn(move |request: Request<Body<http_body_util::Full<Bytes>>>| async move {
                let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
                let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
                tokio::spawn(connection);
                sender.send_request(request).await
            });
        let service = layer().await.layer(inner);
        let first = service.clone().oneshot(post("k", "{}")).await.unwrap();
        assert_eq!(first.status().as_u16(), if whole { 201 } else { 502 }, "{answer}");
        let retry = service.oneshot(post("k", "{}")).await.unwrap();
        assert_eq!(retry.status().as_u16(), if whole { 201 } else { 409 }, "{answer}");
        drop(retry.into_body().collect().await.unwrap());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }
}
