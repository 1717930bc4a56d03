//! SIGTERM with work in flight.

use crate::harness::{Gateway, Request};
use crate::ledger::Ledger;

#[tokio::test]
async fn a_gateway_that_stops_fails_readiness_first_and_answers_what_runs() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let mut gateway = Gateway::start(folder.path(), ledger.address, &[]);
    let mut client = gateway.connect().await;
    client.write(&Request::charge("k").behave("hold=work").bytes()).await;
    ledger.held("work").await;
    assert_eq!(gateway.ask_admin(Request::new("GET", "/readyz")).await.status, 200);
    gateway.signal("TERM");
    let draining = loop {
        let ready = gateway.ask_admin(Request::new("GET", "/readyz")).await;
        if ready.status != 200 {
            break ready;
        }
    };
    assert_eq!(draining.status, 503);
    assert_eq!(draining.json()["reasons"][0], "draining");
    assert_eq!(gateway.ask_admin(Request::new("GET", "/livez")).await.status, 200);
    ledger.release("work").await;
    assert_eq!(client.read(false).await.unwrap().status, 201);
    assert!(gateway.ended().success());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    assert!(gateway.charge("k").await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn work_that_outlasts_the_drain_time_is_settled_as_unknown_and_its_client_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let mut gateway = Gateway::start(folder.path(), ledger.address, &["--limits-drain", "200ms"]);
    let mut client = gateway.connect().await;
    client.write(&Request::charge("k").behave("hold=work").bytes()).await;
    ledger.held("work").await;
    gateway.signal("TERM");
    let told = client.read(false).await.unwrap();
    assert_eq!(told.told(), (504, "idempotency_outcome_unknown".to_owned()));
    assert!(gateway.ended().success());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    // At once: the lease of a minute is far from lapsed.
    assert_eq!(gateway.charge("k").await.told(), (409, "idempotency_outcome_unknown".to_owned()));
    assert_eq!(ledger.count(), 1);
}
