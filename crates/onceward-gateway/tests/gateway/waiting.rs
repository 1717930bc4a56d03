//! What a caller is told while somebody else's execution, or its own, takes long.

use crate::harness::{Client, Gateway, Request, Response, total};
use crate::ledger::Ledger;

const RUNS: &str = "idempotency_key_in_progress";

struct World {
    ledger: Ledger,
    gateway: Gateway,
    _folder: tempfile::TempDir,
}

fn world(arguments: &[&str]) -> World {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = Gateway::start(folder.path(), ledger.address, arguments);
    World { ledger, gateway, _folder: folder }
}

fn held() -> Request<'static> {
    Request::charge("k").behave("hold=k")
}

impl World {
    /// A first request that the API has taken up and does not answer yet.
    async fn first(&self) -> Client {
        let mut client = self.gateway.connect().await;
        client.write(&held().bytes()).await;
        self.ledger.held("k").await;
        client
    }

    /// Returns once so many requests are being answered.
    async fn in_flight(&self, wanted: f64) {
        while total(&self.gateway, "api_idempotency_in_flight").await < wanted {}
    }

    /// A second request that waits for the first, which is then answered.
    async fn attached(&self, request: Request<'_>) -> Response {
        let mut first = self.first().await;
        let mut second = self.gateway.connect().await;
        second.write(&request.bytes()).await;
        self.in_flight(2.0).await;
        self.ledger.release("k").await;
        let answer = first.read(false).await.unwrap();
        assert_eq!((answer.status, answer.is_replayed()), (201, false), "{answer:?}");
        second.read(false).await.unwrap()
    }
}

#[tokio::test]
async fn where_a_route_waits_the_second_gets_the_answer_of_the_first() {
    let world = world(&["--in-progress", "wait"]);
    let second = world.attached(held()).await;
    assert_eq!((second.status, second.is_replayed()), (201, true), "{second:?}");
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test]
async fn a_caller_may_ask_to_wait_where_the_route_does_not() {
    let world = world(&[]);
    let second = world.attached(held().header("prefer", "wait=10")).await;
    assert_eq!((second.status, second.is_replayed()), (201, true), "{second:?}");
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test]
async fn nobody_waits_longer_than_the_route_allows() {
    let world = world(&["--in-progress", "wait", "--wait", "1s"]);
    let mut first = world.first().await;
    for request in [held(), held().header("prefer", "wait=3600")] {
        let answer = world.gateway.send(request).await;
        assert_eq!(answer.told(), (409, RUNS.to_owned()), "{answer:?}");
        assert!(!answer.header("retry-after").is_empty());
    }
    world.ledger.release("k").await;
    assert_eq!(first.read(false).await.unwrap().status, 201);
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test]
async fn where_a_route_accepts_the_second_is_told_where_to_ask() {
    let world = world(&["--in-progress", "accepted"]);
    let mut first = world.first().await;
    let accepted = world.gateway.send(held()).await;
    assert_eq!(accepted.told(), (202, RUNS.to_owned()), "{accepted:?}");
    assert!(!accepted.header("retry-after").is_empty());
    let location = accepted.header("location");
    assert_eq!(location, "/.well-known/idempotency/status/k");
    let running = world.gateway.send(Request::new("GET", location)).await;
    assert_eq!((running.status, &running.json()["state"]), (200, &"in_progress".into()), "{running:?}");
    world.ledger.release("k").await;
    assert_eq!(first.read(false).await.unwrap().status, 201);
    let done = world.gateway.send(Request::new("GET", location)).await;
    assert_eq!((&done.json()["state"], &done.json()["status"]), (&"completed".into(), &201.into()));
    assert!(!done.text().contains("charged"), "never the answer: {done:?}");
    assert!(world.gateway.send(held()).await.is_replayed());
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test]
async fn a_client_is_kept_no_longer_than_the_route_says_and_the_work_goes_on() {
    let world = world(&["--respond-within", "200ms"]);
    let told = world.gateway.send(held()).await;
    assert_eq!(told.told(), (504, RUNS.to_owned()), "{told:?}");
    assert_eq!((told.header("retry-after").is_empty(), &told.json()["next_action"]), (false, &"wait".into()));
    world.ledger.held("k").await;
    assert_eq!(world.gateway.status_of("k").await.json()["state"], "in_progress");
    world.ledger.release("k").await;
    let waits = held().header("prefer", "wait=10");
    let answer = world.gateway.send(waits).await;
    assert_eq!((answer.status, answer.is_replayed()), (201, true), "{answer:?}");
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test]
async fn requests_beyond_the_limit_of_upstream_connections_wait_for_one() {
    let world = world(&["--limits-upstream-connections", "1"]);
    let mut first = world.first().await;
    let mut others = Vec::new();
    for request in [Request::new("GET", "/a"), Request::charge("other")] {
        let mut client = world.gateway.connect().await;
        client.write(&request.bytes()).await;
        others.push(client);
    }
    world.in_flight(3.0).await;
    assert_eq!(world.ledger.count(), 1);
    world.ledger.release("k").await;
    assert_eq!(first.read(false).await.unwrap().status, 201);
    for mut client in others {
        assert_eq!(client.read(false).await.unwrap().status, 201);
    }
    assert_eq!(world.ledger.count(), 3);
}
