//! The engine, with real tasks, paused time and a ledger that only the work writes.
#![expect(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "these are tests")]

mod absence;
mod attach;
mod faults;
mod identity;
mod limits;
#[path = "../support/log.rs"]
mod log;
mod logs;
mod operating;
mod receipt_proof;
mod receipts;
mod regressions;
mod running;
mod shared_cache;
mod stalls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onceward::store::Store;
use onceward::{
    Claim, Engine, EngineBuilder, EngineError, Fingerprint, Identity, Key, MemoryStore, Outcome, Ran,
    RecordId, Reply, Scope, Timestamp, engine::Instance,
};
use onceward_testkit::VirtualClock;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Counts real executions, outside of everything that is tested.
#[derive(Clone, Default)]
struct Ledger(Arc<AtomicU64>);

impl Ledger {
    /// Does the work once, and answers with its number.
    fn execute(&self) -> Outcome {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        Outcome::completed(Reply::new(format!("execution {number}")).with_status(201))
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

fn clock() -> Arc<VirtualClock> {
    Arc::new(VirtualClock::running_from(Timestamp::from_micros(1_800_000_000_000_000)))
}

/// An engine whose local clock runs with elapsed time, which tests pause.
fn builder(store: Arc<dyn Store>, instance: u64) -> EngineBuilder {
    Engine::builder(store).instance(Instance::named(instance)).clock(clock())
}

fn identity_of_tests() -> Identity {
    Identity::in_namespace("tests").scoped_by("fixed").unwrap()
}

async fn engine_on(store: impl Store) -> Engine {
    builder(Arc::new(store), 1).open(identity_of_tests()).await.unwrap()
}

async fn engine() -> (Engine, MemoryStore, Arc<VirtualClock>) {
    let clock = clock();
    let store = MemoryStore::with_clock(clock.clone());
    // An embedded store uses its process's clock, so a suspension of the machine shows in both.
    let builder = builder(Arc::new(store.clone()), 1).clock(clock.clone());
    let engine = builder.open(identity_of_tests()).await.unwrap();
    (engine, store, clock)
}

fn claim_of(key: &str, body: &str) -> Claim {
    Claim::new(Scope::new("acme").unwrap(), Key::new(key).unwrap(), Fingerprint::of_bytes(body.as_bytes()))
}

fn claim() -> Claim {
    claim_of("k", "body")
}

fn id() -> RecordId {
    identity_of_tests().id_of(&Scope::new("acme").unwrap(), &Key::new("k").unwrap())
}

const SECOND: Duration = Duration::from_secs(1);

/// A request that does the work if it is told to execute.
async fn pay(engine: &Engine, ledger: &Ledger) -> Result<Ran, EngineError> {
    let worker = ledger.clone();
    engine.run(claim(), async move |_| worker.execute()).await
}

/// A request that must not execute.
async fn retry(engine: &Engine) -> Result<Ran, EngineError> {
    engine.run(claim(), async |_| panic!("a retry must not execute")).await
}

/// Work that runs in a task and waits until it is released.
struct HeldWork {
    ran: JoinHandle<Result<Ran, EngineError>>,
    release: oneshot::Sender<()>,
}

impl HeldWork {
    /// Returns when the work has begun.
    async fn begin(engine: &Engine, outcome: Outcome) -> Self {
        let (began, begins) = oneshot::channel();
        let (release, released) = oneshot::channel();
        let engine = engine.clone();
        let ran = tokio::spawn(async move {
            let work = async move |_| {
                began.send(()).unwrap();
                released.await.unwrap();
                outcome
            };
            engine.run(claim(), work).await
        });
        begins.await.unwrap();
        Self { ran, release }
    }

    async fn end(self) -> Ran {
        self.release.send(()).unwrap();
        self.ran.await.unwrap().unwrap()
    }
}
