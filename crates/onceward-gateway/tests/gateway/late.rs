//! Owners that finish after their lease has lapsed.

use serde_json::json;

use crate::harness::{Gateway, Request};

const DAY: u64 = 24 * 60 * 60;

#[tokio::test]
async fn a_lease_that_lapses_under_running_work_lets_no_other_request_execute_and_the_late_answer_is_stored()
{
    let (_folder, ledger, faults, gateway) = Gateway::with_faults(&[]);
    let mut owner = gateway.send_held(&ledger, "work", Request::charge("k").header("x-answer", "late")).await;
    faults.clock_is_ahead(DAY);
    let retried = gateway.charge("k").await;
    assert_eq!(retried.status_and_code(), (409, "idempotency_outcome_unknown".to_owned()));
    assert_ne!(retried.header("retry-after"), "");
    ledger.release("work").await;
    let late = owner.read().await.unwrap();
    assert_eq!((late.status, late.text().as_str()), (201, "late"));
    let after = gateway.charge("k").await;
    assert_eq!((after.status, after.text().as_str(), after.is_replayed()), (201, "late", true));
    assert_eq!(ledger.count(), 1);
    assert_eq!(gateway.metric_or_zero("api_idempotency_zombie_key_total").await, 1.0);
    assert_eq!(gateway.metric_or_zero("api_idempotency_contradiction_total").await, 0.0);
}

#[tokio::test]
async fn an_owner_that_finishes_after_a_verdict_and_a_second_execution_changes_nothing_and_is_counted() {
    let (folder, ledger, faults, gateway) = Gateway::with_faults(&[]);
    let mut owner =
        gateway.send_held(&ledger, "work", Request::charge("k").header("x-answer", "first")).await;
    faults.clock_is_ahead(DAY);
    assert_eq!(gateway.charge("k").await.code(), "idempotency_outcome_unknown");
    let operation = ledger.entries()[0].operation.clone();
    let verdict = json!({ "verdict": "retryable", "reason": "the provider shows nothing" });
    let resolved = gateway.resolve(folder.path(), &operation, &verdict).await;
    assert_eq!(resolved.status, 200, "{resolved:?}");
    let second = gateway.send(Request::charge("k").header("x-answer", "second")).await;
    assert_eq!((second.status, second.text().as_str(), second.is_replayed()), (201, "second", false));
    ledger.release("work").await;
    // It gets what any retry would get, never its own bytes.
    let late = owner.read().await.unwrap();
    assert_eq!((late.status, late.text().as_str()), (201, "second"));
    let after = gateway.charge("k").await;
    assert_eq!((after.text().as_str(), after.is_replayed()), ("second", true));
    assert_eq!(ledger.count(), 2);
    let entries = ledger.entries();
    assert_eq!(entries[0].operation, entries[1].operation);
    assert_ne!(entries[0].fence, entries[1].fence);
    for name in ["api_idempotency_fenced_total", "api_idempotency_contradiction_total"] {
        gateway.until_metric(name, 1.0).await;
        assert_eq!(gateway.metric_or_zero(name).await, 1.0, "{name} is counted once");
    }
}

#[tokio::test]
async fn a_machine_that_slept_between_claim_and_dispatch_sends_nothing() {
    // With one connection, which is taken, the second request waits between its claim and its first byte.
    let (_folder, ledger, faults, gateway) = Gateway::with_faults(&["--limits-upstream-connections", "1"]);
    let (mut first, mut second) = (gateway.connect().await, gateway.connect().await);
    first.write(&Request::charge("first").behave("hold=work").bytes()).await;
    ledger.held("work").await;
    second.write(&Request::charge("second").bytes()).await;
    gateway.until_metric("api_idempotency_reserve_created_total", 2.0).await;
    // While a machine sleeps, its wall clock goes on and elapsed time does not.
    faults.clock_is_ahead(5 * 60);
    ledger.release("work").await;
    assert_eq!(first.read().await.unwrap().status, 201);
    let answer = second.read().await.unwrap();
    assert_eq!(answer.status_and_code(), (502, "idempotency_upstream_unreachable".to_owned()));
    assert_eq!(ledger.count(), 1);
    let retried = gateway.charge("second").await;
    assert_eq!((retried.status, retried.is_replayed()), (201, false), "{retried:?}");
    assert_eq!(ledger.count(), 2);
}
