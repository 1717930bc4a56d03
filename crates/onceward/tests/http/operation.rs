//! `Onceward-Operation` on the answers to requests under a key, and `"operation"` in their problems.

use std::time::Duration;

use onceward::http::{InProgress, Policy};
use onceward::store::Store as _;
use onceward::{OperationId, engine::Resolve, event::Resolution};
use onceward::{RecordId, Reply};
use onceward_testkit::{Fault, FaultyStore};

use super::{Got, SECOND, World, doing, memory, post, with, without, world, world_on};

fn id_of(world: &World, key: &str) -> RecordId {
    let scope = onceward::Scope::new("acme").unwrap();
    world.engine.id_of(&scope, &onceward::Key::new(key).unwrap())
}

/// The name of the operation that stands under a key.
async fn operation(world: &World, key: &str) -> OperationId {
    let id = id_of(world, key);
    world.engine.load(id).await.unwrap().unwrap().record.operation(id)
}

fn named(got: &Got) -> OperationId {
    let name = got.header("onceward-operation").unwrap_or_else(|| panic!("no name: {got:?}"));
    assert_eq!(got.headers.get_all("onceward-operation").iter().count(), 1);
    let name: OperationId = name.parse().unwrap();
    assert!(name.opened().is_some(), "{name} does not name its window");
    assert_eq!(got.handled.operation, Some(name));
    if got.header("content-type") == Some("application/problem+json") {
        // Also compares the name in the body.
        got.problem();
    }
    name
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_its_replays_and_the_service_itself_have_one_name() {
    let store = memory();
    let world = world_on(store.clone(), Policy::new()).await;
    let first = world.send(doing("operation", "k", "{}")).await;
    let name = named(&first);
    assert_eq!(first.body, name.to_string(), "what the service was told");
    assert_eq!(named(&world.send(post("k", "{}")).await), name, "replayed from memory");
    let other = world_on(store, Policy::new()).await;
    let replayed = other.send(post("k", "{}")).await;
    assert!(replayed.is_replay());
    assert_eq!(named(&replayed), name, "replayed from the store");
    assert_eq!(named(&other.send(post("k", "[]")).await), name, "another request under the key");
}

#[tokio::test(start_paused = true)]
async fn every_end_of_an_execution_names_its_operation_and_so_do_its_retries() {
    for what in [
        "status:429",
        "word:retryable:500",
        "refused",
        "status:503",
        "word:unknown:200",
        "late",
        "off",
        "broken",
        "panic",
        "slow:100",
        "bytes:100000",
        "encoded:br",
    ] {
        let world = world(Policy::new().max_response_body(64 * 1024)).await;
        let first = world.send(doing(what, "k", "{}")).await;
        let name = operation(&world, "k").await;
        assert_eq!(named(&first), name, "{what}");
        let retry = world.send(with(post("k", "{}"), "accept-encoding", "gzip")).await;
        assert_eq!(named(&retry), name, "{what}, retried");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_given_while_the_work_goes_on_names_it_too() {
    let policy = Policy::new().respond_within(SECOND * 2).wait(SECOND * 5);
    for in_progress in [InProgress::Conflict, InProgress::Accepted, InProgress::Wait] {
        let world = world(policy.clone().in_progress(in_progress)).await;
        let first = world.send(doing("slow:20", "k", "{}")).await;
        assert_eq!(first.problem(), (504, "idempotency_key_in_progress".to_owned()));
        let name = operation(&world, "k").await;
        assert_eq!(named(&first), name);
        let retry = world.send(post("k", "{}")).await;
        assert_eq!(retry.problem().1, "idempotency_key_in_progress");
        assert_eq!(named(&retry), name, "{in_progress:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_and_what_a_person_decides_about_it_keep_the_name() {
    let world = world(Policy::new()).await;
    world.send(doing("off", "k", "{}")).await;
    let name = operation(&world, "k").await;
    world.give_up(name.record()).await;
    assert_eq!(named(&world.send(post("k", "{}")).await), name);
    let mut reply = Reply::new("found").with_status(201);
    reply.headers = vec![("Onceward-Operation".to_owned(), "another".into())];
    let verdict = Resolution::Completed(reply.into());
    let resolve = Resolve { verdict, by: "ops", reason: "the provider has it", seen: None };
    world.engine.resolve(name.record(), resolve).await.unwrap();
    let replayed = world.send(post("k", "{}")).await;
    assert!(replayed.is_replay());
    assert_eq!(named(&replayed), name);
}

#[tokio::test(start_paused = true)]
async fn the_next_window_of_a_key_has_another_name() {
    let world = world(Policy::new().retention(SECOND * 60).grace(Duration::ZERO)).await;
    let first = named(&world.send(post("k", "{}")).await);
    onceward::plumbing::time::sleep(SECOND * 61).await;
    let second = named(&world.send(post("k", "{}")).await);
    assert_eq!(first.record(), second.record());
    assert_ne!(first, second);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_the_service_puts_into_its_answer_is_neither_believed_nor_stored() {
    for what in ["own-operation:200", "own-operation:429"] {
        let store = memory();
        let world = world_on(store.clone(), Policy::new()).await;
        let first = world.send(doing(what, "k", "{}")).await;
        assert_eq!(named(&first), operation(&world, "k").await, "{what}");
        let record = store.load(id_of(&world, "k")).await.unwrap().record.unwrap().record;
        if let onceward::record::State::Completed { reply, .. } = record.state {
            assert!(reply.headers.iter().all(|(name, _)| name != "onceward-operation"), "{reply:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_record_there_is_no_name() {
    let fails = FaultyStore::new(memory(), |call| {
        if call.id.is_none_or(|id| id == RecordId::from_bytes([0; 16])) {
            Fault::None
        } else {
            Fault::Unavailable
        }
    });
    let away = world_on(fails, Policy::new()).await;
    let small = world(Policy::new().max_request_body(1)).await;
    for got in [
        away.send(post("k", "{}")).await,
        small.send(post("k", "{}")).await,
        small.send(without(post("k", ""), "x-tenant")).await,
        small.send(post("a,b", "")).await,
    ] {
        got.problem();
        assert_eq!(got.header("onceward-operation"), None);
    }
    // What passes through is not touched.
    let passed = small.send(without(doing("own-operation:200", "k", ""), "idempotency-key")).await;
    assert_eq!(passed.header("onceward-operation"), Some("its own"));
}

#[tokio::test(start_paused = true)]
async fn a_route_that_only_observes_names_nothing() {
    let world = world(Policy::new().mode(onceward::http::Mode::Observe)).await;
    for _ in 0..2 {
        let got = world.send(post("k", "{}")).await;
        assert_eq!((got.status, got.header("onceward-operation")), (201, None));
    }
}
