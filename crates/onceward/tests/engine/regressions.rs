//! Regressions: each of these tests has failed once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use onceward::event::Resolution;
use onceward::store::{Page, Scan, Seen, Store, StoreError, StoreFuture, Swapped, Version};
use onceward::{
    Claimed, Engine, EngineError, Fence, Limits, MemoryStore, OnLapse, Operation, Outcome, Ran, Record,
    RecordId, RecoveryPoint, Refusal, Reply, Terms,
    claim::OwnerToken,
    engine::{Observation, Observer, Resolve, Settled},
    record::State,
};
use onceward_testkit::{Fault, FaultyStore, Method};
use tokio::sync::Notify;

use super::{Ledger, SECOND, builder, claim, claim_of, clock, engine, engine_on, id, identity_of_tests};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn resumable(lease: Duration) -> Terms {
    Terms { lease, on_lapse: OnLapse::Resume { attempts: 5, within: HOUR }, ..Terms::default() }
}

async fn reserve(engine: &Engine, claim: onceward::Claim) -> onceward::Reservation {
    match engine.claim(claim).await.unwrap() {
        Claimed::Reserved(reservation) => reservation,
        other => panic!("{other:?}"),
    }
}

fn point() -> RecoveryPoint {
    RecoveryPoint::new("charged", "ch_1").unwrap()
}

/// Charges unless the recovery point says it was charged; then fails before the second phase.
async fn charge_then_refused(operation: Operation, charges: Ledger) -> Outcome {
    if operation.recovery_point().is_none() {
        drop(charges.execute());
        let _ = operation.checkpoint(point()).await.unwrap();
    }
    Outcome::Retryable("phase two: connection refused".to_owned())
}

/// An operator's verdict that nothing happened.
fn release(by: &'static str, reason: &'static str) -> Resolve<'static> {
    Resolve { verdict: Resolution::Retryable, by, reason, seen: None }
}

#[tokio::test(start_paused = true)]
async fn a_committed_phase_is_remembered_for_the_whole_retention() {
    let (engine, _, _) = engine().await;
    let charges = Ledger::default();
    for wait in [Duration::ZERO, Duration::from_secs(61 * 60)] {
        onceward::plumbing::time::sleep(wait).await;
        let charges = charges.clone();
        let ran =
            engine.run(claim(), move |operation| charge_then_refused(operation, charges)).await.unwrap();
        assert!(matches!(ran, Ran::Retryable(_)), "{ran:?}");
    }
    assert_eq!(charges.count(), 1, "charged again within the promised 24 hours");
}

#[tokio::test(start_paused = true)]
async fn a_named_owner_that_asks_again_does_not_run_beside_its_own_detached_work() {
    let (engine, _, _) = engine().await;
    let ledger = Ledger::default();
    let began = Arc::new(Notify::new());
    let named = || claim().owner(OwnerToken::named("worker-7"));
    let (worker, begins) = (ledger.clone(), began.clone());
    let run = engine.run(named(), async move |_| {
        begins.notify_one();
        onceward::plumbing::time::sleep(SECOND).await;
        worker.execute()
    });
    tokio::select! { _ = run => panic!("ended"), () = began.notified() => {} }
    // The caller lost its answer and claims again under its name, as `Claim::owner` allows.
    let worker = ledger.clone();
    let ran = engine.run(named().attach(SECOND * 5).unwrap(), async move |_| worker.execute()).await;
    onceward::plumbing::time::sleep(SECOND * 5).await;
    assert_eq!(ledger.count(), 1, "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_settled_after_a_suspension_is_not_already_expired() {
    let (engine, _, clock) = engine().await;
    let ledger = Ledger::default();
    let terms = Terms { retention: MINUTE, grace: Duration::ZERO, ..Terms::default() };
    for _ in 0..2 {
        let (worker, clock) = (ledger.clone(), clock.clone());
        engine
            .run(claim().terms(terms.clone()).unwrap(), async move |_| {
                // The machine is suspended: elapsed time stands still, the store's wall clock does not.
                clock.advance(MINUTE * 3);
                worker.execute()
            })
            .await
            .unwrap();
    }
    assert_eq!(ledger.count(), 1, "the answer was expired when it was written, and the retry executed");
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_settlement_is_tried_again_after_a_suspension_is_not_already_expired() {
    let (clock, mut settlements) = (clock(), 0);
    let (suspended, memory) = (clock.clone(), MemoryStore::with_clock(clock.clone()));
    let store = FaultyStore::new(memory, move |call| {
        if call.method != Method::Swap || call.id != Some(id()) {
            return Fault::None;
        }
        settlements += 1;
        if settlements != 2 {
            return Fault::None;
        }
        // The store is unreachable, and the machine is suspended before the next try.
        suspended.advance(MINUTE * 3);
        Fault::Unavailable
    });
    let builder = builder(Arc::new(store), 1).clock(clock);
    let engine = builder.open(identity_of_tests()).await.unwrap();
    let ledger = Ledger::default();
    let terms = Terms { retention: MINUTE, grace: Duration::ZERO, ..Terms::default() };
    for _ in 0..2 {
        let worker = ledger.clone();
        let claim = claim().terms(terms.clone()).unwrap();
        engine.run(claim, async move |_| worker.execute()).await.unwrap();
    }
    assert_eq!(ledger.count(), 1, "the answer was expired when it was written, and the retry executed");
}

#[tokio::test(start_paused = true)]
async fn an_answer_settled_after_a_day_of_suspension_outlives_a_restart() {
    let (engine, store, clock) = engine().await;
    let ledger = Ledger::default();
    let (worker, suspended) = (ledger.clone(), clock.clone());
    engine
        .run(claim(), async move |_| {
            suspended.advance(HOUR * 26);
            worker.execute()
        })
        .await
        .unwrap();
    engine.shut_down(SECOND).await;
    let restarted = builder(Arc::new(store), 2).open(identity_of_tests()).await.unwrap();
    let worker = ledger.clone();
    restarted.run(claim(), async move |_| worker.execute()).await.unwrap();
    assert_eq!(ledger.count(), 1, "answered seconds ago, and executed again");
}

#[tokio::test(start_paused = true)]
async fn a_resumed_tenure_is_renewed_at_the_pace_of_its_own_lease() {
    let (engine, _, _) = engine().await;
    // Claimed when the configuration said 2 s; its owner died. Then the configuration was changed to 60 s.
    let first = reserve(&engine, claim().terms(resumable(SECOND * 2)).unwrap()).await;
    let _ = first.checkpoint(point()).await.unwrap();
    drop(first);
    onceward::plumbing::time::sleep(SECOND * 3).await;
    let (at_once, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut runs = Vec::new();
    for _ in 0..3 {
        let (engine, at_once, most) = (engine.clone(), at_once.clone(), most.clone());
        runs.push(tokio::spawn(async move {
            engine
                .run(claim().terms(resumable(MINUTE)).unwrap(), async move |_| {
                    most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    onceward::plumbing::time::sleep(SECOND * 10).await;
                    at_once.fetch_sub(1, Ordering::SeqCst);
                    Outcome::completed(Reply::new("shipped"))
                })
                .await
        }));
        onceward::plumbing::time::sleep(SECOND * 3).await;
    }
    for run in runs {
        run.await.unwrap().unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 1, "the rest of the work ran several times at once");
}

#[tokio::test(start_paused = true)]
async fn a_lapse_after_evidence_from_the_same_execution_does_not_do_the_rest_again() {
    let (engine, _, _) = engine().await;
    let claim = || claim().terms(resumable(MINUTE)).unwrap();
    let first = reserve(&engine, claim()).await;
    let _ = first.checkpoint(point()).await.unwrap();
    onceward::plumbing::time::sleep(MINUTE + SECOND).await; // the first owner stalls
    let second = engine.resume(id()).await.unwrap().unwrap();
    // The first wakes up, ships, and reports: kept as evidence that the whole execution was done.
    let late = first.settle(Outcome::completed(Reply::new("shipped"))).await.unwrap();
    assert_eq!(late, Settled::Fenced);
    drop(second); // the second dies before it ships
    onceward::plumbing::time::sleep(MINUTE + SECOND).await;
    let shipped = Ledger::default();
    let worker = shipped.clone();
    let ran = engine.run(claim(), async move |_| worker.execute()).await.unwrap();
    assert_eq!(shipped.count(), 0, "the record holds the proof that it was shipped: {ran:?}");
}

#[tokio::test(start_paused = true)]
async fn evidence_on_a_released_operation_is_remembered_for_the_whole_retention() {
    let (engine, _, _) = engine().await;
    let first = reserve(&engine, claim()).await;
    onceward::plumbing::time::sleep(MINUTE + SECOND).await;
    engine.sweep_leases().await.unwrap();
    engine.resolve(id(), release("ann", "hasty")).await.unwrap();
    let ran = engine.run(claim(), async |_| Outcome::Retryable("connection refused".into())).await.unwrap();
    assert!(matches!(ran, Ran::Retryable(_)));
    // The first owner reports that it did the work after all.
    assert_eq!(first.settle(Outcome::completed(Reply::new("charged"))).await.unwrap(), Settled::Fenced);
    onceward::plumbing::time::sleep(HOUR + MINUTE).await;
    let again = Ledger::default();
    let worker = again.clone();
    let ran = engine.run(claim(), async move |_| worker.execute()).await.unwrap();
    assert_eq!(again.count(), 0, "known to be done, within its 24 hours, and done again: {ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reclaim_that_lands_after_it_was_given_up_does_not_wedge_its_key() {
    let memory = MemoryStore::with_clock(clock());
    let healthy = engine_on(memory.clone()).await;
    healthy.run(claim(), async |_| Outcome::Retryable("connection refused".into())).await.unwrap();
    // swap 1 is the blind insert, swap 2 the reclaim; the identity is known, so opening swaps nothing.
    let mut script = vec![(Method::Swap, 2, Fault::LandsWhenTold)];
    script.extend((2..=12).map(|nth| (Method::Load, nth, Fault::Unavailable)));
    let store = Arc::new(FaultyStore::scripted(memory.clone(), script));
    let engine = builder(store.clone(), 2).open(identity_of_tests()).await.unwrap();
    let ran = engine.run(claim(), async |_| panic!("must not execute")).await;
    assert!(ran.is_err(), "{ran:?}");
    onceward::plumbing::time::sleep(SECOND).await;
    store.land().await; // the statement that was still on its way
    onceward::plumbing::time::sleep(MINUTE * 3).await;
    let state = healthy.load(id()).await.unwrap().unwrap().record.state;
    assert!(
        !matches!(state, State::Unknown { .. } | State::InProgress { .. }),
        "nothing was executed, yet {state:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_with_its_reservation_in_the_channel_leaves_no_key_behind() {
    let (engine, _, _) = engine().await;
    {
        let mut claiming = Box::pin(engine.claim(claim()));
        assert!(futures_util::poll!(&mut claiming).is_pending());
        for _ in 0..10 {
            tokio::task::yield_now().await;
        } // the answer is sent, and not yet received
    }
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let ledger = Ledger::default();
    let worker = ledger.clone();
    let ran = engine.run(claim().attach(SECOND).unwrap(), async move |_| worker.execute()).await.unwrap();
    assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_was_never_given_out_is_no_evidence() {
    let (engine, _, _) = engine().await;
    let reservation = reserve(&engine, claim()).await;
    let bogus = Fence::from_number(reservation.fence().as_number() + 12_345);
    let settled =
        engine.settle(id(), bogus, Outcome::completed(Reply::new("another operation's"))).await.unwrap();
    assert_eq!(settled, Settled::Fenced);
    let settled = reservation.settle(Outcome::Retryable("connection refused".into())).await.unwrap();
    assert_eq!(settled, Settled::Retryable, "a stranger's reply became the answer");
}

#[tokio::test(start_paused = true)]
async fn a_lease_survives_an_outage_of_a_third_of_it() {
    let memory = MemoryStore::with_clock(clock());
    let start = onceward::plumbing::time::instant();
    let store = FaultyStore::new(memory.clone(), move |_| {
        let at = onceward::plumbing::time::instant().duration_since(start);
        if at >= SECOND * 29 && at < SECOND * 47 { Fault::Unavailable } else { Fault::None }
    });
    let engine = engine_on(store).await;
    let work = engine.run(claim().timeout(MINUTE * 10).unwrap(), async |_| {
        onceward::plumbing::time::sleep(MINUTE * 2).await;
        Outcome::completed(Reply::new("slow"))
    });
    let other = builder(Arc::new(memory), 2).open(identity_of_tests()).await.unwrap();
    let look = async {
        onceward::plumbing::time::sleep(SECOND * 62).await;
        other.run(claim(), async |_| panic!("must not execute")).await.unwrap()
    };
    let (_, seen) = futures_util::join!(work, look);
    assert!(matches!(seen, Ran::Refused(Refusal::InProgress { .. })), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_restart_under_the_same_instance_name_does_not_take_its_dead_selfs_claim() {
    let store = MemoryStore::with_clock(clock());
    let ledger = Ledger::default();
    let before = builder(Arc::new(store.clone()), 7).open(identity_of_tests()).await.unwrap();
    let worker = ledger.clone();
    let run = before.run(claim(), async move |_| {
        drop(worker.execute()); // charged
        std::future::pending().await // kill -9 here
    });
    assert!(tokio::time::timeout(SECOND, run).await.is_err());
    let after = builder(Arc::new(store), 7).open(identity_of_tests()).await.unwrap();
    let worker = ledger.clone();
    let ran = after.run(claim(), async move |_| worker.execute()).await.unwrap();
    assert_eq!(ledger.count(), 1, "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_is_kept_no_longer_than_the_patience_for_a_settlement() {
    let memory = MemoryStore::with_clock(clock());
    let slow = Fault::Slow { before: HOUR, after: Duration::ZERO };
    let engine = engine_on(FaultyStore::scripted(memory, [(Method::Swap, 3, slow)])).await;
    let before = onceward::plumbing::time::instant();
    let ran = engine.run(claim(), async |_| Outcome::completed(Reply::new("done"))).await.unwrap();
    let kept = onceward::plumbing::time::instant().duration_since(before);
    assert!(kept <= SECOND * 15, "kept for {kept:?}: {ran:?}");
}

#[tokio::test(start_paused = true)]
async fn claims_that_are_given_back_are_bounded() {
    let loads = Arc::new(AtomicU64::new(0));
    let down = Arc::new(AtomicBool::new(false));
    let (counted, away) = (loads.clone(), down.clone());
    let store = FaultyStore::new(MemoryStore::with_clock(clock()), move |call| match call.method {
        Method::Swap if away.load(Ordering::SeqCst) => Fault::CallLost,
        Method::Load if away.load(Ordering::SeqCst) => {
            counted.fetch_add(1, Ordering::SeqCst);
            Fault::Unavailable
        }
        _ => Fault::None,
    });
    let limits = Limits::default().executions(2).lost_claims(4).claim_patience(Duration::from_millis(1));
    let engine = builder(Arc::new(store), 1).limits(limits).open(identity_of_tests()).await.unwrap();
    down.store(true, Ordering::SeqCst);
    for n in 0..2000 {
        let ran = engine.run(claim_of(&format!("k{n}"), "b"), async |_| panic!("no")).await;
        assert!(ran.is_err());
    }
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = loads.load(Ordering::SeqCst);
    onceward::plumbing::time::sleep(SECOND * 10).await;
    let rate = (loads.load(Ordering::SeqCst) - before) / 10;
    assert!(
        tasks < 20,
        "{tasks} tasks with a limit of 4 lost claims, which ask a store that is away {rate} times a second"
    );
}

/// Refuses one write for good.
struct Poisoned(MemoryStore, RecordId, AtomicBool);
impl Store for Poisoned {
    fn load(&self, id: RecordId) -> StoreFuture<'_, Seen> {
        self.0.load(id)
    }
    fn swap(&self, id: RecordId, expect: Option<Version>, next: Record) -> StoreFuture<'_, Swapped> {
        if id == self.1 && self.2.load(Ordering::SeqCst) {
            return Box::pin(async { Err(StoreError::Refused { reason: "a trigger".into() }) });
        }
        self.0.swap(id, expect, next)
    }
    fn scan(&self, scan: Scan) -> StoreFuture<'_, Page> {
        self.0.scan(scan)
    }
    fn forget(&self, records: Vec<(RecordId, Version)>) -> StoreFuture<'_, usize> {
        self.0.forget(records)
    }
}

#[tokio::test(start_paused = true)]
async fn one_bad_row_does_not_hide_the_lapsed_leases_after_it() {
    let store = Arc::new(Poisoned(MemoryStore::with_clock(clock()), id(), false.into()));
    let engine = builder(store.clone(), 1).open(identity_of_tests()).await.unwrap();
    drop(engine.claim(claim()).await.unwrap());
    onceward::plumbing::time::sleep(SECOND).await;
    let other = reserve(&engine, claim_of("other", "b")).await;
    let other_id = other.id();
    drop(other);
    store.2.store(true, Ordering::SeqCst);
    onceward::plumbing::time::sleep(HOUR).await;
    let state = engine.load(other_id).await.unwrap().unwrap().record.state;
    assert!(matches!(state, State::Unknown { .. }), "an hour after its lease: {state:?}");
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_a_reply_holds_at_every_door() {
    let limits = Limits::default().reply_bytes(10);
    let store = MemoryStore::with_clock(clock());
    let engine = builder(Arc::new(store), 1).limits(limits).open(identity_of_tests()).await.unwrap();
    let reservation = reserve(&engine, claim()).await;
    let settled = reservation.settle(Outcome::completed(Reply::new(vec![b'x'; 50_000_000]))).await;
    assert!(!matches!(settled, Ok(Settled::Completed { .. })), "fifty megabytes were kept");
}

#[tokio::test(start_paused = true)]
async fn one_slow_answer_does_not_suspend_expiry_for_ever() {
    let slow = Fault::Slow { before: Duration::ZERO, after: MINUTE * 20 };
    let store = FaultyStore::scripted(MemoryStore::with_clock(clock()), [(Method::Load, 2, slow)]);
    let engine = engine_on(store).await;
    // The process is stopped (SIGSTOP, a paused container) while one answer of the store is on its way.
    engine.load(id()).await.unwrap();
    let terms = Terms { retention: SECOND, grace: Duration::ZERO, ..Terms::default() };
    engine.run(claim().terms(terms).unwrap(), async |_| Outcome::completed(Reply::new("x"))).await.unwrap();
    onceward::plumbing::time::sleep(HOUR * 24).await;
    assert_eq!(engine.load(id()).await.unwrap(), None, "a day past its window, and never swept");
}

#[tokio::test(start_paused = true)]
async fn a_cache_does_not_outlive_the_window_over_a_suspension() {
    let (here, store, clock) = engine().await;
    let terms = Terms { retention: MINUTE, grace: Duration::ZERO, ..Terms::default() };
    let claim = || claim().terms(terms.clone()).unwrap();
    here.run(claim(), async |_| Outcome::completed(Reply::new("first"))).await.unwrap();
    clock.advance(MINUTE * 4); // this machine was suspended; the next one was not
    let there = builder(Arc::new(store), 2).open(identity_of_tests()).await.unwrap();
    there.run(claim(), async |_| Outcome::completed(Reply::new("second"))).await.unwrap();
    match here.run(claim(), async |_| panic!("must not execute")).await.unwrap() {
        Ran::Replayed { reply, .. } => assert_eq!(reply.body, "second"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn debug_shows_no_key_and_no_body() {
    let (engine, _, _) = engine().await;
    let ran = engine
        .run(claim_of("secret-key", "b"), async |_| Outcome::completed(Reply::new("iban")))
        .await
        .unwrap();
    let scan = Scan { which: onceward::store::Which::Filter(Default::default()), after: None, limit: 9 };
    let page = engine.list(scan).await.unwrap();
    assert!(!format!("{page:?}").contains("secret-key"), "{page:?}");
    assert!(!format!("{ran:?}").contains("iban"));
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_does_not_turn_an_executed_answer_into_nothing_was_executed() {
    struct Panics;
    impl Observer for Panics {
        fn observe(&self, _: &str, _: RecordId, what: Observation) {
            if what == Observation::Completed {
                std::panic::resume_unwind(Box::new("metrics"))
            }
        }
    }
    let store = MemoryStore::with_clock(clock());
    let engine =
        builder(Arc::new(store), 1).observer(Arc::new(Panics)).open(identity_of_tests()).await.unwrap();
    let ran = engine.run(claim(), async |_| Outcome::completed(Reply::new("x"))).await;
    assert!(ran.is_ok(), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_record_of_a_newer_version_is_not_overwritten_by_a_verdict() {
    let (engine, store, _) = engine().await;
    engine.run(claim(), async |_| Outcome::completed(Reply::new("x"))).await.unwrap();
    store.damage(id(), |bytes| onceward_testkit::sample::as_of_a_newer_format(id(), bytes));
    let operated = engine.resolve(id(), release("ann", "looked broken")).await;
    assert!(operated.is_err(), "a completed answer is gone: {operated:?}");
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_failed_can_be_tried_again_with_the_same_reservation_or_is_at_least_kept_trying() {
    let memory = MemoryStore::with_clock(clock());
    let start = onceward::plumbing::time::instant();
    let store = FaultyStore::new(memory.clone(), move |call| {
        let at = onceward::plumbing::time::instant().duration_since(start);
        if call.method == Method::Swap && at > SECOND && at < SECOND * 30 {
            Fault::Unavailable
        } else {
            Fault::None
        }
    });
    let engine = engine_on(store).await;
    let reservation = reserve(&engine, claim()).await;
    onceward::plumbing::time::sleep(SECOND * 2).await;
    let settled = reservation.settle(Outcome::completed(Reply::new("done"))).await;
    assert!(settled.is_err());
    onceward::plumbing::time::sleep(MINUTE * 2).await;
    let state = engine.load(id()).await.unwrap().unwrap().record.state;
    assert!(matches!(state, State::Completed { .. }), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn a_completion_for_a_forgotten_record_raises_an_alarm() {
    let alarms = Arc::new(AtomicU64::new(0));
    struct Count(Arc<AtomicU64>);
    impl Observer for Count {
        fn observe(&self, _: &str, _: RecordId, what: Observation) {
            if matches!(what, Observation::Contradiction | Observation::Fenced) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
    let store = MemoryStore::with_clock(clock());
    let engine = builder(Arc::new(store), 1)
        .observer(Arc::new(Count(alarms.clone())))
        .open(identity_of_tests())
        .await
        .unwrap();
    let first = reserve(&engine, claim()).await;
    onceward::plumbing::time::sleep(MINUTE * 2).await;
    engine.resolve(id(), release("ann", "hasty")).await.unwrap();
    onceward::plumbing::time::sleep(HOUR * 2).await;
    assert_eq!(engine.load(id()).await.unwrap(), None);
    assert_eq!(first.settle(Outcome::completed(Reply::new("charged"))).await.unwrap(), Settled::Fenced);
    assert_ne!(alarms.load(Ordering::SeqCst), 0, "charged, forgotten, and nobody was told");
}

#[tokio::test(start_paused = true)]
async fn a_lease_from_the_future_does_not_wedge_its_key_after_the_clock_was_set_right() {
    let (engine, store, clock) = engine().await;
    clock.advance(HOUR * 24);
    engine.load(id()).await.unwrap();
    drop(engine.claim(claim()).await.unwrap()); // its process dies
    clock.rewind(HOUR * 24);
    drop(engine);
    let after = builder(Arc::new(store), 2).open(identity_of_tests()).await.unwrap();
    let ran = super::retry(&after).await.unwrap();
    assert!(matches!(ran, Ran::Refused(Refusal::Unknown { .. })), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_would_go_on_without_a_store_learns_that_its_claim_may_be_there() {
    // The claim's answer is lost, the record is not seen yet, and then the store sheds until patience ends.
    let mut script = vec![(Method::Swap, 2, Fault::LandsWhenTold)];
    script.extend((3..40).map(|nth| (Method::Swap, nth, Fault::Overloaded)));
    let store = Arc::new(FaultyStore::scripted(MemoryStore::with_clock(clock()), script));
    let engine = builder(store.clone(), 1).open(identity_of_tests()).await.unwrap();
    let ran = engine.run(claim(), async |_| panic!("must not execute")).await;
    assert!(matches!(ran, Err(EngineError::Store(StoreError::Ambiguous { .. }))), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn work_that_was_not_begun_is_released_even_if_the_store_is_away_for_longer_than_its_callers_patience()
{
    let (memory, local, start) =
        (MemoryStore::with_clock(clock()), clock(), onceward::plumbing::time::instant());
    let (sleeper, mut claimed) = (local.clone(), false);
    let store = FaultyStore::new(memory, move |call| {
        if call.method != Method::Swap || call.id != Some(id()) {
            return Fault::None;
        }
        if !claimed {
            // The machine is suspended while the claim is written, and then the store is away for twenty seconds.
            claimed = true;
            sleeper.advance(SECOND * 40);
            return Fault::None;
        }
        let away = onceward::plumbing::time::instant().duration_since(start) < SECOND * 20;
        if away { Fault::Unavailable } else { Fault::None }
    });
    let engine = builder(Arc::new(store), 1).clock(local).open(identity_of_tests()).await.unwrap();
    let told = super::retry(&engine).await.unwrap();
    assert!(matches!(told, Ran::Unknown(_)), "{told:?}");
    onceward::plumbing::time::sleep(SECOND * 30).await;
    let state = engine.load(id()).await.unwrap().unwrap().record.state;
    assert!(matches!(state, State::FailedRetryable { .. }), "nothing was begun, yet {state:?}");
}

#[tokio::test(start_paused = true)]
async fn a_replay_of_what_turned_out_to_be_done_is_not_counted_as_a_new_operation() {
    struct Count(Arc<AtomicU64>);
    impl Observer for Count {
        fn observe(&self, _: &str, _: RecordId, what: Observation) {
            if matches!(what, Observation::Created | Observation::Reclaimed) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
    let claimed = Arc::new(AtomicU64::new(0));
    let store = Arc::new(MemoryStore::with_clock(clock()));
    let builder = builder(store, 1).observer(Arc::new(Count(claimed.clone())));
    let engine = builder.open(identity_of_tests()).await.unwrap();
    let first = reserve(&engine, claim()).await;
    onceward::plumbing::time::sleep(MINUTE + SECOND).await;
    engine.sweep_leases().await.unwrap();
    engine.resolve(id(), release("ann", "hasty")).await.unwrap();
    engine.run(claim(), async |_| Outcome::Retryable("connection refused".into())).await.unwrap();
    assert_eq!(first.settle(Outcome::completed(Reply::new("charged"))).await.unwrap(), Settled::Fenced);
    let ran = super::retry(&engine).await.unwrap();
    assert!(matches!(ran, Ran::Replayed { .. }), "{ran:?}");
    assert_eq!(claimed.load(Ordering::SeqCst), 2, "two claims were taken, and the third was answered");
}
