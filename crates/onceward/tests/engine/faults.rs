//! A store that fails at the worst moment.

use std::sync::Arc;
use std::time::Duration;

use onceward::store::StoreError;
use onceward::{
    EngineError, MemoryStore, Outcome, Ran, Refusal, Reply,
    engine::Resolve,
    record::{Cause, State},
};
use onceward_testkit::{Fault, FaultyStore, Method};

use super::{Ledger, SECOND, claim, clock, engine, engine_on, id, pay, retry};

/// The first swap of an engine is its identity: claims begin with the second.
const CLAIM: u64 = 2;
const SETTLE: u64 = 3;

async fn faulty(script: Vec<(Method, u64, Fault)>) -> (onceward::Engine, MemoryStore) {
    let store = MemoryStore::with_clock(clock());
    (engine_on(FaultyStore::scripted(store.clone(), script)).await, store)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_at_the_claim_dispatches_nothing() {
    let (engine, _) = faulty(vec![(Method::Swap, CLAIM, Fault::Unavailable)]).await;
    let ran = retry(&engine).await;
    assert!(matches!(ran, Err(EngineError::Store(StoreError::Unavailable { .. }))), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_recognises_itself_and_executes_once() {
    let (engine, _) = faulty(vec![(Method::Swap, CLAIM, Fault::AnswerLost)]).await;
    let ledger = Ledger::default();
    let ran = pay(&engine, &ledger).await.unwrap();
    assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_never_arrived_is_made_again() {
    let (engine, _) = faulty(vec![(Method::Swap, CLAIM, Fault::CallLost)]).await;
    let ledger = Ledger::default();
    let ran = pay(&engine, &ledger).await.unwrap();
    assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_found_out_is_refused_and_given_back_so_that_the_key_is_not_wedged() {
    let mut script = vec![(Method::Swap, CLAIM, Fault::AnswerLost)];
    // The first load is the engine's identity; the next ones look for the claim, until patience ends.
    script.extend((2..=12).map(|call| (Method::Load, call, Fault::Unavailable)));
    let (engine, _) = faulty(script).await;
    let ran = retry(&engine).await;
    // A caller that would go on without a store must learn that its claim may be in it.
    assert!(matches!(ran, Err(EngineError::Store(StoreError::Ambiguous { .. }))), "{ran:?}");
    onceward::plumbing::time::sleep(SECOND * 5).await;
    let state = engine.load(id()).await.unwrap().unwrap().record.state;
    assert!(matches!(state, State::FailedRetryable { .. }), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn invariant_02_no_answer_is_given_before_its_settlement_is_durable() {
    // The store is away for the whole patience: the caller must not get an answer that is not stored.
    let script = (SETTLE..40).map(|call| (Method::Swap, call, Fault::Unavailable)).collect();
    let (engine, store) = faulty(script).await;
    let ledger = Ledger::default();
    let ran = pay(&engine, &ledger).await.unwrap();
    assert!(matches!(ran, Ran::Unknown(_)), "{ran:?}");
    assert_eq!(ledger.count(), 1);
    // When the store is back, the outcome is stored after all, and every retry gets it.
    onceward::plumbing::time::sleep(Duration::from_secs(120)).await;
    let reader = engine_on(store).await;
    let ran = retry(&reader).await.unwrap();
    assert!(matches!(ran, Ran::Replayed { .. }), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn invariant_02_an_owner_whose_settle_did_not_apply_answers_from_the_record() {
    let (engine, _, _) = engine().await;
    let operator = engine.clone();
    let ran = engine
        .run(claim(), async move |operation| {
            // While the work runs, its outcome is declared unknown and an operator says what it was.
            let (id, fence) = (operation.id(), operation.fence());
            operator.settle(id, fence, Outcome::lost("said so")).await.unwrap();
            let verdict = onceward::event::Resolution::Completed(Arc::new(Reply::new("the operator's")));
            operator
                .resolve(id, Resolve { verdict, by: "ops", reason: "saw it in the ledger", seen: None })
                .await
                .unwrap();
            Outcome::completed(Reply::new("the owner's"))
        })
        .await
        .unwrap();
    match ran {
        Ran::Replayed { reply, .. } => assert_eq!(reply.body, "the operator's"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_whose_answer_was_lost_is_written_once_and_counts_as_executed() {
    for fault in [Fault::AnswerLost, Fault::CallLost, Fault::Unavailable, Fault::Overloaded] {
        let (engine, _) = faulty(vec![(Method::Swap, SETTLE, fault)]).await;
        let ledger = Ledger::default();
        let ran = pay(&engine, &ledger).await.unwrap();
        assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
        assert_eq!(ledger.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_06_a_record_that_cannot_be_read_is_never_taken_for_absent() {
    let (engine, store, _) = engine().await;
    let ledger = Ledger::default();
    pay(&engine, &ledger).await.unwrap();
    store.damage(id(), |bytes| bytes[20] ^= 1);
    let fresh = engine_on(store.clone()).await;
    let ran = retry(&fresh).await;
    assert!(matches!(ran, Err(EngineError::Store(StoreError::Unreadable { .. }))), "{ran:?}");

    // An operator who knows what it was can say so by its id; the key is answered again.
    let verdict = onceward::event::Resolution::Completed(Arc::new(Reply::new("from the ledger")));
    fresh
        .resolve(id(), Resolve { verdict, by: "ops", reason: "restored by hand", seen: None })
        .await
        .unwrap();
    match retry(&fresh).await.unwrap() {
        Ran::Replayed { reply, .. } => assert_eq!(reply.body, "from the ledger"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_claim_of_a_dead_process_becomes_unknown_by_sweeping_alone() {
    let (engine, store, _) = engine().await;
    let onceward::Claimed::Reserved(reservation) = engine.claim(claim()).await.unwrap() else {
        panic!("not reserved")
    };
    drop((reservation, engine));
    let survivor = engine_on(store).await;
    onceward::plumbing::time::sleep(Duration::from_secs(70)).await;
    let state = survivor.load(id()).await.unwrap().unwrap().record.state;
    assert!(matches!(state, State::Unknown { .. }), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_a_day_forward_makes_leases_lapse_and_executes_nothing_again() {
    let (engine, _, clock) = engine().await;
    let ledger = Ledger::default();
    pay(&engine, &ledger).await.unwrap();
    let onceward::Claimed::Reserved(running) = engine.claim(super::claim_of("running", "b")).await.unwrap()
    else {
        panic!("not reserved")
    };
    clock.advance(Duration::from_secs(48 * 3600));
    let ran = retry(&engine).await.unwrap();
    assert!(matches!(ran, Ran::Replayed { .. }), "{ran:?}");
    let ran =
        engine.run(super::claim_of("running", "b"), async |_| panic!("must not execute")).await.unwrap();
    assert!(matches!(ran, Ran::Refused(Refusal::Unknown { .. })), "{ran:?}");
    assert_eq!(engine.sweep_expired().await.unwrap().swept, 0);
    // An operator confirms that the clock is right.
    engine.trust_clock();
    assert_eq!(engine.sweep_expired().await.unwrap().swept, 1);
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_the_store_refuses_is_known_to_have_been_done() {
    // Between the two, the completion is written.
    let refused = |call| (Method::Swap, call, Fault::Refused);
    let (engine, _) = faulty(vec![refused(SETTLE), refused(SETTLE + 2)]).await;
    let ledger = Ledger::default();
    let ran = pay(&engine, &ledger).await.unwrap();
    assert!(matches!(ran, Ran::Unknown(_)), "{ran:?}");
    let state = engine.load(id()).await.unwrap().unwrap().record.state;
    assert!(matches!(state, State::Unknown { cause: Cause::DoneNotKept, .. }), "{state:?}");
    assert!(matches!(retry(&engine).await, Ok(Ran::Refused(Refusal::Unknown { .. }))));
    assert_eq!(ledger.count(), 1);
}
