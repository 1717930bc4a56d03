//! An operator and a find decide about the same order at the same time: one of them wins, and the other changes nothing.

use futures_util::future::join_all;
use onceward_testkit::wait::{self, seen};
use serde_json::{Value, json};

use crate::control::Point;
use crate::harness::Response;
use crate::shop::Database;
use crate::world::{HASTY, Led, Setup, UNKNOWN, World, in_each, is_of_receipt, operation_of};

/// Who has decided, as an operator sees it: a find in the background, a find at the end of the execution, or an operator.
const FINDERS: [&str; 2] = ["reconciliation", "receipt row"];
const OPERATOR: [&str; 1] = ["ada"];

fn completed() -> Value {
    let reply = json!({ "status": 202, "headers": { "content-type": ["application/json"] }, "body": "{\"by\":\"ada\"}" });
    json!({ "verdict": "completed", "reply": reply, "reason": "the shop was called" })
}

fn retryable() -> Value {
    json!({ "verdict": "retryable", "reason": "the shop was called" })
}

/// An order that nobody knows about, and whose handler waits with its row written.
async fn unknown(world: &World, key: &str) -> (Led, String) {
    let mut led = world.led(key, Point::Written).await;
    let first = led.answer().await;
    assert_eq!(first.status_and_code(), (504, UNKNOWN.to_owned()));
    (led, operation_of(&first))
}

async fn resolve(world: &World, operation: &str, verdict: &Value) -> Response {
    world.gateway.resolve(world.folder.path(), operation, verdict).await
}

/// The operator's verdict is taken. A find that begins in the same moment makes the operator look again.
async fn decides(world: &World, operation: &str, verdict: &Value) {
    wait::until("the verdict is taken", async || {
        seen(resolve(world, operation, verdict).await, |answer| answer.status == 200)
    })
    .await;
}

/// The operator is told who was first, and nothing is changed.
async fn is_told(world: &World, operation: &str, was_first: &[&str]) {
    let before = world.shown(operation).await;
    let by = &before["verdict"]["by"];
    assert!(was_first.iter().any(|name| by == name), "{before}");
    for verdict in [completed(), retryable()] {
        let late = resolve(world, operation, &verdict).await;
        assert_eq!(late.status_and_code(), (409, "conflict".to_owned()), "{late:?}");
        assert_eq!(&late.json()["verdict"]["by"], by, "{late:?}");
    }
    assert_eq!(world.shown(operation).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_who_is_later_than_a_find_is_told_and_changes_nothing() {
    in_each(Setup::all(), HASTY, async |world| {
        let (mut led, operation) = unknown(&world, "committed").await;
        world.until_a_void_waits().await;
        // The gateway gets no answer of the handler's own.
        led.delivery.say("go").await;
        led.delivery.at(Point::Committed).await;
        world.gateway.until_state(&operation, "completed").await;
        is_told(&world, &operation, &FINDERS).await;
        assert!(is_of_receipt(&world.order("committed").await));

        let (led, operation) = unknown(&world, "killed").await;
        let seen_before = world.shown(&operation).await["version"].clone();
        led.delivery.signal("KILL");
        world.gateway.until_state(&operation, "failed_retryable").await;
        is_told(&world, &operation, &FINDERS).await;
        // With the version that the operator has looked at.
        let mut verdict = completed();
        verdict["version"] = seen_before;
        let late = resolve(&world, &operation, &verdict).await;
        assert_eq!(late.status_and_code(), (409, "conflict".to_owned()), "{late:?}");
        assert_eq!(world.retried("killed").await.status, 201);
        for key in ["committed", "killed"] {
            assert_eq!(world.shop.orders_of(key).await, 1, "{key}");
        }
    })
    .await;
}

/// The sum of the finds that are over, whatever they brought.
async fn finds(world: &World) -> f64 {
    let samples = world.gateway.metrics().await;
    let ended = samples.iter().filter(|(name, _)| name.starts_with("api_idempotency_reconcile_finds_total"));
    ended.map(|(_, count)| count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_find_that_is_later_than_an_operator_changes_nothing() {
    in_each(Setup::all(), HASTY, async |world| {
        for (key, word) in [("committed", "go"), ("rolled-back", "500")] {
            let (mut led, operation) = unknown(&world, key).await;
            world.until_a_void_waits().await;
            let before = finds(&world).await;
            decides(&world, &operation, &completed()).await;
            let decided = world.shown(&operation).await;
            led.delivery.end_with(word).await;
            wait::until("the find is over", async || seen(finds(&world).await, |&now| now > before)).await;
            // What comes after it is found out too, so its finding has been applied or dropped.
            let (next, later) = unknown(&world, &format!("after-{key}")).await;
            next.delivery.signal("KILL");
            world.gateway.until_state(&later, "failed_retryable").await;
            assert_eq!(world.shown(&operation).await, decided, "{key}");
            is_told(&world, &operation, &OPERATOR).await;
            let replay = world.order(key).await;
            assert_eq!((replay.status, replay.is_replayed()), (202, true), "{replay:?}");
        }
    })
    .await;
}

/// A release raises the fence in the row first, so it is refused while the handler may still commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_cannot_release_an_open_transaction_and_its_end_decides() {
    in_each(Setup::all(), HASTY, async |world| {
        for (key, word) in [("committed", "go"), ("rolled-back", "500")] {
            let (mut led, operation) = unknown(&world, key).await;
            let early = resolve(&world, &operation, &retryable()).await;
            assert_eq!(early.status, 503, "{early:?}");
            assert!(early.text().contains("still open"), "{early:?}");
            led.delivery.end_with(word).await;
            let answer = world.retried(key).await;
            assert_eq!(answer.status, 201, "{key}: {answer:?}");
            assert!(world.order(key).await.is_replayed(), "{key}");
            assert_eq!(world.shop.orders_of(key).await, 1, "{key}");
        }
    })
    .await;
}

/// How many orders are decided at once. SQLite has one open transaction at a time.
const fn at_once(database: Database) -> usize {
    match database {
        Database::Sqlite => 1,
        Database::Postgres => 8,
    }
}

/// Which of the two is first is left to chance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_and_a_find_at_once_leave_one_decision_and_at_most_one_order() {
    in_each(Setup::all(), HASTY, async |world| {
        let rounds = (0..at_once(world.shop.database)).map(|number| both_decide(&world, number));
        let operator_was_first: Vec<bool> = join_all(rounds).await;
        let count = operator_was_first.iter().filter(|was_first| **was_first).count();
        println!("the operator was first {count} times of {}", operator_was_first.len());
    })
    .await;
}

/// Whether the operator was first.
async fn both_decide(world: &World, number: usize) -> bool {
    let key = format!("k{number}");
    let (led, operation) = unknown(world, &key).await;
    world.until_a_void_waits().await;
    led.delivery.signal("KILL");
    if number.is_multiple_of(2) {
        wait::until("the void is made", async || {
            seen(world.shop.fence_of(&operation).await, Option::is_some)
        })
        .await;
    }
    let resolved = resolve(world, &operation, &completed()).await;
    if resolved.status == 200 {
        is_told(world, &operation, &OPERATOR).await;
        let replay = world.order(&key).await;
        assert_eq!((replay.status, replay.is_replayed()), (202, true), "{replay:?}");
        assert_eq!(world.shop.orders_of(&key).await, 0, "{key}");
        return true;
    }
    assert_eq!(resolved.status_and_code(), (409, "conflict".to_owned()), "{resolved:?}");
    world.gateway.until_state(&operation, "failed_retryable").await;
    is_told(world, &operation, &FINDERS).await;
    assert_eq!(world.retried(&key).await.status, 201);
    assert_eq!(world.shop.orders_of(&key).await, 1, "{key}");
    false
}
