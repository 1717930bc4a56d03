//! Claim, execute, settle, replay.

use std::sync::Arc;
use std::time::Duration;

use onceward::fingerprint::Difference;
use onceward::{
    Claimed, Engine, MemoryStore, Outcome, Ran, Refusal, Reply, Terms, engine::Tenure, record::State,
};
use onceward_testkit::{Fault, FaultyStore, Method};
use tokio::sync::Notify;

use super::{HeldWork, Ledger, SECOND, claim, claim_of, engine, id, pay, retry};

#[tokio::test(start_paused = true)]
async fn a_retry_gets_the_first_answer_and_nothing_runs_again() {
    let (engine, _, _) = engine().await;
    let ledger = Ledger::default();
    for round in 0..3 {
        let ran = pay(&engine, &ledger).await.unwrap();
        match (round, ran) {
            (0, Ran::Executed { reply, .. }) | (_, Ran::Replayed { reply, .. }) => {
                assert_eq!((reply.status, &reply.body[..]), (201, &b"execution 1"[..]));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_disconnects_cancels_nothing() {
    let (engine, _, _) = engine().await;
    let (ledger, began, go) = (Ledger::default(), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (worker, begins, goes) = (ledger.clone(), began.clone(), go.clone());
    let run = engine.run(claim(), async move |_| {
        begins.notify_one();
        goes.notified().await;
        worker.execute()
    });
    tokio::select! {
        _ = run => panic!("the work cannot have ended"),
        () = began.notified() => {}
    }
    // Drops the future of `run`, as hyper does when a client goes away.
    go.notify_one();
    let claim = claim().attach(SECOND).unwrap();
    let retried = engine.run(claim, async |_| panic!("a retry must not execute")).await.unwrap();
    assert!(matches!(retried, Ran::Replayed { .. }), "{retried:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_unknown_outcome_and_never_runs_again() {
    let (engine, _, _) = engine().await;
    let work = async |_| -> Outcome { std::panic::resume_unwind(Box::new("on purpose")) };
    let ran = engine.run(claim(), work).await.unwrap();
    assert!(matches!(ran, Ran::Unknown(_)), "{ran:?}");
    let retried = retry(&engine).await.unwrap();
    assert!(matches!(retried, Ran::Refused(Refusal::Unknown { .. })), "{retried:?}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_work_returned_its_future_is_an_unknown_outcome_too() {
    let (engine, _, _) = engine().await;
    let ran = engine
        .run(claim(), |_| -> std::future::Ready<Outcome> {
            std::panic::resume_unwind(Box::new("on purpose"))
        })
        .await
        .unwrap();
    assert!(matches!(ran, Ran::Unknown(_)), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn work_that_was_not_done_may_be_tried_again() {
    let (engine, _, _) = engine().await;
    let ledger = Ledger::default();
    let ran =
        engine.run(claim(), async |_| Outcome::Retryable("connection refused".to_owned())).await.unwrap();
    assert_eq!(ran, Ran::Retryable("connection refused".to_owned()));
    let ran = pay(&engine, &ledger).await.unwrap();
    assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_request_under_the_same_key_is_refused_while_it_runs_and_after() {
    let (engine, _, _) = engine().await;
    let running = HeldWork::begin(&engine, Ledger::default().execute()).await;
    let other = || engine.run(claim_of("k", "another body"), async |_| panic!("must not execute"));
    assert_eq!(other().await.unwrap(), Ran::Refused(Refusal::Mismatch(Difference::Content)));
    running.end().await;
    assert_eq!(other().await.unwrap(), Ran::Refused(Refusal::Mismatch(Difference::Content)));
}

#[tokio::test(start_paused = true)]
async fn work_that_outlives_its_timeout_is_unknown_and_its_late_answer_is_the_truth() {
    let (engine, _, _) = engine().await;
    let ledger = Ledger::default();
    let worker = ledger.clone();
    let claim = || claim().timeout(SECOND).unwrap();
    let ran = engine
        .run(claim(), async move |_| {
            onceward::plumbing::time::sleep(SECOND * 10).await;
            worker.execute()
        })
        .await
        .unwrap();
    assert!(matches!(ran, Ran::Unknown(_)), "{ran:?}");
    let early = retry(&engine).await.unwrap();
    assert!(matches!(early, Ran::Refused(Refusal::Unknown { .. })), "{early:?}");
    onceward::plumbing::time::sleep(SECOND * 10).await;
    let late = retry(&engine).await.unwrap();
    assert!(matches!(late, Ran::Replayed { .. }), "{late:?}");
    assert_eq!(ledger.count(), 1);
}

/// Runs work of this length under this lease, and sweeps beside it and for five seconds more: the lease must never have lapsed.
async fn run_and_sweep(engine: &Engine, lease: Duration, work: Duration) {
    let sweeping = engine.clone();
    let sweeper = tokio::spawn(async move {
        for _ in 0..(work.as_secs() + 5) * 4 {
            onceward::plumbing::time::sleep(SECOND / 4).await;
            assert_eq!(sweeping.sweep_leases().await.unwrap().lapsed, 0);
        }
    });
    let claim = claim().terms(Terms { lease, ..Terms::default() }).unwrap().timeout(SECOND * 60).unwrap();
    let ran = engine
        .run(claim, async move |_| {
            onceward::plumbing::time::sleep(work).await;
            Outcome::completed(Reply::new("slow"))
        })
        .await
        .unwrap();
    assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
    sweeper.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn long_work_renews_its_lease_and_is_never_lost() {
    let (engine, _, _) = engine().await;
    run_and_sweep(&engine, SECOND, SECOND * 20).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_slow_claim_has_nearly_halved_is_renewed_before_it_lapses() {
    let mut swaps = 0;
    let store = FaultyStore::new(MemoryStore::with_clock(super::clock()), move |call| {
        if (call.method, call.id) != (Method::Swap, Some(id())) {
            return Fault::None;
        }
        swaps += 1;
        match swaps {
            1 => Fault::Slow { before: Duration::ZERO, after: SECOND * 7 / 2 },
            2 => Fault::Slow { before: SECOND, after: Duration::ZERO },
            _ => Fault::None,
        }
    });
    let engine = super::engine_on(store).await;
    run_and_sweep(&engine, SECOND * 8, SECOND * 10).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_suspended_between_claim_and_work_does_not_begin() {
    let (local, store) = (super::clock(), MemoryStore::with_clock(super::clock()));
    // The machine is suspended while its claim is written. Elapsed time stands still then, and only the wall clock shows it.
    let (sleeper, mut asleep) = (local.clone(), false);
    let store = FaultyStore::new(store, move |call| {
        if call.method == Method::Swap && call.id == Some(id()) && !asleep {
            asleep = true;
            sleeper.advance(Duration::from_secs(300));
        }
        Fault::None
    });
    let engine = super::builder(Arc::new(store), 2).clock(local).open(super::identity_of_tests());
    let engine = engine.await.unwrap();
    let ran = retry(&engine).await.unwrap();
    assert!(matches!(ran, Ran::Retryable(_)), "{ran:?}");
    let state = engine.load(id()).await.unwrap().unwrap().record.state;
    assert!(matches!(state, State::FailedRetryable { .. }), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn dropping_a_reservation_releases_nothing_and_its_outcome_becomes_unknown() {
    let (engine, _, _) = engine().await;
    let Claimed::Reserved(reservation) = engine.claim(claim()).await.unwrap() else { panic!("not reserved") };
    drop(reservation);
    let ran = retry(&engine).await.unwrap();
    assert!(matches!(ran, Ran::Refused(Refusal::InProgress { .. })), "{ran:?}");
    onceward::plumbing::time::sleep(Duration::from_secs(61)).await;
    let ran = retry(&engine).await.unwrap();
    assert!(matches!(ran, Ran::Refused(Refusal::Unknown { .. })), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_renews_checkpoints_and_settles_once() {
    let (engine, _, _) = engine().await;
    let Claimed::Reserved(reservation) = engine.claim(claim()).await.unwrap() else { panic!("not reserved") };
    let (id, fence) = (reservation.id(), reservation.fence());
    assert_eq!(reservation.attempt(), 1);
    assert_eq!(reservation.renew().await.unwrap(), Tenure::Held);
    let point = onceward::RecoveryPoint::new("charged", "ch_1").unwrap();
    assert_eq!(reservation.checkpoint(point.clone()).await.unwrap(), Tenure::Held);
    assert_eq!(reservation.recovery_point(), Some(point));
    reservation.settle(Outcome::completed(Reply::new("first"))).await.unwrap();
    let again = engine.settle(id, fence, Outcome::completed(Reply::new("second"))).await.unwrap();
    match again {
        onceward::engine::Settled::Completed { reply, by: onceward::engine::By::Other, .. } => {
            assert_eq!(reply.body, "first")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.renew(id, fence).await.unwrap(), Tenure::Over);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_before_it_has_its_reservation_leaves_no_key_behind() {
    let (engine, _, _) = engine().await;
    {
        let mut claiming = Box::pin(engine.claim(claim()));
        // One poll sends the claim. Then the caller goes away.
        assert!(futures_util::poll!(&mut claiming).is_pending());
    }
    tokio::task::yield_now().await;
    let ledger = Ledger::default();
    let worker = ledger.clone();
    let ran = engine.run(claim().attach(SECOND).unwrap(), async move |_| worker.execute()).await.unwrap();
    assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_operation_with_a_recovery_point_is_resumed_from_there() {
    let (engine, _, _) = engine().await;
    let on_lapse = onceward::OnLapse::Resume { attempts: 3, within: Duration::from_secs(3600) };
    let terms = Terms { on_lapse, ..Terms::default() };
    let claim = || claim().terms(terms.clone()).unwrap();
    let Claimed::Reserved(first) = engine.claim(claim()).await.unwrap() else { panic!("not reserved") };
    let point = onceward::RecoveryPoint::new("charged", "ch_1").unwrap();
    assert_eq!(first.checkpoint(point).await.unwrap(), Tenure::Held);
    let (id, old_fence) = (first.id(), first.fence());
    drop(first);
    assert!(engine.resume(id).await.unwrap().is_none(), "a live lease is nobody else's");
    onceward::plumbing::time::sleep(Duration::from_secs(61)).await;
    let second = engine.resume(id).await.unwrap().unwrap();
    assert_eq!((second.attempt(), second.recovery_point().unwrap().name()), (2, "charged"));
    assert!(second.fence() > old_fence);
    assert_eq!(engine.renew(id, old_fence).await.unwrap(), Tenure::Over);
    second.settle(Outcome::completed(Reply::new("done"))).await.unwrap();
    let ran = retry(&engine).await.unwrap();
    assert!(matches!(ran, Ran::Replayed { .. }), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn shutting_down_waits_for_what_runs_refuses_what_comes_and_settles_the_rest_as_unknown() {
    let (engine, _, _) = engine().await;
    let quick = tokio::spawn({
        let engine = engine.clone();
        async move {
            engine
                .run(claim_of("quick", "b"), async |_| {
                    onceward::plumbing::time::sleep(SECOND).await;
                    Outcome::completed(Reply::new("in time"))
                })
                .await
        }
    });
    let stuck = tokio::spawn({
        let engine = engine.clone();
        async move { engine.run(claim(), async |_| std::future::pending().await).await }
    });
    onceward::plumbing::time::sleep(SECOND / 2).await;
    engine.shut_down(SECOND * 5).await;
    assert!(matches!(quick.await.unwrap().unwrap(), Ran::Executed { .. }));
    assert!(matches!(stuck.await.unwrap().unwrap(), Ran::Unknown(_)));
    let refused = engine.run(claim_of("new", "b"), async |_| panic!("must not execute")).await;
    assert_eq!(refused, Err(onceward::EngineError::Stopping));
    let state = engine.load(id()).await.unwrap().unwrap().record.state;
    assert!(matches!(state, State::Unknown { .. }), "{state:?}");
}
