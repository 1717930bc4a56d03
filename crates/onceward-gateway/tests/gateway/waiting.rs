//! What a client gets while the execution of its key takes long.

use crate::harness::{Gateway, Request, Response};
use crate::ledger::Ledger;

const IN_PROGRESS: &str = "idempotency_key_in_progress";
const IN_FLIGHT: &str = "api_idempotency_in_flight";

/// A charge that the API holds back until the test releases `k`.
fn held() -> Request<'static> {
    Request::charge("k").behave("hold=k")
}

/// Sends a second request that waits for the first, then lets the first be answered. Returns the second answer.
async fn second_answer(gateway: &Gateway, ledger: &Ledger, request: Request<'_>) -> Response {
    let mut first = gateway.send_held(ledger, "k", Request::charge("k")).await;
    let mut second = gateway.connect().await;
    second.write(&request.bytes()).await;
    gateway.until_metric(IN_FLIGHT, 2.0).await;
    ledger.release("k").await;
    let answer = first.read().await.unwrap();
    assert_eq!((answer.status, answer.is_replayed()), (201, false), "{answer:?}");
    second.read().await.unwrap()
}

#[tokio::test]
async fn where_a_route_waits_the_second_gets_the_answer_of_the_first() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--in-progress", "wait"]);
    let second = second_answer(&gateway, &ledger, held()).await;
    assert_eq!((second.status, second.is_replayed()), (201, true), "{second:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_caller_may_ask_to_wait_where_the_route_does_not() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let second = second_answer(&gateway, &ledger, held().header("prefer", "wait=10")).await;
    assert_eq!((second.status, second.is_replayed()), (201, true), "{second:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn no_client_waits_longer_than_the_route_allows() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--in-progress", "wait", "--wait", "1s"]);
    let mut first = gateway.send_held(&ledger, "k", Request::charge("k")).await;
    for request in [held(), held().header("prefer", "wait=3600")] {
        let answer = gateway.send(request).await;
        assert_eq!(answer.status_and_code(), (409, IN_PROGRESS.to_owned()), "{answer:?}");
        assert!(!answer.header("retry-after").is_empty());
    }
    ledger.release("k").await;
    assert_eq!(first.read().await.unwrap().status, 201);
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn where_a_route_accepts_the_second_gets_the_location_of_its_status() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--in-progress", "accepted"]);
    let mut first = gateway.send_held(&ledger, "k", Request::charge("k")).await;
    let accepted = gateway.send(held()).await;
    assert_eq!(accepted.status_and_code(), (202, IN_PROGRESS.to_owned()), "{accepted:?}");
    assert!(!accepted.header("retry-after").is_empty());
    let location = accepted.header("location");
    assert_eq!(location, "/.well-known/idempotency/status/k");
    let running = gateway.send(Request::new("GET", location)).await;
    assert_eq!((running.status, &running.json()["state"]), (200, &"in_progress".into()), "{running:?}");
    ledger.release("k").await;
    assert_eq!(first.read().await.unwrap().status, 201);
    let done = gateway.send(Request::new("GET", location)).await;
    assert_eq!((&done.json()["state"], &done.json()["status"]), (&"completed".into(), &201.into()));
    assert!(!done.text().contains("charged"), "never the answer: {done:?}");
    assert!(gateway.send(held()).await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_client_waits_no_longer_than_the_route_configures_and_the_work_goes_on() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--respond-within", "200ms"]);
    let answer = gateway.send(held()).await;
    assert_eq!(answer.status_and_code(), (504, IN_PROGRESS.to_owned()), "{answer:?}");
    assert_eq!(
        (answer.header("retry-after").is_empty(), &answer.json()["next_action"]),
        (false, &"wait".into())
    );
    ledger.held("k").await;
    assert_eq!(gateway.status_of("k").await.json()["state"], "in_progress");
    ledger.release("k").await;
    let waits = held().header("prefer", "wait=10");
    let answer = gateway.send(waits).await;
    assert_eq!((answer.status, answer.is_replayed()), (201, true), "{answer:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn requests_beyond_the_limit_of_upstream_connections_wait_for_one() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--limits-upstream-connections", "1"]);
    let mut first = gateway.send_held(&ledger, "k", Request::charge("k")).await;
    let mut others = Vec::new();
    for request in [Request::new("GET", "/a"), Request::charge("other")] {
        let mut client = gateway.connect().await;
        client.write(&request.bytes()).await;
        others.push(client);
    }
    gateway.until_metric(IN_FLIGHT, 3.0).await;
    assert_eq!(ledger.count(), 1);
    ledger.release("k").await;
    assert_eq!(first.read().await.unwrap().status, 201);
    for mut client in others {
        assert_eq!(client.read().await.unwrap().status, 201);
    }
    assert_eq!(ledger.count(), 3);
}
