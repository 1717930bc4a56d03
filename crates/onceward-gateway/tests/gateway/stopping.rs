//! SIGTERM while requests are executed.

use onceward_testkit::wait::{self, seen};

use crate::harness::{Gateway, Request};

#[tokio::test]
async fn a_gateway_that_stops_fails_readiness_first_and_answers_running_requests() {
    let (folder, ledger, mut gateway) = Gateway::with_ledger(&[]);
    let mut client = gateway.send_held(&ledger, "work", Request::charge("k")).await;
    assert_eq!(gateway.ask_admin(Request::new("GET", "/readyz")).await.status, 200);
    gateway.signal("TERM");
    let draining = wait::until("the readiness check fails", async || {
        seen(gateway.ask_admin(Request::new("GET", "/readyz")).await, |ready| ready.status != 200)
    })
    .await;
    assert_eq!(draining.status, 503);
    assert_eq!(draining.json()["reasons"][0], "draining");
    assert_eq!(gateway.ask_admin(Request::new("GET", "/livez")).await.status, 200);
    ledger.release("work").await;
    assert_eq!(client.read().await.unwrap().status, 201);
    assert!(gateway.ended().success());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    assert!(gateway.charge("k").await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn work_that_outlasts_the_drain_time_is_settled_as_unknown_and_its_client_gets_504() {
    let (folder, ledger, mut gateway) = Gateway::with_ledger(&["--limits-drain", "200ms"]);
    let mut client = gateway.send_held(&ledger, "work", Request::charge("k")).await;
    gateway.signal("TERM");
    let answer = client.read().await.unwrap();
    assert_eq!(answer.status_and_code(), (504, "idempotency_outcome_unknown".to_owned()));
    assert!(gateway.ended().success());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    // The outcome is unknown at once, long before the lease of a minute lapses.
    assert_eq!(gateway.charge("k").await.status_and_code(), (409, "idempotency_outcome_unknown".to_owned()));
    assert_eq!(ledger.count(), 1);
}
