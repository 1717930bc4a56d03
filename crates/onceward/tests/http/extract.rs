//! `Operation` as an argument of axum handlers.

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use onceward::http::{IdempotencyLayer, Mode, Policy};
use onceward::{Fence, Operation};
use tower::ServiceExt as _;

use super::{World, world};

/// One handler needs an operation; the other does without where there is none.
fn router() -> Router {
    let needs = async |operation: Operation| operation.operation_id().to_string();
    let may = async |operation: Option<Operation>| match operation {
        Some(operation) => format!("attempt {}", operation.attempt()),
        None => "unprotected".to_owned(),
    };
    Router::new().route("/needs", post(needs)).route("/may", post(may))
}

async fn answer(app: &Router, path: &str, key: Option<&str>) -> (Response<()>, String) {
    let request = Request::post(path).header("x-tenant", "acme");
    let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
    let (parts, body) = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(parts, ()), String::from_utf8(body.into()).unwrap())
}

async fn protected() -> Router {
    let World { engine, scope, routes, .. } = world(Policy::new()).await;
    router().layer(IdempotencyLayer::new(engine, scope, routes).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_given_the_operation_that_its_request_was_claimed_under() {
    let app = protected().await;
    let (response, body) = answer(&app, "/needs", Some("k")).await;
    assert_eq!(response.status(), 200);
    let id: onceward::OperationId = body.parse().unwrap();
    assert!(id.opened().is_some_and(|fence| fence > Fence::from_number(0)), "{body}");
    assert_eq!(answer(&app, "/may", Some("l")).await.1, "attempt 1");
    assert_eq!(answer(&app, "/may", None).await.1, "unprotected");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_needs_an_operation_is_not_run_without_one() {
    for (app, key) in [(protected().await, None), (router(), None), (router(), Some("k"))] {
        let (response, body) = answer(&app, "/needs", key).await;
        assert_eq!(response.status(), 500);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(problem["status"], 500, "{body}");
        assert_eq!(answer(&app, "/may", key).await.1, "unprotected");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_on_a_route_that_only_observes_takes_an_operation_where_there_is_one() {
    let World { engine, scope, routes, .. } = world(Policy::new().mode(Mode::Observe)).await;
    let app = router().layer(IdempotencyLayer::new(engine, scope, routes).unwrap());
    assert_eq!(answer(&app, "/may", Some("k")).await.1, "unprotected");
    assert_eq!(answer(&app, "/needs", Some("l")).await.0.status(), 500);
}
