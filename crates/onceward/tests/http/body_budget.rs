//! Limits on the request bodies that are read at once: in bytes and in time.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full};
use onceward::http::{IdempotencyLayer, LayerError, Policy};
use tokio::sync::Notify;
use tower::{Layer as _, ServiceExt as _};

use super::{SECOND, World, post, world};

/// A body of unknown length, which ends after its pieces or never.
struct Dripping {
    pieces: Vec<&'static str>,
    end: bool,
}

impl Body for Dripping {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match (self.pieces.pop(), self.end) {
            (Some(piece), _) => Poll::Ready(Some(Ok(Frame::data(piece.into())))),
            (None, true) => Poll::Ready(None),
            (None, false) => Poll::Pending,
        }
    }
}

fn dripping(
    key: &str,
    pieces: &[&'static str],
    end: bool,
) -> Request<http_body_util::combinators::BoxBody<Bytes, Infallible>> {
    post(key, "").map(|_| Dripping { pieces: pieces.to_vec(), end }.boxed())
}

fn whole(key: &str, body: &str) -> Request<http_body_util::combinators::BoxBody<Bytes, Infallible>> {
    post(key, body).map(|body| body.boxed())
}

async fn layer(world: &World) -> IdempotencyLayer {
    IdempotencyLayer::new(world.engine.clone(), world.scope.clone(), world.routes.clone()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_budget_is_refused_before_anything_is_claimed_and_fits_later() {
    let world = world(Policy::new().max_request_body(10)).await;
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (began.clone(), go.clone());
    let service =
        layer(&world).await.held_bytes(15).unwrap().layer(tower::service_fn(move |request: Request<_>| {
            let (began, go) = (begins.clone(), goes.clone());
            async move {
                // Keeps the request until it is released.
                began.notify_one();
                go.notified().await;
                drop(request);
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }
        }));
    let first = tokio::spawn(service.clone().oneshot(whole("first", "1234567890")));
    began.notified().await;
    for request in [whole("k", "123456"), dripping("k", &["3", "45", "123"], true)] {
        let refused = service.clone().oneshot(request).await.unwrap();
        assert_eq!(refused.status(), 503);
        assert_eq!(
            (&refused.headers()["retry-after"], &refused.headers()["connection"]),
            (&"1".parse().unwrap(), &"close".parse().unwrap())
        );
        let body = refused.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&body["code"], &body["next_action"]),
            (&"idempotency_store_unavailable".into(), &"retry_same_key".into())
        );
    }
    go.notify_one();
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    go.notify_one();
    let fits = service.oneshot(whole("k", "123456")).await.unwrap();
    assert_eq!((fits.status().as_u16(), fits.headers().get("idempotency-replayed")), (200, None));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_while_it_sends_gives_its_share_back() {
    let world = world(Policy::new().max_request_body(10)).await;
    let upstream = world.upstream.clone();
    let service = layer(&world)
        .await
        .held_bytes(10)
        .unwrap()
        .layer(tower::service_fn(move |request| upstream.clone().answer(request)));
    let sending = service.clone().oneshot(dripping("k", &["1234567890"], false));
    tokio::select! {
        biased;
        _ = sending => panic!("its body never ends"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(service.oneshot(whole("k", "1234567890")).await.unwrap().status(), 201);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_takes_too_long_is_refused_and_reserves_nothing() {
    let world = world(Policy::new()).await;
    let upstream = world.upstream.clone();
    let service = layer(&world)
        .await
        .body_patience(SECOND * 5)
        .unwrap()
        .layer(tower::service_fn(move |request| upstream.clone().answer(request)));
    let before = onceward::plumbing::time::instant();
    let late = service.clone().oneshot(dripping("k", &["{"], false)).await.unwrap();
    assert_eq!(onceward::plumbing::time::instant() - before, SECOND * 5);
    assert_eq!((late.status().as_u16(), &late.headers()["connection"]), (408, &"close".parse().unwrap()));
    let body = late.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&body["code"], &body["next_action"]),
        (&"idempotency_request_broken".into(), &"retry_same_key".into())
    );
    assert!(body["detail"].as_str().unwrap().contains("5s"), "{body}");
    assert_eq!(service.oneshot(whole("k", "{}")).await.unwrap().status(), 201);
    assert_eq!(world.ledger(), 1);
}

#[tokio::test(start_paused = true)]
async fn limits_that_would_let_nothing_through_are_refused() {
    let world = world(Policy::new().max_request_body(10)).await;
    let refused = layer(&world).await.held_bytes(9).unwrap_err();
    assert!(matches!(refused, LayerError::HeldBytes { found: 10, limit: 9, .. }), "{refused}");
    assert_eq!(layer(&world).await.body_patience(Duration::ZERO).unwrap_err(), LayerError::BodyPatience);
}
