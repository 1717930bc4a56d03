//! Gateways that are killed at the worst moments, and under load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::faults::Faults;
use crate::harness::{Gateway, Port, Request, Response, try_charge, within};
use crate::ledger::Ledger;

const IN_PROGRESS: (u16, &str) = (409, "idempotency_key_in_progress");
const UNKNOWN: (u16, &str) = (409, "idempotency_outcome_unknown");
/// Longer than any lease here.
const HOUR: u64 = 60 * 60;

fn is(response: &Response, expected: (u16, &str)) -> bool {
    (response.status, response.code().as_str()) == expected
}

#[tokio::test]
async fn a_request_that_was_sent_when_the_gateway_was_killed_becomes_unknown_and_is_never_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let start = || Gateway::spawn(faults.on(&mut Gateway::command(folder.path(), ledger.address)));
    let mut gateway = start();
    let mut client = gateway.send_held(&ledger, "work", Request::charge("k")).await;
    gateway.kill();
    assert!(client.read().await.is_none());
    let gateway = start();
    let early = gateway.charge("k").await;
    assert!(is(&early, IN_PROGRESS), "{early:?}");
    assert_ne!(early.header("retry-after"), "");
    faults.time_passed(HOUR);
    let late = gateway.charge("k").await;
    assert!(is(&late, UNKNOWN), "{late:?}");
    faults.time_passed(24 * HOUR);
    assert!(is(&gateway.charge("k").await, UNKNOWN));
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_retry_that_waits_is_answered_unknown_when_the_lease_of_a_killed_gateway_lapses() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let terms = ["--lease", "2s", "--timeout", "1s"];
    let mut gateway = Gateway::start(folder.path(), ledger.address, &terms);
    let _client = gateway.send_held(&ledger, "work", Request::charge("k")).await;
    gateway.kill();
    let gateway = Gateway::start(folder.path(), ledger.address, &terms);
    let answer = gateway.await_charge("k").await;
    assert!(is(&answer, UNKNOWN), "{answer:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_gateway_killed_between_the_apis_success_and_its_own_record_is_reconciled_with_the_apis_answer() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let start = || Gateway::spawn(faults.on(&mut Gateway::command(folder.path(), ledger.address)));
    let mut gateway = start();
    let mut client =
        gateway.send_held(&ledger, "work", Request::charge("k").header("x-answer", "charged")).await;
    // The answer comes and cannot be stored; then the gateway is killed.
    faults.disk_is_full();
    ledger.release("work").await;
    gateway.until_metric("api_idempotency_store_error_total", 1.0).await;
    gateway.kill();
    assert!(client.read().await.is_none(), "an answer that is not durable was given");
    faults.disk_has_space();
    faults.time_passed(HOUR);
    let gateway = start();
    assert!(is(&gateway.charge("k").await, UNKNOWN));
    let operation = ledger.entries()[0].operation.clone();
    let verdict = json!({
        "verdict": "completed",
        "reason": "the API shows the charge",
        "reply": { "status": 201, "headers": { "content-type": "text/plain" }, "body": "charged" },
    });
    let resolved = gateway.resolve(folder.path(), &operation, &verdict).await;
    assert_eq!(resolved.status, 200, "{resolved:?}");
    let second = gateway.resolve(folder.path(), &operation, &verdict).await;
    assert_eq!(second.status_and_code(), (409, "conflict".to_owned()));
    let retried = gateway.charge("k").await;
    assert_eq!((retried.status, retried.text().as_str(), retried.is_replayed()), (201, "charged", true));
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn an_answer_that_was_stored_when_the_gateway_was_killed_is_replayed() {
    let (folder, ledger, mut gateway) = Gateway::with_ledger(&[]);
    let client = gateway.send_held(&ledger, "work", Request::charge("k").header("x-answer", "charged")).await;
    let operation = ledger.entries()[0].operation.clone();
    ledger.release("work").await;
    gateway.until_state(&operation, "completed").await;
    gateway.kill();
    drop(client);
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    let retried = gateway.charge("k").await;
    assert_eq!((retried.status, retried.text().as_str(), retried.is_replayed()), (201, "charged", true));
    assert_eq!(ledger.count(), 1);
}

const KILLS: usize = 20;
const CLIENTS: usize = 8;
const ANSWERS_BETWEEN_KILLS: usize = 40;

/// What a client knows of a key when it is finished with it.
struct FinishedKey {
    key: String,
    /// The final answer. Nothing where the outcome was in progress or unknown.
    answer: Option<Response>,
}

#[tokio::test]
async fn twenty_kills_under_load_lose_no_answer_and_repeat_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let port = Port::reserve();
    let start = || {
        let mut command = Gateway::command_without_upstream(folder.path());
        command.args(["--listen", &port.address.to_string(), "--scope", "fixed:test"]);
        Gateway::spawn(faults.on(command.args(["--upstream", &format!("http://{}", ledger.address)])))
    };
    let mut gateway = start();
    let (started, generation) = watch::channel(0_usize);
    let (report, mut reports) = mpsc::channel(1);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client =
                LoadClient { address: port.address, generation: generation.clone(), stop: stop.clone() };
            tokio::spawn(client.run(number, report.clone()))
        })
        .collect();
    drop(report);
    let mut known = Vec::new();
    for round in 1..=KILLS {
        for _ in 0..ANSWERS_BETWEEN_KILLS {
            known.push(within("a client that has finished a key", reports.recv()).await.unwrap());
        }
        // At least this request is being executed when the gateway is killed.
        let (key, hold) = (format!("held-{round}"), format!("hold=held-{round}"));
        let mut held = gateway.connect().await;
        held.write(&Request::charge(&key).behave(&hold).bytes()).await;
        ledger.held(&key).await;
        known.push(FinishedKey { key, answer: None });
        gateway.kill();
        gateway = start();
        started.send_replace(round);
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(finished) = within("the last keys of the clients", reports.recv()).await {
        known.push(finished);
    }
    for client in clients {
        client.await.unwrap();
    }
    faults.time_passed(HOUR);
    let counts = check(&gateway, &ledger, &known).await;
    println!("{} keys: {counts:?}", known.len());
    assert!(counts["unknown"] >= KILLS, "{counts:?}");
    assert!(counts["answered"] >= KILLS * ANSWERS_BETWEEN_KILLS / 2, "{counts:?}");
}

/// Sends every key once more, and compares the answers with those of the clients and with the ledger.
async fn check(gateway: &Gateway, ledger: &Ledger, known: &[FinishedKey]) -> BTreeMap<&'static str, usize> {
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    for entry in ledger.entries() {
        *done.entry(entry.key).or_default() += 1;
    }
    assert!(done.values().all(|times| *times == 1), "{done:?}");
    let mut counts = BTreeMap::from([("answered", 0), ("completed", 0), ("unknown", 0)]);
    for FinishedKey { key, answer } in known {
        let retried = gateway.charge(key).await;
        let kind = match answer {
            Some(answer) => {
                assert!(retried.is_replayed(), "{key} was answered, and is lost: {retried:?}");
                assert_eq!((retried.status, &retried.body), (answer.status, &answer.body));
                assert_eq!(retried.header("idempotency-expires"), answer.header("idempotency-expires"));
                "answered"
            }
            None if retried.is_replayed() => "completed",
            None if is(&retried, UNKNOWN) => "unknown",
            None => panic!("{key} is neither completed nor unknown: {retried:?}"),
        };
        assert!(kind == "unknown" || done.contains_key(key), "{key} was never done, but is {kind}");
        *counts.entry(kind).or_default() += 1;
    }
    assert_eq!(ledger.count(), done.len(), "the retries executed something");
    counts
}

/// A client that charges its own keys, and retries each until it is answered.
struct LoadClient {
    address: std::net::SocketAddr,
    /// How often the gateway has been started again.
    generation: watch::Receiver<usize>,
    stop: Arc<AtomicBool>,
}

impl LoadClient {
    async fn run(mut self, client: usize, report: mpsc::Sender<FinishedKey>) {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("client-{client}-{number}");
            let answer = self.charge(&key).await;
            let answer = match (answer.status, answer.code().as_str()) {
                (201, _) => Some(answer),
                // Its owner was killed. The check at the end decides about it.
                IN_PROGRESS | UNKNOWN => None,
                _ => panic!("{key} got {answer:?}"),
            };
            report.send(FinishedKey { key, answer }).await.unwrap();
        }
    }

    async fn charge(&mut self, key: &str) -> Response {
        loop {
            let generation = *self.generation.borrow_and_update();
            if let Some(answer) = try_charge(self.address, key).await {
                return answer;
            }
            // The gateway was killed: wait for the next one.
            let restarted = self.generation.wait_for(|now| *now > generation);
            drop(within("a gateway that is started again", restarted).await.unwrap());
        }
    }
}
