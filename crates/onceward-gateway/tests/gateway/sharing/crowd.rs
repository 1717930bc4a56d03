//! Clients that work off keys of their own through several gateways, and what they know in the end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::harness::{Client, Gateway, Request, Response};
use crate::ledger::Ledger;

const CLIENTS: usize = 8;

/// What a client knows of a key when it turns to the next one.
struct Known {
    key: String,
    /// The answer, where it got one.
    answer: Option<Response>,
}

/// What became of the keys.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub answered: usize,
    /// Nobody was told, but it was done and its answer is there.
    pub completed: usize,
    pub unknown: usize,
    /// It had not been begun, and was done when it was asked for again.
    pub begun_late: usize,
}

/// Clients at work.
pub struct Crowd {
    stop: Arc<AtomicBool>,
    told: mpsc::Receiver<Known>,
    clients: Vec<JoinHandle<()>>,
    known: Vec<Known>,
}

impl Crowd {
    /// Clients of these gateways. Each turns to the next gateway with its next request.
    pub fn of(gateways: &[SocketAddr]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel(1);
        let clients = (0..CLIENTS).map(|number| {
            let client = One { gateways: gateways.to_vec(), at: number, stop: stop.clone() };
            tokio::spawn(client.run(number, tell.clone()))
        });
        let clients = clients.collect();
        Self { stop, told, clients, known: Vec::new() }
    }

    /// Returns when so many more keys have been worked off.
    pub async fn progress(&mut self, keys: usize) {
        for _ in 0..keys {
            self.known.push(self.told.recv().await.unwrap());
        }
    }

    /// Ends the clients.
    pub async fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(one) = self.told.recv().await {
            self.known.push(one);
        }
        for client in std::mem::take(&mut self.clients) {
            client.await.unwrap();
        }
    }

    /// Ends the clients, asks for every key once more, and holds the answers against what the clients and the ledger know.
    pub async fn check(mut self, gateway: &Gateway, ledger: &Ledger) -> Counts {
        self.end().await;
        let done = times(ledger);
        assert!(done.values().all(|times| *times == 1), "something was done twice: {done:?}");
        let mut counts = Counts::default();
        let mut begun_late = 0;
        for Known { key, answer } in &self.known {
            // Whoever still holds the key is waited for; then it is settled, or unknown.
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

/// How often each key was done.
fn times(ledger: &Ledger) -> BTreeMap<String, usize> {
    let mut done = BTreeMap::new();
    for entry in ledger.entries() {
        *done.entry(entry.key).or_default() += 1;
    }
    done
}

/// One client.
struct One {
    gateways: Vec<SocketAddr>,
    at: usize,
    stop: Arc<AtomicBool>,
}

impl One {
    async fn run(mut self, client: usize, tell: mpsc::Sender<Known>) {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("client-{client}-{number}");
            let answer = self.charge(&key).await;
            tell.send(Known { key, answer }).await.unwrap();
        }
    }

    /// Tries until it hears something about the key. Nothing where that is that nobody knows, or not yet.
    async fn charge(&mut self, key: &str) -> Option<Response> {
        loop {
            self.at += 1;
            let gateway = self.gateways[self.at % self.gateways.len()];
            let Some(answer) = try_once(gateway, key).await else {
                // The gateway was killed: the next one is asked with the same key.
                tokio::task::yield_now().await;
                continue;
            };
            match (answer.status, answer.code().as_str()) {
                (201, _) => return Some(answer),
                // Nothing was done, and the same key may be sent again: the store was away, or its answer came so late
                // that nothing could be begun any more.
                (503, "idempotency_store_unavailable") | (502, "idempotency_upstream_unreachable") => {
                    tokio::task::yield_now().await;
                }
                (409, "idempotency_key_in_progress" | "idempotency_outcome_unknown")
                | (502 | 504, "idempotency_outcome_unknown" | "idempotency_key_in_progress") => return None,
                _ => panic!("{key} got {answer:?}"),
            }
        }
    }
}

async fn try_once(gateway: SocketAddr, key: &str) -> Option<Response> {
    let mut client = Client(TcpStream::connect(gateway).await.ok()?);
    client.0.write_all(&Request::charge(key).header("x-answer", key).bytes()).await.ok()?;
    client.read(false).await
}
