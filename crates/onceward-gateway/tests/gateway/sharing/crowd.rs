//! Clients that charge keys of their own through several gateways, and a check of every answer at the end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onceward::store::{Clock as _, SystemClock};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::harness::{Gateway, LONGEST_WAIT, Response, try_charge, within};
use crate::ledger::Ledger;

const CLIENTS: usize = 8;

/// What a client knows of a key when it is finished with it.
struct FinishedKey {
    key: String,
    /// The final answer. Nothing where the outcome was in progress or unknown.
    answer: Option<Response>,
}

/// How many keys ended in which way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub answered: usize,
    /// No client got the answer, and it is replayed.
    pub completed: usize,
    pub unknown: usize,
    /// The key was not executed before the check sent it again.
    pub begun_late: usize,
}

/// Clients that charge keys until the crowd ends.
pub struct Crowd {
    stop: Arc<AtomicBool>,
    finished: mpsc::Receiver<FinishedKey>,
    clients: Vec<JoinHandle<()>>,
    known: Vec<FinishedKey>,
}

impl Crowd {
    /// Starts clients of these gateways. Each sends its next request to the next gateway.
    pub fn of(gateways: &[SocketAddr]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (report, finished) = mpsc::channel(1);
        let clients = (0..CLIENTS).map(|number| {
            let client = CrowdClient { gateways: gateways.to_vec(), turn: number, stop: stop.clone() };
            tokio::spawn(client.run(number, report.clone()))
        });
        let clients = clients.collect();
        Self { stop, finished, clients, known: Vec::new() }
    }

    /// Returns when so many more keys are finished.
    pub async fn progress(&mut self, keys: usize) {
        for _ in 0..keys {
            self.known.push(within("a client that has finished a key", self.finished.recv()).await.unwrap());
        }
    }

    /// Ends the clients.
    pub async fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(key) = within("the last keys of the clients", self.finished.recv()).await {
            self.known.push(key);
        }
        for client in std::mem::take(&mut self.clients) {
            client.await.unwrap();
        }
    }

    /// Ends the clients, sends every key once more, and compares the answers with those of the clients and with the ledger.
    pub async fn check(mut self, gateway: &Gateway, ledger: &Ledger) -> Counts {
        self.end().await;
        let done = executions(ledger);
        assert!(done.values().all(|times| *times == 1), "something was done twice: {done:?}");
        let mut counts = Counts::default();
        let mut begun_late = 0;
        for FinishedKey { key, answer } in &self.known {
            // The charge waits for an owner that still has the key; then it is settled, or unknown.
            let retried = gateway.await_charge(key).await;
            match (answer, retried.status, retried.code().as_str()) {
                (Some(answer), _, _) => {
                    assert!(retried.is_replayed(), "{key} was answered, and is lost: {retried:?}");
                    assert_eq!((retried.status, &retried.body), (answer.status, &answer.body));
                    counts.answered += 1;
                }
                (None, 201, _) if retried.is_replayed() => {
                    assert!(done.contains_key(key), "{key} was never done, but is completed");
                    counts.completed += 1;
                }
                (None, 201, _) => {
                    assert!(!done.contains_key(key), "{key} was done, and is done again");
                    begun_late += 1;
                }
                (None, 409, "idempotency_outcome_unknown") => counts.unknown += 1,
                (None, _, _) => panic!("{key} is neither completed nor unknown: {retried:?}"),
            }
        }
        counts.begun_late = begun_late;
        assert_eq!(ledger.count(), done.len() + begun_late, "the retries executed something");
        println!("{} keys: {counts:?}", self.known.len());
        counts
    }
}

/// How often each key was executed.
fn executions(ledger: &Ledger) -> BTreeMap<String, usize> {
    let mut done = BTreeMap::new();
    for entry in ledger.entries() {
        *done.entry(entry.key).or_default() += 1;
    }
    done
}

/// One client.
struct CrowdClient {
    gateways: Vec<SocketAddr>,
    /// Requests that it has sent, from a start of its own, so that the clients begin with different gateways.
    turn: usize,
    stop: Arc<AtomicBool>,
}

impl CrowdClient {
    async fn run(mut self, client: usize, report: mpsc::Sender<FinishedKey>) {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("client-{client}-{number}");
            let answer = self.charge(&key).await;
            report.send(FinishedKey { key, answer }).await.unwrap();
        }
    }

    /// Retries until a gateway answers for the key. Nothing where its outcome is in progress or unknown.
    async fn charge(&mut self, key: &str) -> Option<Response> {
        let started = SystemClock.now();
        loop {
            self.turn += 1;
            let gateway = self.gateways[self.turn % self.gateways.len()];
            let answer = try_charge(gateway, key).await;
            match answer.as_ref().map(|answer| (answer.status, answer.code())) {
                Some((201, _)) => return answer,
                Some((409 | 502 | 504, code))
                    if ["idempotency_key_in_progress", "idempotency_outcome_unknown"]
                        .contains(&code.as_str()) =>
                {
                    return None;
                }
                // The gateway was killed: try the next one with the same key.
                None => {}
                // Nothing was executed, and the same key may be sent again: the store was away, or its answer came too late
                // to begin.
                Some((503, code)) if code == "idempotency_store_unavailable" => {}
                Some((502, code)) if code == "idempotency_upstream_unreachable" => {}
                Some(_) => panic!("{key} got {answer:?}"),
            }
            let waited = SystemClock.now().since(started);
            assert!(waited < LONGEST_WAIT, "{key} was retried for {waited:?}; last seen: {answer:?}");
            tokio::task::yield_now().await;
        }
    }
}
