//! Bodies that pass, break off or do not fit.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use onceward::http::{CloseDelimited, IdempotencyLayer, LayerError, Policy, Routes, ScopeRules};
use onceward::{Identity, Limits, Profile, Secret};
use tower::{Layer as _, ServiceExt as _};

use super::{World, builder, doing, memory, post, world, world_on};

/// A body that notes whether it was polled, and then breaks off or ends with trailers.
struct Watched {
    frames: Vec<Result<Frame<Bytes>, std::io::Error>>,
    asked: Arc<AtomicBool>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.asked.store(true, Ordering::SeqCst);
        Poll::Ready(self.frames.pop())
    }
}

fn request(method: &str, body: Watched) -> Request<Watched> {
    Request::builder()
        .method(method)
        .uri("/payments")
        .header("x-tenant", "acme")
        .header("idempotency-key", "k")
        .body(body)
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_body_breaks_off_is_not_executed_and_reserves_nothing() {
    let world = world(Policy::new()).await;
    let layer =
        IdempotencyLayer::new(world.engine.clone(), world.scope.clone(), world.routes.clone()).unwrap();
    let upstream = world.upstream.clone();
    let service = layer.layer(tower::service_fn(move |request| upstream.clone().answer(request)));
    let half = Frame::data(Bytes::from_static(b"{\"amo"));
    let frames = vec![Err(std::io::ErrorKind::ConnectionReset.into()), Ok(half)];
    let response = service.oneshot(request("POST", Watched { frames, asked: Arc::default() })).await.unwrap();
    assert_eq!((response.status().as_u16(), world.ledger()), (400, 0));
    assert_eq!(world.send(post("k", "{}")).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn what_passes_through_is_not_read_ahead_and_keeps_its_trailers() {
    let world = world(Policy::new()).await;
    let layer = IdempotencyLayer::new(world.engine, world.scope, world.routes).unwrap();
    let asked = Arc::<AtomicBool>::default();
    let seen = asked.clone();
    let service = layer.layer(tower::service_fn(move |request: Request<onceward::http::Body<Watched>>| {
        assert!(!seen.load(Ordering::SeqCst), "nobody may read ahead");
        // An echo: the request's body is the answer's.
        async move { Ok::<_, std::convert::Infallible>(Response::new(request.into_body())) }
    }));
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "1".parse().unwrap())]);
    let frames = vec![Ok(Frame::trailers(trailers.clone())), Ok(Frame::data(Bytes::from_static(b"echo")))];
    let response = service.oneshot(request("PUT", Watched { frames, asked })).await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.trailers(), Some(&trailers));
    assert_eq!(body.to_bytes(), "echo");
}

async fn narrow(reply_bytes: usize) -> World {
    let wide = world_on(memory(), Policy::new().max_response_body(2048)).await;
    let identity = Identity::in_namespace("tests").scoped_by(&wide.scope).unwrap();
    let builder = builder(memory()).limits(Limits::default().reply_bytes(reply_bytes));
    let engine = builder.open(identity).await.unwrap();
    World { engine, ..wide }
}

#[tokio::test(start_paused = true)]
async fn headers_count_against_what_the_engine_keeps_of_an_answer() {
    let world = narrow(2048).await;
    // `content-type: text/plain` weighs 22 bytes.
    let fits = world.send(doing("bytes:2026", "a", "{}")).await;
    assert_eq!((fits.status, fits.body.len()), (201, 2026));
    for replayed in [false, true] {
        let got = world.send(doing("bytes:2027", "b", "{}")).await;
        assert_eq!(got.problem(), (502, "idempotency_response_too_large".to_owned()));
        assert_eq!(got.is_replay(), replayed);
    }
    assert_eq!(world.ledger(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_layer_cannot_accept_answers_that_the_engine_does_not_keep() {
    let world = narrow(2047).await;
    let refused = IdempotencyLayer::new(world.engine, world.scope.clone(), world.routes).unwrap_err();
    assert_eq!(refused, LayerError::Replies { limit: 2047 });
    let world = narrow(2048).await;
    let larger = Routes::new(Policy::new().max_response_body(2049)).unwrap();
    let refused = IdempotencyLayer::new(world.engine, world.scope, larger).unwrap_err();
    assert!(matches!(refused, LayerError::ResponseBody { found: 2049, limit: 2048, .. }), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_layer_scopes_keys_by_the_rule_that_its_store_knows() {
    let World { engine, routes, .. } = world(Policy::new()).await;
    let other = ScopeRules::parse(["authorization"]).unwrap();
    let refused = IdempotencyLayer::new(engine, other, routes).unwrap_err();
    let (layer, engine) = ("authorization".to_owned(), "header:x-tenant".to_owned());
    assert_eq!(refused, LayerError::Scope { layer, engine });
}

#[tokio::test(start_paused = true)]
async fn a_layer_hashes_targets_under_the_secret_that_its_store_knows_again() {
    let secret = || Secret::new(*b"0123456789abcdef").unwrap();
    let keyed_with = |secret| Profile::builder().secret(secret).build().unwrap();
    let other = keyed_with(Secret::new(*b"fedcba9876543210").unwrap());
    let scope = world(Policy::new()).await.scope;
    for (engine_secret, profile, accepted) in [
        (None, Profile::default(), true),
        (Some(secret()), keyed_with(secret()), true),
        (None, keyed_with(secret()), false),
        (Some(secret()), other, false),
        // The layer keys it.
        (Some(secret()), Profile::default(), true),
    ] {
        let identity = Identity::in_namespace("tests").scoped_by(&scope).unwrap();
        let identity = engine_secret.into_iter().fold(identity, Identity::with_secret);
        let engine = builder(memory()).open(identity).await.unwrap();
        let routes = Routes::new(Policy::new().fingerprint(profile)).unwrap();
        match IdempotencyLayer::new(engine, scope.clone(), routes) {
            Ok(_) => assert!(accepted),
            Err(refused) => {
                assert!(matches!(refused, LayerError::FingerprintSecret { .. }) && !accepted, "{refused}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_fingerprint_without_a_secret_is_keyed_with_the_engines() {
    let store = memory();
    let scope = ScopeRules::parse_verified(["header:x-tenant"]).unwrap();
    let secret = Secret::new(*b"0123456789abcdef").unwrap();
    let identity = Identity::in_namespace("tests").scoped_by(&scope).unwrap().with_secret(secret.clone());
    let engine = builder(store).open(identity).await.unwrap();
    let send = async |profile: Profile| {
        let routes = Routes::new(Policy::new().fingerprint(profile)).unwrap();
        let world =
            World { engine: engine.clone(), routes, scope: scope.clone(), upstream: Default::default() };
        (world.send(post("k", "{}")).await, world.ledger())
    };
    assert_eq!(send(Profile::default()).await.1, 1);
    let keyed = Profile::builder().secret(secret).build().unwrap();
    let (got, executed) = send(keyed).await;
    assert!(got.is_replay() && executed == 0, "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn clients_are_sent_to_where_the_proxy_in_front_publishes_the_policy() {
    let World { engine, scope, .. } = world(Policy::new()).await;
    let layer = IdempotencyLayer::new(engine, scope, Routes::new(Policy::new()).unwrap()).unwrap();
    for refused in ["https://a.example/<script>", &"x".repeat(256)] {
        assert!(layer.clone().base_url(refused).is_err(), "{refused}");
    }
    let service = layer.base_url("https://api.example/v1/").unwrap().layer(tower::service_fn(|_| async {
        Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    }));
    let response = service.oneshot(post("", "{}")).await.unwrap();
    let link = "<https://api.example/v1/.well-known/idempotency>; rel=\"describedby\"";
    assert_eq!(response.headers()["link"], link);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_ended_with_its_connection_is_stored_only_where_the_route_takes_it_for_whole() {
    let (document, cut) = ("{\"id\":1}", "{\"id\":");
    for (close_delimited, body, whole) in [
        (CloseDelimited::Proven, document, true),
        (CloseDelimited::Proven, cut, false),
        (CloseDelimited::Accept, cut, true),
        (CloseDelimited::Unknown, document, false),
    ] {
        let world = world(Policy::new().close_delimited(close_delimited)).await;
        let how = format!("closing:{body}");
        let first = world.send(doing(&how, "k", "{}")).await;
        let retried = world.send(post("k", "{}")).await;
        if whole {
            assert_eq!((first.status, &first.body[..]), (201, body.as_bytes()), "{close_delimited:?} {body}");
            assert!(retried.is_replay() && retried.body == first.body, "{close_delimited:?} {body}");
        } else {
            let unknown = "idempotency_outcome_unknown".to_owned();
            assert_eq!(first.problem(), (502, unknown.clone()), "{close_delimited:?} {body}");
            assert_eq!(retried.problem(), (409, unknown), "{close_delimited:?} {body}");
        }
        assert_eq!(world.ledger(), 1);
    }
}
