//! A store that fails.

use std::time::Duration;

use onceward::RecordId;
use onceward::http::{KeyRule, Policy, StoreDown};
use onceward_testkit::{Call, Fault, FaultyStore, Method};
use tracing::Instrument as _;

use super::log::Log;
use super::{Got, SECOND, World, doing, memory, post, world_on};

/// The id of a store's identity, which an engine must read to open.
const IDENTITY: RecordId = RecordId::from_bytes([0; 16]);

/// Every call about an operation fails, so that reading it again fails as well.
fn always(fault: Fault) -> impl FnMut(Call) -> Fault + Send + 'static {
    move |call| if call.id.is_none_or(|id| id == IDENTITY) { Fault::None } else { fault }
}

async fn failing(fault: Fault, policy: Policy) -> World {
    world_on(FaultyStore::new(memory(), always(fault)), policy).await
}

fn pass() -> Policy {
    Policy::new().store_down(StoreDown::Pass)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_refuses_everything_and_nothing_is_dispatched() {
    for fault in [Fault::Unavailable, Fault::Overloaded, Fault::CallLost] {
        let world = failing(fault, Policy::new()).await;
        let got = world.send(post("k", "{}")).await;
        assert_eq!(got.problem(), (503, "idempotency_store_unavailable".to_owned()), "{fault:?}");
        assert_eq!(got.json()["next_action"], "retry_same_key");
        assert!(got.json()["title"].as_str().unwrap().contains("this try was not executed"), "{got:?}");
        assert_eq!((got.header("retry-after"), world.ledger()), (Some("1"), 0));
        assert!(!String::from_utf8_lossy(&got.body).contains("as the test asked"), "internals are told");
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_can_let_requests_through_unprotected_and_marked() {
    for fault in [Fault::Unavailable, Fault::Overloaded] {
        let world = failing(fault, pass()).await;
        for number in 1..=2 {
            let got = world.send(post("k", "{\"a\":1}")).await;
            assert_eq!((got.status, got.header("onceward-store")), (201, Some("unavailable")), "{fault:?}");
            assert_eq!(got.body, format!("execution {number} of {{\"a\":1}}"));
            assert_eq!(got.header("idempotency-expires"), None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_may_have_been_written_never_goes_through_unprotected() {
    for fault in [Fault::CallLost, Fault::AnswerLost] {
        let world = failing(fault, pass()).await;
        let got = world.send(post("k", "{}")).await;
        assert_eq!((got.problem().0, world.ledger()), (503, 0), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_never_taken_for_absent() {
    for policy in [Policy::new(), pass()] {
        let store = memory();
        let first = world_on(store.clone(), policy.clone()).await;
        first.send(post("k", "{}")).await;
        let damaged = FaultyStore::new(store, always(Fault::Unreadable));
        let world = world_on(damaged, policy).await;
        let got = world.send(post("k", "{}")).await;
        assert_eq!(got.problem(), (503, "idempotency_store_unavailable".to_owned()));
        assert_eq!(world.ledger(), 0);
    }
}

/// The problem says that there was an answer, and that it could not be stored.
fn was_not_stored(got: &Got) {
    assert_eq!(got.problem(), (504, "idempotency_outcome_unknown".to_owned()));
    assert_eq!(got.json()["next_action"], "wait");
    let detail = got.json()["detail"].to_string();
    assert!(detail.contains("The service answered, but its answer could not be stored"), "{detail}");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_could_not_be_stored_is_not_given_and_the_next_try_executes_once_it_is() {
    let store = FaultyStore::new(memory(), |call| match (call.method, call.nth) {
        (Method::Swap, 3..30) => Fault::Unavailable,
        _ => Fault::None,
    });
    let world = world_on(store, Policy::new()).await;
    was_not_stored(&world.send(doing("status:429", "k", "{}")).await);
    onceward::plumbing::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!((world.send(post("k", "{}")).await.status, world.ledger()), (201, 2));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_could_not_be_stored_is_never_given_and_the_stored_one_is_later() {
    let store = FaultyStore::new(memory(), |call| match (call.method, call.nth) {
        // The settlement fails for as long as its caller waits, and is tried again afterwards.
        (Method::Swap, 3..30) => Fault::Unavailable,
        _ => Fault::None,
    });
    let world = world_on(store, Policy::new()).await;
    let got = world.send(doing("", "k", "{}")).await;
    was_not_stored(&got);
    onceward::plumbing::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(world.send(post("k", "{}")).await.is_replay());
    assert_eq!(world.ledger(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_demanded_key_and_unprotected_requests_cannot_be_combined() {
    let policy = pass().key(KeyRule::Required);
    assert!(onceward::http::Routes::new(policy).is_err());
}

/// The first claim takes two seconds to arrive, and the store cannot be reached for the second.
fn late_then_away() -> FaultyStore {
    FaultyStore::new(memory(), |call| match (call.method, call.nth) {
        (Method::Swap, 2) => Fault::Slow { before: SECOND * 2, after: Duration::ZERO },
        (Method::Swap, 3) => Fault::Unavailable,
        _ => Fault::None,
    })
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_go_through_while_another_claim_of_its_key_is_on_its_way() {
    let store = late_then_away();
    let world = world_on(store, pass()).await;
    let sender = world.clone();
    let first = tokio::spawn(async move { sender.send(post("k", "{}")).await });
    onceward::plumbing::time::sleep(SECOND).await;
    let second = world.send(post("k", "{}")).await;
    assert_eq!(second.problem(), (503, "idempotency_store_unavailable".to_owned()));
    assert_eq!(first.await.unwrap().status, 201);
    assert!(world.send(post("k", "{}")).await.is_replay());
    assert_eq!(world.ledger(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_its_client_left_keeps_others_from_going_through() {
    let store = late_then_away();
    let world = world_on(store, pass()).await;
    let sender = world.clone();
    let first = tokio::spawn(async move { sender.send(post("k", "{}")).await });
    onceward::plumbing::time::sleep(SECOND).await;
    first.abort();
    assert_eq!(world.send(post("k", "{}")).await.problem().0, 503);
    onceward::plumbing::time::sleep(SECOND * 2).await;
    assert!(world.send(post("k", "{}")).await.is_replay());
    assert_eq!(world.ledger(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_while_a_request_under_the_same_key_goes_through_unprotected() {
    let store = FaultyStore::scripted(memory(), [(Method::Swap, 2, Fault::Unavailable)]);
    let world = world_on(store, pass()).await;
    let sender = world.clone();
    let first = tokio::spawn(async move { sender.send(doing("hang", "k", "{}")).await });
    world.upstream.began.notified().await;
    // The store is back.
    let second = world.send(post("k", "{}")).await;
    assert_eq!(second.problem(), (409, "idempotency_key_in_progress".to_owned()));
    assert_eq!(world.send(post("other", "{}")).await.header("onceward-store"), None);
    world.upstream.go.notify_one();
    assert_eq!(first.await.unwrap().header("onceward-store"), Some("unavailable"));
    assert_eq!(world.ledger(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_goes_through_unprotected_goes_on_without_its_client_and_keeps_others_out() {
    let store = FaultyStore::scripted(memory(), [(Method::Swap, 2, Fault::Unavailable)]);
    let world = world_on(store, pass()).await;
    let sender = world.clone();
    let first = tokio::spawn(async move { sender.send(doing("hang", "k", "{}")).await });
    world.upstream.began.notified().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let second = world.send(post("k", "{}")).await;
    assert_eq!(second.problem(), (409, "idempotency_key_in_progress".to_owned()));
    assert_eq!(world.ledger(), 1);
    world.upstream.go.notify_one();
    // Its answer is dropped unread, and then the key is free.
    let mut third = world.send(post("k", "{}")).await;
    for _ in 0..100 {
        if third.status == 201 {
            break;
        }
        tokio::task::yield_now().await;
        third = world.send(post("k", "{}")).await;
    }
    assert_eq!((third.status, world.ledger()), (201, 2));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_sent_is_never_said_not_to_have_been_executed() {
    let store = FaultyStore::new(memory(), |call| match (call.method, call.nth) {
        // The settlement ends the task that keeps the answer.
        (Method::Swap, 3) => panic!("a bug of the store, which this test expects"),
        _ => Fault::None,
    });
    let world = world_on(store, Policy::new()).await;
    let got = world.send(post("k", "{}")).await;
    assert_eq!(world.ledger(), 1);
    assert_eq!(got.problem(), (502, "idempotency_outcome_unknown".to_owned()));
    assert_eq!(got.header("onceward-outcome"), Some("unknown"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_passes_unprotected_is_logged_in_its_own_span() {
    let world = failing(Fault::Unavailable, pass()).await;
    let log = Log::listen();
    let span = tracing::info_span!("request", trace_id = "4bf92f3577b34da6a3ce929d0e0e4736");
    let got = world.send(doing("log", "k", "{}")).instrument(span).await;
    assert_eq!(got.header("onceward-store"), Some("unavailable"));
    let lines = log.lines();
    let line = lines.iter().find(|line| line["message"] == "the service was called").unwrap();
    assert_eq!(line["span"]["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
}
