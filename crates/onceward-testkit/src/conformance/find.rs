//! Unknown outcomes that two engines on the store find out.

#![allow(missing_docs, reason = "a case says in its name what it demands")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onceward::reconcile::{
    FindTerms, Finding, Plan, ReconcileFuture, Reconciler, Reconciling, UnknownOperation,
};
use onceward::record::Letter;
use onceward::{Claim, Engine, Fingerprint, Identity, Key, Outcome, Ran, Refusal, Reply, Scope};

use super::Bench;

/// Longer than every pause between two finds here.
const LATER: Duration = Duration::from_secs(60);

/// A service that answers the last of so many finds. Earlier ones decide nothing.
struct Service {
    asked: AtomicUsize,
    answers_at: usize,
}

impl Service {
    fn answering_at(answers_at: usize) -> Arc<Self> {
        Arc::new(Self { asked: AtomicUsize::new(0), answers_at })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Reconciler for Service {
    fn find<'a>(&'a self, _: &'a UnknownOperation) -> ReconcileFuture<'a, Result<Finding, String>> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        Box::pin(async move {
            Ok(if asked < self.answers_at {
                Finding::Inconclusive("it is still being processed".to_owned())
            } else {
                Finding::Completed(Arc::new(Reply::new("charged")))
            })
        })
    }

    fn plan(&self, _: &str) -> Plan {
        Plan::Find(FindTerms::default().attempts(3))
    }
}

/// An engine that asks when the case says so, and right after its own executions.
async fn engine(bench: &Bench, service: &Arc<Service>) -> Engine {
    let identity = Identity::in_namespace("finds").scoped_by("one").expect("two short names");
    let builder = Engine::builder(bench.store.clone()).clock(bench.clock.clone());
    let builder = builder.reconciling(Reconciling::default().every(LATER)).reconciler(service.clone());
    builder.open(identity).await.expect("a healthy store opens")
}

async fn retry(engine: &Engine, outcome: Outcome) -> Ran {
    let (scope, key) = (Scope::new("one"), Key::new("k"));
    let content = Fingerprint::of_bytes(b"body");
    let claim = Claim::new(scope.expect("a short scope"), key.expect("a short key"), content);
    engine.run(claim, async move |_| outcome).await.expect("a healthy store claims")
}

/// Lets the pause after a find pass, and lets both engines ask at once.
async fn both_ask(bench: &Bench, engines: &[Engine; 2]) {
    bench.clock.advance(LATER);
    let [first, second] = engines;
    let (one, other) = tokio::join!(first.reconcile(), second.reconcile());
    one.and(other).expect("a healthy store lists what is due");
}

pub async fn an_unknown_outcome_is_asked_about_by_one_engine_at_a_time_until_it_is_found(bench: Bench) {
    let service = Service::answering_at(3);
    let engines = [engine(&bench, &service).await, engine(&bench, &service).await];
    assert!(matches!(retry(&engines[0], Outcome::lost("no answer")).await, Ran::Unknown(_)));
    // The engine that executed asks at once.
    engines[0].reconcile().await.expect("a healthy store lists what is due");
    assert_eq!(service.asked(), 1);
    for asked in [2, 3] {
        both_ask(&bench, &engines).await;
        assert_eq!(service.asked(), asked);
    }
    for engine in &engines {
        match retry(engine, Outcome::lost("it must not be executed again")).await {
            Ran::Replayed { reply, .. } => assert_eq!(&reply.body[..], b"charged"),
            other => panic!("{other:?}"),
        }
    }
    both_ask(&bench, &engines).await;
    assert_eq!(service.asked(), 3);
}

pub async fn an_unknown_outcome_that_no_find_decides_is_a_dead_letter_and_is_asked_about_no_more(
    bench: Bench,
) {
    let service = Service::answering_at(usize::MAX);
    let engines = [engine(&bench, &service).await, engine(&bench, &service).await];
    assert!(matches!(retry(&engines[0], Outcome::lost("no answer")).await, Ran::Unknown(_)));
    engines[0].reconcile().await.expect("a healthy store lists what is due");
    for asked in [2, 3, 3, 3] {
        both_ask(&bench, &engines).await;
        assert_eq!(service.asked(), asked);
    }
    let refused = retry(&engines[1], Outcome::lost("it must not be executed again")).await;
    assert!(matches!(refused, Ran::Refused(Refusal::Unknown { letter: Letter::Dead, .. })), "{refused:?}");
}
