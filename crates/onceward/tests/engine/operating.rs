//! What operators, webhooks and finds do to an operation by its id.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onceward::event::{Expiry, FindTerms, Resolution};
use onceward::store::{Filter, Scan, Which};
use onceward::{
    Engine, Identity, MemoryStore, Outcome, Ran, RecordId, Refusal, Reply, Sweeping, Terms,
    engine::{Operated, Resolve},
    record::State,
};
use onceward_testkit::{Fault, FaultyStore, Method};

use super::{Ledger, SECOND, builder, claim, claim_of, clock, engine, id, identity_of_tests, pay, retry};

async fn unknown(engine: &Engine) {
    let ran = engine.run(claim(), async |_| Outcome::lost("hung up")).await.unwrap();
    assert!(matches!(ran, Ran::Unknown(_)), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_resolver_wins_and_the_second_gets_a_conflict_with_its_name() {
    let (engine, _, _) = engine().await;
    unknown(&engine).await;
    let verdict = || Resolution::Completed(Arc::new(Reply::new("it was charged")));
    assert!(matches!(
        engine
            .resolve(id(), Resolve { verdict: verdict(), by: "ann", reason: "saw it", seen: None })
            .await
            .unwrap(),
        Operated::Applied(_)
    ));
    match engine
        .resolve(id(), Resolve { verdict: Resolution::Retryable, by: "bob", reason: "did not", seen: None })
        .await
        .unwrap()
    {
        Operated::Conflict(Some(stamped)) => assert_eq!(stamped.record.verdict.unwrap().by, "ann"),
        other => panic!("{other:?}"),
    }
    match retry(&engine).await.unwrap() {
        Ran::Replayed { reply, .. } => assert_eq!(reply.body, "it was charged"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_verdict_that_it_did_not_happen_lets_the_next_try_execute() {
    let (engine, _, _) = engine().await;
    unknown(&engine).await;
    engine
        .resolve(
            id(),
            Resolve { verdict: Resolution::Retryable, by: "ann", reason: "not in the ledger", seen: None },
        )
        .await
        .unwrap();
    let ledger = Ledger::default();
    let ran = pay(&engine, &ledger).await.unwrap();
    assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_comes_before_the_lease_lapses_is_used_when_it_does() {
    let (engine, _, _) = engine().await;
    let onceward::Claimed::Reserved(reservation) = engine.claim(claim()).await.unwrap() else {
        panic!("not reserved")
    };
    let reply = Arc::new(Reply::new("from the webhook"));
    assert!(matches!(engine.testify(id(), None, reply, "psp").await.unwrap(), Operated::Applied(_)));
    let early = retry(&engine).await.unwrap();
    assert!(matches!(early, Ran::Refused(Refusal::InProgress { .. })), "{early:?}");
    drop(reservation);
    onceward::plumbing::time::sleep(Duration::from_secs(61)).await;
    match retry(&engine).await.unwrap() {
        Ran::Replayed { reply, .. } => assert_eq!(reply.body, "from the webhook"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_find_that_never_knows_ends_among_the_dead_letters() {
    let (engine, _, _) = engine().await;
    unknown(&engine).await;
    let fence = engine.load(id()).await.unwrap().unwrap().record.fence;
    let terms = FindTerms::default().attempts(3);
    for _ in 0..3 {
        let asked = engine.inconclusive(id(), fence, terms, "processing").await.unwrap();
        assert!(matches!(asked, Operated::Applied(_)));
    }
    let asked = engine.inconclusive(id(), fence, terms, "processing").await.unwrap();
    assert!(matches!(asked, Operated::Conflict(_)));
    match retry(&engine).await.unwrap() {
        Ran::Refused(Refusal::Unknown { letter, .. }) => assert_eq!(letter, onceward::record::Letter::Dead),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_operators_early_expiry_ends_the_window_when_every_cache_has_noticed() {
    let (engine, _, _) = engine().await;
    let ledger = Ledger::default();
    for (wait, executions) in [(0, 1), (64, 1), (2, 2)] {
        onceward::plumbing::time::sleep(SECOND * wait).await;
        pay(&engine, &ledger).await.unwrap();
        assert_eq!(ledger.count(), executions);
        if wait == 0 {
            assert!(matches!(engine.expire(id(), None).await.unwrap(), Operated::Applied(_)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_sweeper_forgets_in_batches_and_leaves_what_is_unknown() {
    let store = MemoryStore::with_clock(clock());
    let sweeping = Sweeping::default().batch(3);
    let engine = builder(Arc::new(store), 1).sweeping(sweeping).open(identity_of_tests()).await.unwrap();
    let terms = Terms { retention: SECOND, grace: Duration::ZERO, ..Terms::default() };
    for n in 0..10 {
        let claim = claim_of(&format!("k{n}"), "b").terms(terms.clone()).unwrap();
        engine.run(claim, async |_| Outcome::completed(Reply::new("done"))).await.unwrap();
    }
    unknown(&engine).await;
    // The background sweeper runs every thirty seconds, and goes on until nothing is due.
    onceward::plumbing::time::sleep(SECOND * 40).await;
    let scan = Scan { which: Which::Filter(Filter::default()), after: None, limit: 100 };
    let page = engine.list(scan).await.unwrap();
    let states: Vec<_> =
        page.entries.iter().map(|entry| entry.record.as_ref().unwrap().state.name()).collect();
    assert_eq!(states, ["unknown"]);
}

#[tokio::test(start_paused = true)]
async fn a_soft_expiry_keeps_the_row_without_its_body_and_the_key_may_be_used_again() {
    let store = MemoryStore::with_clock(clock());
    let sweeping = Sweeping::default().expiry(Expiry::Soft);
    let engine = builder(Arc::new(store), 1).sweeping(sweeping).open(identity_of_tests()).await.unwrap();
    let terms = Terms { retention: SECOND, grace: Duration::ZERO, ..Terms::default() };
    let ledger = Ledger::default();
    let run = async || {
        let worker = ledger.clone();
        engine.run(claim().terms(terms.clone()).unwrap(), async move |_| worker.execute()).await.unwrap()
    };
    run().await;
    let first = engine.load(id()).await.unwrap().unwrap().record.fence;
    onceward::plumbing::time::sleep(SECOND * 2).await;
    assert_eq!(engine.sweep_expired().await.unwrap().swept, 1);
    let record = engine.load(id()).await.unwrap().unwrap().record;
    assert!(matches!(record.state, State::Expired { status: Some(201), .. }), "{:?}", record.state);
    assert!(matches!(run().await, Ran::Executed { .. }));
    assert!(engine.load(id()).await.unwrap().unwrap().record.fence > first);
    assert_eq!(ledger.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_verdict_about_one_execution_is_not_applied_to_the_next() {
    let (engine, _, _) = engine().await;
    let lost = async |_| Outcome::lost("hung up");
    engine.run(claim(), lost).await.unwrap();
    let seen = Some(engine.load(id()).await.unwrap().unwrap().version);
    engine
        .resolve(
            id(),
            Resolve { verdict: Resolution::Retryable, by: "bob", reason: "not in the ledger", seen },
        )
        .await
        .unwrap();
    engine.run(claim(), lost).await.unwrap(); // this one really charged
    // Ann and Bob saw the same execution: her verdict is about that one.
    let operated = engine
        .resolve(
            id(),
            Resolve { verdict: Resolution::Retryable, by: "ann", reason: "not in the ledger", seen },
        )
        .await
        .unwrap();
    assert!(matches!(operated, Operated::Conflict(_)), "the second execution was released unseen");
}

#[tokio::test(start_paused = true)]
async fn the_stores_identity_cannot_be_expired_by_id() {
    let (engine, store, _) = engine().await;
    let identity: RecordId = "00000000000000000000000000000000".parse().unwrap();
    drop(engine.expire(identity, None).await);
    onceward::plumbing::time::sleep(SECOND * 180).await;
    let other = Identity::in_namespace("tests").scoped_by("another rule").unwrap();
    let opened = builder(Arc::new(store), 2).open(other).await;
    assert!(opened.is_err(), "every stored key would be forgotten, and nobody was told");
}

#[tokio::test(start_paused = true)]
async fn a_verdict_whose_first_write_was_lost_is_not_applied_to_an_unseen_version() {
    let armed = Arc::new(AtomicBool::new(false));
    let (memory, is_armed, mut lost) = (MemoryStore::with_clock(clock()), armed.clone(), false);
    let store = FaultyStore::new(memory.clone(), move |call| match call.method {
        _ if !is_armed.load(Ordering::SeqCst) => Fault::None,
        Method::Swap if !std::mem::replace(&mut lost, true) => Fault::CallLost,
        // A probe has time to write meanwhile.
        Method::Load if lost => Fault::Slow { before: SECOND, after: Duration::ZERO },
        _ => Fault::None,
    });
    let engine = super::engine_on(store).await;
    let finder = builder(Arc::new(memory), 2).open(identity_of_tests()).await.unwrap();
    unknown(&engine).await;
    let found = engine.load(id()).await.unwrap().unwrap();
    let (seen, fence) = (Some(found.version), found.record.fence);
    armed.store(true, Ordering::SeqCst);
    let finding = tokio::spawn(async move {
        onceward::plumbing::time::sleep(SECOND / 2).await;
        finder.inconclusive(id(), fence, FindTerms::default(), "processing").await.unwrap()
    });
    let resolve = Resolve { verdict: Resolution::Retryable, by: "ann", reason: "not in the ledger", seen };
    let operated = engine.resolve(id(), resolve).await.unwrap();
    assert!(matches!(finding.await.unwrap(), Operated::Applied(_)));
    assert!(matches!(operated, Operated::Conflict(Some(_))), "{operated:?}");
}
