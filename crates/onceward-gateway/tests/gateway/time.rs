//! Retention, sweeping, and clocks that jump.

use std::collections::BTreeMap;

use crate::faults::Faults;
use crate::harness::{Client, Gateway, Request};
use crate::ledger::Ledger;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const UNKNOWN: &str = "idempotency_outcome_unknown";

#[tokio::test]
async fn an_answer_is_replayed_until_its_retention_ends_and_then_the_key_is_new() {
    let (_folder, ledger, faults, gateway) = Gateway::with_faults(&[]);
    let first = gateway.charge("k").await;
    assert_eq!(first.status, 201);
    faults.time_passed(DAY - HOUR);
    assert!(gateway.charge("k").await.is_replayed());
    faults.time_passed(DAY + HOUR + 1);
    let second = gateway.charge("k").await;
    assert_eq!((second.status, second.is_replayed()), (201, false), "{second:?}");
    assert_ne!(first.header("idempotency-expires"), second.header("idempotency-expires"));
    assert!(gateway.charge("k").await.is_replayed());
    let entries = ledger.entries();
    assert_eq!(entries.len(), 2);
    let [first, second] = [0, 1].map(|number| entries[number].operation.split_once('-').unwrap());
    assert_eq!(first.0, second.0, "the record is the same");
    assert_ne!(first.1, second.1, "the id outlived its window");
    assert_ne!(entries[0].fence, entries[1].fence, "a fence came back");
}

#[tokio::test]
async fn retries_that_meet_the_sweeper_at_the_end_of_retention_execute_exactly_once() {
    const KEYS: usize = 100;
    let (_folder, ledger, faults, gateway) = Gateway::with_faults(&[]);
    let keys: Vec<String> = (0..KEYS).map(|number| format!("k{number}")).collect();
    for key in &keys {
        assert_eq!(gateway.charge(key).await.status, 201);
    }
    // All are past their window, and both sweepers are due.
    faults.time_passed(2 * DAY);
    let retries: Vec<_> = (0..4 * KEYS)
        .map(|number| {
            let (address, key) = (gateway.address, keys[number % KEYS].clone());
            tokio::spawn(async move {
                let mut client = Client(tokio::net::TcpStream::connect(address).await.unwrap());
                (key.clone(), client.send(Request::charge(&key)).await)
            })
        })
        .collect();
    let mut executed: BTreeMap<String, usize> = BTreeMap::new();
    for retry in retries {
        let (key, answer) = retry.await.unwrap();
        match (answer.status, answer.is_replayed()) {
            (201, false) => *executed.entry(key).or_default() += 1,
            (201, true) | (409, false) => {}
            _ => panic!("{key} got {answer:?}"),
        }
    }
    assert_eq!(executed.len(), KEYS);
    assert!(executed.values().all(|times| *times == 1), "{executed:?}");
    assert_eq!(ledger.count(), 2 * KEYS);
}

#[tokio::test]
async fn the_sweeper_deletes_records_past_their_window_and_keeps_those_unknown_or_in_progress() {
    let (_folder, ledger, faults, gateway) = Gateway::with_faults(&[]);
    assert_eq!(gateway.charge("completed").await.status, 201);
    assert_eq!(gateway.send(Request::charge("unknown").behave("reset")).await.code(), UNKNOWN);
    let _client = gateway.send_held(&ledger, "work", Request::charge("running")).await;
    faults.time_passed(10 * DAY);
    gateway.until_metric("api_idempotency_ttl_pruned_total", 1.0).await;
    assert_eq!(gateway.charge("unknown").await.status_and_code(), (409, UNKNOWN.to_owned()));
    // Its lease has lapsed, so its outcome is unknown.
    assert_eq!(gateway.charge("running").await.status_and_code(), (409, UNKNOWN.to_owned()));
    let age = gateway.metric_or_zero("api_idempotency_oldest_unknown_age_seconds").await;
    assert!(age >= (10 * DAY) as f64, "{age}");
    assert_eq!(gateway.metric_or_zero("api_idempotency_unknown").await, 2.0);
    assert_eq!(gateway.metric_or_zero("api_idempotency_ttl_pruned_total").await, 1.0);
    assert_eq!(ledger.count(), 3);
}

#[tokio::test]
async fn a_clock_that_jumps_a_week_lets_leases_lapse_but_forgets_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let mut command = Gateway::command(folder.path(), ledger.address);
    // No answer comes from the cache: the store decides.
    command.args(["--limits-cache-bytes", "0", "--timeout", "10m", "--respond-within", "10m"]);
    let gateway = Gateway::spawn(faults.on(&mut command));
    assert_eq!(gateway.charge("completed").await.status, 201);
    let mut client = gateway.send_held(&ledger, "work", Request::charge("running")).await;
    faults.clock_is_ahead(7 * DAY);
    assert!(gateway.charge("completed").await.is_replayed());
    assert_eq!(gateway.charge("running").await.status_and_code(), (409, UNKNOWN.to_owned()));
    assert_eq!(ledger.count(), 2);
    // The next sweep suspends expiry instead of deleting records, and the owner notices that its lease is over.
    faults.clocks(7 * DAY, MINUTE);
    gateway.until_metric("api_idempotency_expiry_suspended_total", 1.0).await;
    assert_eq!(gateway.metric_or_zero("api_idempotency_ttl_pruned_total").await, 0.0);
    assert!(gateway.charge("completed").await.is_replayed());
    // The clock is set right again.
    faults.time_passed(MINUTE);
    assert!(gateway.charge("completed").await.is_replayed());
    assert_eq!(client.read().await.unwrap().status_and_code(), (504, UNKNOWN.to_owned()));
    // The late answer of the owner is stored.
    ledger.release("work").await;
    gateway.until_state(&ledger.entries()[1].operation, "completed").await;
    assert!(gateway.charge("running").await.is_replayed());
    assert_eq!(ledger.count(), 2);
}
