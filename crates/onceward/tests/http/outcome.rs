//! `Onceward-Outcome` of the layer's own answers, for an outer Onceward.

use http::{Method, Request};
use http_body_util::Full;
use onceward::http::{Policy, Routes};
use onceward::store::Store as _;
use onceward::{OnLapse, Record, RecoveryPoint, Reply, Timestamp, engine::Resolve, record::State};

use super::{Got, SECOND, World, doing, memory, post, with, without, world, world_on};

const UNKNOWN: &str = "idempotency_outcome_unknown";

fn outcome(got: &Got) -> &str {
    got.header("onceward-outcome").unwrap_or("")
}

fn id_of(world: &World, key: &str) -> onceward::RecordId {
    let scope = onceward::Scope::new("acme").unwrap();
    world.engine.id_of(&scope, &onceward::Key::new(key).unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_called_unknown_on_the_first_answer_and_on_every_retry() {
    for what in ["late", "off", "broken", "short", "panic", "slow:100", "status:503", "word:unknown:200"] {
        let world = world(Policy::new()).await;
        let first = world.send(doing(what, "k", "{}")).await;
        assert_eq!((first.problem().1.as_str(), outcome(&first)), (UNKNOWN, "unknown"), "{what}");
        let retry = world.send(post("k", "{}")).await;
        assert_eq!((retry.problem().1.as_str(), outcome(&retry)), (UNKNOWN, "unknown"), "{what}");
        world.give_up(id_of(&world, "k")).await;
        assert_eq!(outcome(&world.send(post("k", "{}")).await), "unknown", "{what}, dead-lettered");
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_goes_on_is_not_called_retryable() {
    let world = world(Policy::new().respond_within(SECOND)).await;
    let first = world.send(doing("slow:5", "k", "{}")).await;
    assert_eq!((first.status, outcome(&first)), (504, "unknown"));
    // This request did nothing: the other one is being executed.
    let retry = world.send(post("k", "{}")).await;
    assert_eq!((retry.status, outcome(&retry)), (409, "retryable"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_not_executed_is_called_retryable() {
    let world = world(Policy::new()).await;
    for what in ["refused", "status:429", "word:retryable:500"] {
        let got = world.send(doing(what, what, "{}")).await;
        assert_eq!(outcome(&got), "retryable", "{what}");
    }
    world.send(post("k", "{}")).await;
    for request in [post("k", "[]"), post("a,b", "{}"), without(post("k", "{}"), "x-tenant")] {
        assert_eq!(outcome(&world.send(request).await), "retryable");
    }
}

/// A record whose first owner died after its recovery point, and which the next request takes over.
async fn taken_over_in_doubt(what: &str) -> (World, Got) {
    let store = memory();
    let on_lapse = OnLapse::Resume { attempts: 3, within: SECOND * 3600 };
    let world = world_on(store.clone(), Policy::new().on_lapse(on_lapse)).await;
    world.send(doing("status:429", "k", "{}")).await;
    let id = id_of(&world, "k");
    let standing = store.load(id).await.unwrap().record.unwrap();
    let lapsed = Record {
        recovery_point: Some(RecoveryPoint::new("charged", "").unwrap()),
        state: State::InProgress { lease_until: Timestamp::from_micros(standing.record.fence.as_number()) },
        ..standing.record
    };
    store.swap(id, Some(standing.version), lapsed).await.unwrap();
    let got = world.send(doing(what, "k", "{}")).await;
    (world, got)
}

#[tokio::test(start_paused = true)]
async fn proof_that_the_last_attempt_did_nothing_is_not_called_retryable_where_an_earlier_one_may_have_done_it()
 {
    for what in ["refused", "status:429", "word:retryable:500"] {
        let (world, got) = taken_over_in_doubt(what).await;
        let record = world.engine.load(id_of(&world, "k")).await.unwrap().unwrap().record;
        assert_eq!((record.attempt, record.state.name()), (2, "unknown"), "{what}");
        assert_eq!((got.problem().1.as_str(), outcome(&got)), (UNKNOWN, "unknown"), "{what}");
        // It gets the refusal that its next try will get, and not one about an answer that is missing or not stored.
        let retry = world.send(post("k", "{}")).await;
        assert_eq!((got.status, got.json()), (409, retry.json()), "{what}");
        assert_eq!(got.json()["next_action"], "wait", "{what}");
        assert!(got.header("retry-after").is_some(), "{what}");
        let sent = what != "refused";
        assert_eq!(got.handled.disposition.name(), if sent { "unanswered" } else { "refused" }, "{what}");
        assert_eq!(world.ledger(), 1 + u64::from(sent), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stored_answer_does_not_bring_another_services_word_with_it() {
    let world = world(Policy::new()).await;
    world.send(doing("off", "k", "{}")).await;
    let mut reply = Reply::new("found").with_status(201);
    reply.headers =
        vec![("Onceward-Outcome".to_owned(), "retryable".into()), ("x-kept".to_owned(), "1".into())];
    let verdict = onceward::event::Resolution::Completed(reply.into());
    world
        .engine
        .resolve(id_of(&world, "k"), Resolve { verdict, by: "ops", reason: "asked them", seen: None })
        .await
        .unwrap();
    let got = world.send(post("k", "{}")).await;
    assert_eq!((got.is_replay(), outcome(&got), got.header("x-kept")), (true, "", Some("1")));
}

#[tokio::test(start_paused = true)]
async fn a_mismatch_names_what_is_compared_and_says_which_part_differs() {
    let mut world = world(Policy::new()).await;
    world.routes = Routes::new(Policy::new().methods([Method::POST, Method::PUT])).unwrap();
    world.send(post("k", "{}")).await;
    let at = |method: &str, target: &str| {
        let request = Request::builder().method(method).uri(target);
        let request = request.header("x-tenant", "acme").header("idempotency-key", "k");
        request.header("content-type", "application/json").body(Full::from("{}")).unwrap()
    };
    let typed = |kind| with(without(post("k", "{}"), "content-type"), "content-type", kind);
    let target = ["method", "path", "query"];
    let content = ["content type", "body", "header"];
    for (request, named, not_named) in [
        (at("PUT", "/payments"), target, content),
        (at("POST", "/refunds"), target, content),
        (at("POST", "/payments?currency=eur"), target, content),
        (typed("text/plain"), content, target),
        (post("k", "[]"), content, target),
    ] {
        let got = world.send(request).await;
        assert_eq!(got.problem(), (422, "idempotency_key_reused_with_different_payload".to_owned()));
        let detail = got.json()["detail"].as_str().unwrap().to_owned();
        assert!(named.iter().all(|word| detail.contains(word)), "{detail}");
        assert!(!not_named.iter().any(|word| detail.contains(word)), "{detail}");
    }
    assert_eq!(world.ledger(), 1);
}
