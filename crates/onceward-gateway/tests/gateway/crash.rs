//! kill -9 at the worst moments, and at any.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::faults::Faults;
use crate::harness::{Client, Gateway, Port, Request, Response};
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
    let mut client = gateway.connect().await;
    client.write(&Request::charge("k").behave("hold=work").bytes()).await;
    ledger.held("work").await;
    gateway.kill();
    assert!(client.read(false).await.is_none());
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
async fn a_retry_that_waits_is_told_when_the_lease_of_a_killed_gateway_lapses() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let terms = ["--lease", "2s", "--timeout", "1s"];
    let mut gateway = Gateway::start(folder.path(), ledger.address, &terms);
    let mut client = gateway.connect().await;
    client.write(&Request::charge("k").behave("hold=work").bytes()).await;
    ledger.held("work").await;
    gateway.kill();
    let gateway = Gateway::start(folder.path(), ledger.address, &terms);
    let told = gateway.await_charge("k").await;
    assert!(is(&told, UNKNOWN), "{told:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_gateway_killed_between_the_apis_success_and_its_own_record_is_reconciled_with_the_apis_answer() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let start = || Gateway::spawn(faults.on(&mut Gateway::command(folder.path(), ledger.address)));
    let mut gateway = start();
    let mut client = gateway.connect().await;
    client.write(&Request::charge("k").behave("hold=work").header("x-answer", "charged").bytes()).await;
    ledger.held("work").await;
    // The answer comes, and cannot be stored; then the gateway dies.
    faults.disk_is_full();
    ledger.release("work").await;
    gateway.until_counted("api_idempotency_store_error_total", 1.0).await;
    gateway.kill();
    assert!(client.read(false).await.is_none(), "an answer that is not durable was given");
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
    assert_eq!(second.told(), (409, "conflict".to_owned()));
    let retried = gateway.charge("k").await;
    assert_eq!((retried.status, retried.text().as_str(), retried.is_replayed()), (201, "charged", true));
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn an_answer_that_was_stored_when_the_gateway_was_killed_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let mut gateway = Gateway::start(folder.path(), ledger.address, &[]);
    let mut client = gateway.connect().await;
    client.write(&Request::charge("k").behave("hold=work").header("x-answer", "charged").bytes()).await;
    ledger.held("work").await;
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

/// What a client knows of a key when it turns to the next one.
struct Known {
    key: String,
    /// The answer, where it got one.
    answer: Option<Response>,
}

#[tokio::test]
async fn twenty_kills_under_load_lose_no_answer_and_repeat_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let port = Port::reserve();
    let start = || {
        let mut command = Gateway::bare(folder.path());
        command.args(["--listen", &port.address.to_string(), "--scope", "fixed:test"]);
        Gateway::spawn(faults.on(command.args(["--upstream", &format!("http://{}", ledger.address)])))
    };
    let mut gateway = start();
    let (started, generation) = watch::channel(0_usize);
    let (tell, mut told) = mpsc::channel(1);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let load = Load { address: port.address, generation: generation.clone(), stop: stop.clone() };
            tokio::spawn(load.run(number, tell.clone()))
        })
        .collect();
    drop(tell);
    let mut known = Vec::new();
    for round in 1..=KILLS {
        for _ in 0..ANSWERS_BETWEEN_KILLS {
            known.push(told.recv().await.unwrap());
        }
        // One at least is under way for certain.
        let (key, hold) = (format!("held-{round}"), format!("hold=held-{round}"));
        let mut held = gateway.connect().await;
        held.write(&Request::charge(&key).behave(&hold).bytes()).await;
        ledger.held(&key).await;
        known.push(Known { key, answer: None });
        gateway.kill();
        gateway = start();
        started.send_replace(round);
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(one) = told.recv().await {
        known.push(one);
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

/// Asks for every key once more, and holds the answers against what the clients and the ledger know.
async fn check(gateway: &Gateway, ledger: &Ledger, known: &[Known]) -> BTreeMap<&'static str, usize> {
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    for entry in ledger.entries() {
        *done.entry(entry.key).or_default() += 1;
    }
    assert!(done.values().all(|times| *times == 1), "{done:?}");
    let mut counts = BTreeMap::from([("answered", 0), ("completed", 0), ("unknown", 0)]);
    for Known { key, answer } in known {
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

/// A client that works off its own keys, and tries each until it hears something.
struct Load {
    address: std::net::SocketAddr,
    /// How often the gateway was started again.
    generation: watch::Receiver<usize>,
    stop: Arc<AtomicBool>,
}

impl Load {
    async fn run(mut self, client: usize, tell: mpsc::Sender<Known>) {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("client-{client}-{number}");
            let answer = self.charge(&key).await;
            let answer = match (answer.status, answer.code().as_str()) {
                (201, _) => Some(answer),
                // Its owner died. What became of it is seen at the end.
                IN_PROGRESS | UNKNOWN => None,
                _ => panic!("{key} got {answer:?}"),
            };
            tell.send(Known { key, answer }).await.unwrap();
        }
    }

    async fn charge(&mut self, key: &str) -> Response {
        loop {
            let generation = *self.generation.borrow_and_update();
            if let Some(answer) = self.try_once(key).await {
                return answer;
            }
            // The gateway was killed: the next one is waited for.
            self.generation.wait_for(|now| *now > generation).await.unwrap();
        }
    }

    async fn try_once(&self, key: &str) -> Option<Response> {
        let mut client = Client(TcpStream::connect(self.address).await.ok()?);
        let request = Request::charge(key).header("x-answer", key).bytes();
        tokio::io::AsyncWriteExt::write_all(&mut client.0, &request).await.ok()?;
        client.read(false).await
    }
}
