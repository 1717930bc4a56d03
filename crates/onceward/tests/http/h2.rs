//! HTTP/2 over loopback: plain hyper, and tonic with a service written by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf as _, BufMut as _, Bytes};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use onceward::http::{Body, IdempotencyLayer, KeyRule, Policy, Routes};
use tokio::net::{TcpListener, TcpStream};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};
use tower::Layer as _;

use super::{Upstream, World, doing, post, without, world};

async fn layer() -> IdempotencyLayer {
    let World { engine, scope, .. } = world(Policy::new()).await;
    let required = Policy::new().key(KeyRule::Required);
    let routes = Routes::new(Policy::new()).unwrap().route("POST /payments", required).unwrap();
    IdempotencyLayer::new(engine, scope, routes).unwrap()
}

/// One connection to a service, and a client on it.
async fn connect<S, B, C>(service: S) -> SendRequest<C>
where
    S: tower::Service<Request<hyper::body::Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: std::error::Error + Send + Sync + 'static,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: std::error::Error + Send + Sync + 'static,
    C: http_body::Body + Send + Unpin + 'static,
    C::Data: Send,
    C::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = TowerToHyperService::new(service);
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder.serve_connection(TokioIo::new(stream), service).await.unwrap();
    });
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn upstream_service(
    upstream: &Upstream,
) -> impl tower::Service<
    Request<Body<hyper::body::Incoming>>,
    Response = Response<super::upstream::Frames>,
    Error = super::Broke,
    Future: Send,
> + Clone
+ Send
+ 'static {
    let upstream = upstream.clone();
    tower::service_fn(move |request: Request<Body<hyper::body::Incoming>>| upstream.clone().answer(request))
}

async fn send(
    client: &mut SendRequest<Full<Bytes>>,
    mut request: Request<Full<Bytes>>,
) -> (http::response::Parts, Bytes, Option<HeaderMap>) {
    let uri = format!("http://x{}", request.uri().path());
    *request.uri_mut() = uri.parse().unwrap();
    let (parts, body) = client.send_request(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned();
    (parts, body.to_bytes(), trailers)
}

#[tokio::test]
async fn a_retry_over_http_2_gets_the_first_answer_with_its_trailers() {
    let upstream = Upstream::default();
    let mut client = connect(layer().await.layer(upstream_service(&upstream))).await;
    let (first, body, trailers) = send(&mut client, doing("trailers", "k", "{}")).await;
    assert_eq!((first.status.as_u16(), &body[..]), (201, &b"execution 1 of {}"[..]));
    assert_eq!(trailers.as_ref().unwrap()["grpc-status"], "0");
    let (retry, again, once_more) = send(&mut client, post("k", "{}")).await;
    assert_eq!(retry.headers["idempotency-replayed"], "true");
    assert_eq!((again, once_more), (body, trailers));
    assert_eq!(upstream.ledger.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_request_that_is_refused_unread_does_not_harm_the_others_on_its_connection() {
    let upstream = Upstream::default();
    let mut client = connect(layer().await.layer(upstream_service(&upstream))).await;
    let large = "x".repeat(9 << 20);
    let mut other = client.clone();
    let running = tokio::spawn(async move { send(&mut other, doing("hang", "first", "{}")).await });
    upstream.began.notified().await;
    let (refused, ..) = send(&mut client, post("k", &large)).await;
    assert_eq!((refused.status.as_u16(), refused.headers.get("connection")), (413, None));
    let (refused, ..) = send(&mut client, without(post("k", &large), "idempotency-key")).await;
    assert_eq!(refused.status.as_u16(), 400);
    let (fine, ..) = send(&mut client, post("k", "{}")).await;
    assert_eq!(fine.status.as_u16(), 201);
    upstream.go.notify_one();
    assert_eq!(running.await.unwrap().0.status.as_u16(), 201);
    assert_eq!(upstream.ledger.load(Ordering::SeqCst), 2);
}

/// Messages are plain bytes, because codecs are not tested here.
#[derive(Clone, Copy)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// A unary method that pays, and refuses to pay `too much`.
async fn pay(
    ledger: Arc<AtomicU64>,
    request: tonic::Request<Bytes>,
) -> Result<tonic::Response<Bytes>, Status> {
    let number = ledger.fetch_add(1, Ordering::SeqCst) + 1;
    if request.get_ref() == "too much" {
        return Err(Status::failed_precondition(format!("payment {number} is over the limit")));
    }
    Ok(tonic::Response::new(format!("payment {number}").into()))
}

type Client = tonic::client::Grpc<
    tower::util::BoxCloneService<Request<tonic::body::Body>, Response<hyper::body::Incoming>, hyper::Error>,
>;

async fn payments(ledger: &Arc<AtomicU64>) -> Client {
    let ledger = ledger.clone();
    let inner = tower::service_fn(move |request: Request<Body<hyper::body::Incoming>>| {
        let ledger = ledger.clone();
        async move {
            let method = tower::service_fn(move |request| pay(ledger.clone(), request));
            Ok::<_, std::convert::Infallible>(tonic::server::Grpc::new(Plain).unary(method, request).await)
        }
    });
    let sender: SendRequest<tonic::body::Body> = connect(layer().await.layer(inner)).await;
    let client = tower::service_fn(move |request| {
        let mut sender = sender.clone();
        async move { sender.send_request(request).await }
    });
    let client = tower::util::BoxCloneService::new(client);
    tonic::client::Grpc::with_origin(client, "http://x".parse().unwrap())
}

async fn call(
    client: &mut Client,
    key: &str,
    message: &'static str,
) -> Result<tonic::Response<Bytes>, Status> {
    let mut request = tonic::Request::new(Bytes::from_static(message.as_bytes()));
    request.metadata_mut().insert("idempotency-key", key.parse().unwrap());
    request.metadata_mut().insert("x-tenant", "acme".parse().unwrap());
    client.ready().await.unwrap();
    client.unary(request, "/bank.Payments/Pay".parse().unwrap(), Plain).await
}

#[tokio::test]
async fn a_retried_grpc_call_is_executed_once_and_gets_the_message_and_the_status_again() {
    let ledger = Arc::<AtomicU64>::default();
    let mut client = payments(&ledger).await;
    let first = call(&mut client, "k", "ten").await.unwrap();
    let retry = call(&mut client, "k", "ten").await.unwrap();
    assert_eq!((first.get_ref(), retry.get_ref()), (&Bytes::from("payment 1"), &Bytes::from("payment 1")));
    assert_eq!(retry.metadata().get("idempotency-replayed").unwrap(), "true");
    assert_eq!(retry.metadata().get("grpc-status").unwrap(), "0");
    assert_eq!(ledger.load(Ordering::SeqCst), 1);
    // A refusal is an HTTP response, which a gRPC client turns into an error with the status.
    let other = call(&mut client, "k", "twenty").await.unwrap_err();
    assert!(other.message().contains("422"), "{other}");
    assert_eq!(ledger.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_error_of_a_grpc_handler_is_an_answer_and_is_replayed() {
    let ledger = Arc::<AtomicU64>::default();
    let mut client = payments(&ledger).await;
    for _ in 0..2 {
        let told = call(&mut client, "k", "too much").await.unwrap_err();
        assert_eq!((told.code(), told.message()), (Code::FailedPrecondition, "payment 1 is over the limit"));
    }
    assert_eq!(ledger.load(Ordering::SeqCst), 1);
}
