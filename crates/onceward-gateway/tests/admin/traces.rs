//! Traces, as a collector and an upstream see them.

use std::convert::Infallible;

use axum::routing::post;
use bytes::Bytes;
use onceward::http::{Handled, IdempotencyLayer, Policy, Routes, ScopeRules};
use onceward_gateway::settings::Telemetry;
use onceward_gateway::telemetry::traces::{Ended, RequestSpan, Tracer};
use tokio::sync::mpsc;
use tower::Layer as _;

use super::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const KEY: &str = "a-key-that-no-trace-may-show";

/// Takes traces as an OTLP collector does, and hands their bytes on.
async fn collector() -> (String, mpsc::UnboundedReceiver<Bytes>) {
    let (sender, received) = mpsc::unbounded_channel();
    let app = Router::new().route(
        "/v1/traces",
        post(async move |body: Bytes| {
            sender.send(body).unwrap();
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (format!("http://{address}"), received)
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_goes_on_from_the_client_through_the_layer_to_the_upstream_and_the_collector() {
    let (otlp, mut received) = collector().await;
    let tracer = Tracer::start(&Telemetry { otlp: Some(otlp), ..Telemetry::default() }).unwrap();
    let bench = Bench::new().await;
    let scope = ScopeRules::parse(["fixed:all"]).unwrap();
    let routes = Routes::new(Policy::new()).unwrap();
    let layer = IdempotencyLayer::new(bench.engine.clone(), scope, routes).unwrap();
    let (told, mut upstream_saw) = mpsc::unbounded_channel();
    let service = layer.layer(tower::service_fn(move |mut request: Request<onceward::http::Body<Body>>| {
        let told = told.clone();
        async move {
            // What a proxy does: the span has travelled with the request into the detached execution.
            let span = request.extensions().get::<RequestSpan>().unwrap().upstream();
            span.inject(request.headers_mut());
            told.send(request.headers().clone()).unwrap();
            span.answered(StatusCode::CREATED);
            Ok::<_, Infallible>(Response::builder().status(201).body(Body::empty()).unwrap())
        }
    }));

    let mut request = Request::post("/payments")
        .header("idempotency-key", KEY)
        .header("traceparent", format!("00-{TRACE}-{PARENT}-01"))
        .header("tracestate", "vendor=opaque")
        .body(Body::from("{}"))
        .unwrap();
    let span = tracer.request(&request).unwrap();
    assert_eq!(span.trace_id(), TRACE);
    span.operation(onceward::OperationId::bare(id("k")));
    request.extensions_mut().insert(span.clone());
    let answer = service.oneshot(request).await.unwrap();
    let decision = answer.extensions().get::<Handled>().unwrap().disposition.name();
    span.end(Ended { route: "/payments", status: answer.status(), decision });
    tracer.shut_down().await;

    let headers = upstream_saw.recv().await.unwrap();
    let parent = headers["traceparent"].to_str().unwrap();
    let [_, trace, span, flags] = parent.split('-').collect::<Vec<_>>()[..] else { panic!("{parent}") };
    assert_eq!((trace, flags, &headers["tracestate"]), (TRACE, "01", &"vendor=opaque".parse().unwrap()));
    assert_ne!(span, PARENT);

    let exported = received.recv().await.unwrap();
    for part in [bytes_of(TRACE), bytes_of(PARENT), bytes_of(span)] {
        assert!(contains(&exported, &part), "{part:?} is not in the export");
    }
    for text in [
        "POST /payments",
        "http.request.method",
        "http.response.status_code",
        "onceward.decision",
        "executed",
        "onceward.operation",
    ] {
        assert!(contains(&exported, text.as_bytes()), "{text} is not in the export");
    }
    assert!(!contains(&exported, KEY.as_bytes()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_trace_begins_one_and_a_broken_header_is_not_believed() {
    let (otlp, _received) = collector().await;
    let tracer = Tracer::start(&Telemetry { otlp: Some(otlp), ..Telemetry::default() }).unwrap();
    let plain = tracer.request(&Request::new(())).unwrap();
    let mut broken = Request::new(());
    broken.headers_mut().insert("traceparent", format!("00-{TRACE}-0000000000000000-01").parse().unwrap());
    let broken = tracer.request(&broken).unwrap();
    assert_ne!(plain.trace_id(), broken.trace_id());
    assert_ne!(broken.trace_id(), TRACE);
    let mut headers = http::HeaderMap::new();
    plain.upstream().inject(&mut headers);
    assert!(headers["traceparent"].to_str().unwrap().contains(&plain.trace_id()));
    assert!(!headers.contains_key("tracestate"));
}

#[test]
fn without_a_collector_there_is_no_span_at_all() {
    let tracer = Tracer::start(&Telemetry::default()).unwrap();
    assert!(tracer.request(&Request::new(())).is_none());
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_with_an_example() {
    for otlp in ["", "127.0.0.1:4318", "ftp://collector", "/traces"] {
        let error =
            Tracer::start(&Telemetry { otlp: Some(otlp.to_owned()), ..Telemetry::default() }).unwrap_err();
        assert!(error.to_string().contains("http://127.0.0.1:4318"), "{otlp}: {error}");
    }
}
