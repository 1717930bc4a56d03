//! Waiting for another caller's execution.

use std::sync::Arc;
use std::time::Duration;

use onceward::{Engine, MemoryStore, Outcome, Ran, Refusal, Reply};
use tokio::sync::oneshot;

use super::{HeldWork, Ledger, SECOND, builder, claim, clock, engine, identity_of_tests};

async fn start(engine: &Engine, ledger: &Ledger) -> oneshot::Sender<()> {
    let (engine, ledger) = (engine.clone(), ledger.clone());
    let (began, begins) = oneshot::channel();
    let (go, goes) = oneshot::channel();
    tokio::spawn(async move {
        engine
            .run(claim(), async move |_| {
                began.send(()).unwrap();
                goes.await.unwrap();
                ledger.execute()
            })
            .await
    });
    begins.await.unwrap();
    go
}

#[tokio::test(start_paused = true)]
async fn a_hundred_attached_callers_are_woken_at_once_by_one_execution() {
    let (engine, _, _) = engine().await;
    let ledger = Ledger::default();
    let go = start(&engine, &ledger).await;
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let engine = engine.clone();
            let claim = claim().attach(SECOND * 30).unwrap();
            tokio::spawn(async move { engine.run(claim, async |_| panic!("must not execute")).await })
        })
        .collect();
    onceward::plumbing::time::sleep(SECOND * 3).await;
    let before = onceward::plumbing::time::instant();
    go.send(()).unwrap();
    for caller in waiting {
        let ran = caller.await.unwrap().unwrap();
        assert!(matches!(ran, Ran::Replayed { .. }), "{ran:?}");
    }
    // Paused time moves only while all tasks wait for it, so none did.
    assert_eq!(onceward::plumbing::time::instant(), before);
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded_and_ends_in_a_refusal() {
    let (engine, _, _) = engine().await;
    let go = start(&engine, &Ledger::default()).await;
    let before = onceward::plumbing::time::instant();
    let claim = claim().attach(SECOND * 2).unwrap();
    let ran = engine.run(claim, async |_| panic!("must not execute")).await.unwrap();
    assert!(matches!(ran, Ran::Refused(Refusal::InProgress { .. })), "{ran:?}");
    assert_eq!(onceward::plumbing::time::instant().duration_since(before), SECOND * 2);
    drop(go);
}

#[tokio::test(start_paused = true)]
async fn an_execution_in_another_process_is_noticed_by_polling() {
    let clock = clock();
    let store = Arc::new(MemoryStore::with_clock(clock));
    let here = builder(store.clone(), 1).open(identity_of_tests()).await.unwrap();
    let there = builder(store, 2).open(identity_of_tests()).await.unwrap();
    let ledger = Ledger::default();
    let go = start(&there, &ledger).await;
    let waiting = tokio::spawn(async move {
        let claim = claim().attach(SECOND * 30).unwrap();
        here.run(claim, async |_| panic!("must not execute")).await
    });
    onceward::plumbing::time::sleep(SECOND * 3).await;
    go.send(()).unwrap();
    let before = onceward::plumbing::time::instant();
    assert!(matches!(waiting.await.unwrap().unwrap(), Ran::Replayed { .. }));
    assert!(onceward::plumbing::time::instant().duration_since(before) <= Duration::from_millis(500));
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn when_the_first_is_not_executed_exactly_one_of_the_attached_callers_executes() {
    let (engine, _, _) = engine().await;
    let ledger = Ledger::default();
    let first = HeldWork::begin(&engine, Outcome::Retryable("connection refused".to_owned())).await;
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let (engine, worker) = (engine.clone(), ledger.clone());
            let claim = claim().attach(SECOND * 30).unwrap();
            tokio::spawn(async move { engine.run(claim, async move |_| worker.execute()).await })
        })
        .collect();
    onceward::plumbing::time::sleep(SECOND).await;
    assert!(matches!(first.end().await, Ran::Retryable(_)));
    for caller in waiting {
        let ran = caller.await.unwrap().unwrap();
        assert!(matches!(ran, Ran::Executed { .. } | Ran::Replayed { .. }), "{ran:?}");
    }
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn ten_thousand_requests_with_one_key_over_two_engines_execute_once() {
    let store = Arc::new(MemoryStore::default());
    let mut engines = Vec::new();
    for instance in [1, 2] {
        engines.push(builder(store.clone(), instance).open(identity_of_tests()).await.unwrap());
    }
    let ledger = Ledger::default();
    let callers: Vec<_> = (0..10_000)
        .map(|n| {
            let (engine, worker) = (engines[n % 2].clone(), ledger.clone());
            tokio::spawn(async move { engine.run(claim(), async move |_| worker.execute()).await })
        })
        .collect();
    for caller in callers {
        match caller.await.unwrap() {
            Ok(Ran::Executed { reply, .. } | Ran::Replayed { reply, .. }) => {
                assert_eq!(*reply, Reply::new("execution 1").with_status(201))
            }
            Ok(Ran::Refused(Refusal::InProgress { .. })) | Err(onceward::EngineError::Overloaded { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ledger.count(), 1);
}
