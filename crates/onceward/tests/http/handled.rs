//! The extension of a response that says how the layer handled its request.

use http::{Method, Request};
use http_body_util::Full;
use onceward::Identity;
use onceward::http::{Disposition, Handled, KeyRule, Policy, Routes, StoreDown};
use onceward_testkit::{Fault, FaultyStore};

use super::{Got, doing, memory, post, without, world, world_on};

fn route_and_disposition(got: &Got) -> (&str, Disposition) {
    (&got.handled.route, got.handled.disposition)
}

#[tokio::test(start_paused = true)]
async fn every_response_names_its_route_and_what_was_done_with_the_request() {
    let mut world = world(Policy::new()).await;
    let required = Policy::new().key(KeyRule::Required);
    world.routes = Routes::new(Policy::new())
        .unwrap()
        .route("POST /payments", required)
        .unwrap()
        .unprotected("POST /events")
        .unwrap();
    let payments = "POST /payments";
    for (request, disposition) in [
        (doing("", "a", "{}"), Disposition::Executed),
        (doing("", "a", "{}"), Disposition::Replayed),
        (doing("", "a", "[]"), Disposition::Refused("idempotency_key_reused_with_different_payload")),
        (without(post("k", "{}"), "idempotency-key"), Disposition::Refused("idempotency_key_missing")),
        (without(post("k", "{}"), "x-tenant"), Disposition::Refused("idempotency_scope_missing")),
        (doing("status:429", "b", "{}"), Disposition::Released),
        (doing("refused", "c", "{}"), Disposition::Unanswered("idempotency_upstream_unreachable")),
        (doing("status:503", "d", "{}"), Disposition::Unanswered("idempotency_outcome_unknown")),
        (doing("", "d", "{}"), Disposition::Refused("idempotency_outcome_unknown")),
        (doing("slow:40", "e", "{}"), Disposition::Unanswered("idempotency_outcome_unknown")),
    ] {
        let got = world.send(request).await;
        assert_eq!(route_and_disposition(&got), (payments, disposition), "{got:?}");
    }
    for (method, path, route, disposition) in [
        (Method::PUT, "/payments", "", Disposition::Passed),
        (Method::POST, "/events", "POST /events", Disposition::Passed),
        (Method::POST, "/refunds", "default", Disposition::Executed),
        (Method::GET, "/.well-known/idempotency", "", Disposition::Published),
        (Method::GET, "/.well-known/idempotency/status/refund", "", Disposition::Published),
        (
            Method::GET,
            "/.well-known/idempotency/status/another",
            "",
            Disposition::Refused("idempotency_key_not_found"),
        ),
    ] {
        let mut request = post("refund", "{}");
        (*request.method_mut(), *request.uri_mut()) = (method, path.parse().unwrap());
        assert_eq!(route_and_disposition(&world.send(request).await), (route, disposition), "{path}");
    }
    let unkeyed = Request::post("/refunds").body(Full::from("{}")).unwrap();
    assert_eq!(route_and_disposition(&world.send(unkeyed).await), ("default", Disposition::Passed));
}

#[tokio::test(start_paused = true)]
async fn a_protected_request_names_its_operation_however_it_ends() {
    let world = world(Policy::new()).await;
    let scope = onceward::Scope::new("acme").unwrap();
    let id = Identity::in_namespace("tests")
        .scoped_by("header:x-tenant")
        .unwrap()
        .id_of(&scope, &onceward::Key::new("k").unwrap());
    let first = world.send(post("k", "{}")).await;
    let operation = first.handled.operation.unwrap();
    assert_eq!((operation.record(), operation.opened().is_some()), (id, true));
    for body in ["{}", "[]"] {
        assert_eq!(world.send(post("k", body)).await.handled.operation, Some(operation));
    }
    let small = super::world(Policy::new().max_request_body(1)).await;
    let unread = small.send(post("k", "{}")).await;
    assert_eq!(unread.handled.operation, Some(onceward::OperationId::bare(id)), "its record was not read");
    let unkeyed = world.send(without(post("k", "{}"), "idempotency-key")).await;
    assert_eq!(unkeyed.handled.operation, None);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_goes_through_unprotected_is_marked() {
    let identity = onceward::RecordId::from_bytes([0; 16]);
    let store = FaultyStore::new(memory(), move |call| {
        if call.id.is_some_and(|id| id != identity) { Fault::Unavailable } else { Fault::None }
    });
    let pass = Policy::new().store_down(StoreDown::Pass);
    let Handled { disposition, .. } = world_on(store, pass).await.send(post("k", "{}")).await.handled;
    assert_eq!(
        (disposition, disposition.name(), disposition.code()),
        (Disposition::Unprotected, "unprotected", None)
    );
}
