//! What a response tells those around the layer.

use http::{Method, Request};
use http_body_util::Full;
use onceward::Identity;
use onceward::http::{Handled, How, KeyRule, Policy, Routes, StoreDown};
use onceward_testkit::{Fault, FaultyStore};

use super::{Got, doing, memory, post, without, world, world_on};

fn said(got: &Got) -> (&str, How) {
    (&got.handled.route, got.handled.how)
}

#[tokio::test(start_paused = true)]
async fn every_response_says_on_which_route_it_was_and_what_became_of_the_request() {
    let mut world = world(Policy::new()).await;
    let required = Policy::new().key(KeyRule::Required);
    world.routes = Routes::new(Policy::new())
        .unwrap()
        .route("POST /payments", required)
        .unwrap()
        .unprotected("POST /events")
        .unwrap();
    let payments = "POST /payments";
    for (request, how) in [
        (doing("", "a", "{}"), How::Executed),
        (doing("", "a", "{}"), How::Replayed),
        (doing("", "a", "[]"), How::Refused("idempotency_key_reused_with_different_payload")),
        (without(post("k", "{}"), "idempotency-key"), How::Refused("idempotency_key_missing")),
        (without(post("k", "{}"), "x-tenant"), How::Refused("idempotency_scope_missing")),
        (doing("status:429", "b", "{}"), How::Released),
        (doing("refused", "c", "{}"), How::Unanswered("idempotency_upstream_unreachable")),
        (doing("status:503", "d", "{}"), How::Unanswered("idempotency_outcome_unknown")),
        (doing("", "d", "{}"), How::Refused("idempotency_outcome_unknown")),
        (doing("slow:40", "e", "{}"), How::Unanswered("idempotency_outcome_unknown")),
    ] {
        let got = world.send(request).await;
        assert_eq!(said(&got), (payments, how), "{got:?}");
    }
    for (method, path, route, how) in [
        (Method::PUT, "/payments", "", How::Passed),
        (Method::POST, "/events", "POST /events", How::Passed),
        (Method::POST, "/refunds", "default", How::Executed),
        (Method::GET, "/.well-known/idempotency", "", How::Published),
        (Method::GET, "/.well-known/idempotency/status/refund", "", How::Published),
        (
            Method::GET,
            "/.well-known/idempotency/status/another",
            "",
            How::Refused("idempotency_key_not_found"),
        ),
    ] {
        let mut request = post("refund", "{}");
        (*request.method_mut(), *request.uri_mut()) = (method, path.parse().unwrap());
        assert_eq!(said(&world.send(request).await), (route, how), "{path}");
    }
    let unkeyed = Request::post("/refunds").body(Full::from("{}")).unwrap();
    assert_eq!(said(&world.send(unkeyed).await), ("default", How::Passed));
}

#[tokio::test(start_paused = true)]
async fn a_protected_request_names_its_operation_however_it_ends() {
    let world = world(Policy::new()).await;
    let scope = onceward::Scope::new("acme").unwrap();
    let id = Identity::in_namespace("tests")
        .scoped_by("header:x-tenant")
        .unwrap()
        .id_of(&scope, &onceward::Key::new("k").unwrap());
    for body in ["{}", "{}", "[]"] {
        assert_eq!(world.send(post("k", body)).await.handled.operation, Some(id));
    }
    let unkeyed = world.send(without(post("k", "{}"), "idempotency-key")).await;
    assert_eq!(unkeyed.handled.operation, None);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_goes_through_without_its_store_says_so() {
    let identity = onceward::RecordId::from_bytes([0; 16]);
    let store = FaultyStore::new(memory(), move |call| {
        if call.id.is_some_and(|id| id != identity) { Fault::Unavailable } else { Fault::None }
    });
    let pass = Policy::new().store_down(StoreDown::Pass);
    let Handled { how, .. } = world_on(store, pass).await.send(post("k", "{}")).await.handled;
    assert_eq!((how, how.name(), how.code()), (How::Unprotected, "unprotected", None));
}
