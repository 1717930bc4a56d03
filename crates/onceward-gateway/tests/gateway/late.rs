//! Owners that finish when nobody counts on them any more.

use serde_json::json;

use crate::faults::Faults;
use crate::harness::{Gateway, Request};
use crate::ledger::Ledger;

const DAY: u64 = 24 * 60 * 60;

#[tokio::test]
async fn a_lease_that_lapses_under_running_work_lets_nobody_else_execute_and_the_late_answer_is_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let gateway = Gateway::spawn(faults.on(&mut Gateway::command(folder.path(), ledger.address)));
    let mut owner = gateway.connect().await;
    owner.write(&Request::charge("k").behave("hold=work").header("x-answer", "late").bytes()).await;
    ledger.held("work").await;
    faults.clock_is_ahead(DAY);
    let retried = gateway.charge("k").await;
    assert_eq!(retried.told(), (409, "idempotency_outcome_unknown".to_owned()));
    assert_ne!(retried.header("retry-after"), "");
    ledger.release("work").await;
    let late = owner.read(false).await.unwrap();
    assert_eq!((late.status, late.text().as_str()), (201, "late"));
    let after = gateway.charge("k").await;
    assert_eq!((after.status, after.text().as_str(), after.is_replayed()), (201, "late", true));
    assert_eq!(ledger.count(), 1);
    assert_eq!(gateway.counted("api_idempotency_zombie_key_total").await, 1.0);
    assert_eq!(gateway.counted("api_idempotency_contradiction_total").await, 0.0);
}

#[tokio::test]
async fn an_owner_that_finishes_after_a_verdict_and_a_second_execution_changes_nothing_and_raises_the_alarm()
{
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let gateway = Gateway::spawn(faults.on(&mut Gateway::command(folder.path(), ledger.address)));
    let mut owner = gateway.connect().await;
    owner.write(&Request::charge("k").behave("hold=work").header("x-answer", "first").bytes()).await;
    ledger.held("work").await;
    faults.clock_is_ahead(DAY);
    assert_eq!(gateway.charge("k").await.code(), "idempotency_outcome_unknown");
    let operation = ledger.entries()[0].operation.clone();
    let verdict = json!({ "verdict": "retryable", "reason": "the provider shows nothing" });
    let resolved = gateway.resolve(folder.path(), &operation, &verdict).await;
    assert_eq!(resolved.status, 200, "{resolved:?}");
    let second = gateway.send(Request::charge("k").header("x-answer", "second")).await;
    assert_eq!((second.status, second.text().as_str(), second.is_replayed()), (201, "second", false));
    ledger.release("work").await;
    // It is told what any retry would be told, never its own bytes.
    let late = owner.read(false).await.unwrap();
    assert_eq!((late.status, late.text().as_str()), (201, "second"));
    let after = gateway.charge("k").await;
    assert_eq!((after.text().as_str(), after.is_replayed()), ("second", true));
    assert_eq!(ledger.count(), 2);
    let entries = ledger.entries();
    assert_eq!(entries[0].operation, entries[1].operation);
    assert_ne!(entries[0].fence, entries[1].fence);
    assert_eq!(gateway.counted("api_idempotency_fenced_total").await, 1.0);
    assert_eq!(gateway.counted("api_idempotency_contradiction_total").await, 1.0);
}

#[tokio::test]
async fn a_machine_that_slept_between_claim_and_dispatch_sends_nothing_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let mut command = Gateway::command(folder.path(), ledger.address);
    // The only connection is taken, so that the second request stands between its claim and its first byte.
    let gateway = Gateway::spawn(faults.on(command.args(["--limits-upstream-connections", "1"])));
    let (mut first, mut second) = (gateway.connect().await, gateway.connect().await);
    first.write(&Request::charge("first").behave("hold=work").bytes()).await;
    ledger.held("work").await;
    second.write(&Request::charge("second").bytes()).await;
    gateway.until_counted("api_idempotency_reserve_created_total", 2.0).await;
    // A machine that sleeps does not count the time, but its wall clock does.
    faults.clock_is_ahead(5 * 60);
    ledger.release("work").await;
    assert_eq!(first.read(false).await.unwrap().status, 201);
    let told = second.read(false).await.unwrap();
    assert_eq!(told.told(), (502, "idempotency_upstream_unreachable".to_owned()));
    assert_eq!(ledger.count(), 1);
    let retried = gateway.charge("second").await;
    assert_eq!((retried.status, retried.is_replayed()), (201, false), "{retried:?}");
    assert_eq!(ledger.count(), 2);
}
