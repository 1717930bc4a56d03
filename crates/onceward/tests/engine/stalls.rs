//! A store that stalls for longer than a claim's patience, and carries out calls late that were given up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::plumbing::time::sleep;
use onceward::store::Store as _;
use onceward::{
    Claimed, Engine, EngineError, Limits, MemoryStore, OnLapse, Outcome, Ran, RecordId, RecoveryPoint,
    Refusal, Reply, Terms,
    engine::{Observation, Observer},
    record::State,
};
use onceward_testkit::{Fault, FaultyStore, Method};

use super::{Ledger, SECOND, builder, claim, claim_of, clock, id, identity_of_tests, pay};

const MINUTE: Duration = Duration::from_secs(60);
const CLAIMS: u64 = 600;

/// Which calls a stall holds up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// They are answered: a disk that does not sync.
    Answered,
    /// They wait, too: a database that hangs.
    Stalled,
}

/// Collects the observations about lost claims.
#[derive(Default)]
struct Heard(Mutex<Vec<(RecordId, Observation)>>);

impl Heard {
    fn count(&self, what: Observation) -> usize {
        self.0.lock().unwrap().iter().filter(|(_, heard)| *heard == what).count()
    }
}

impl Observer for Heard {
    fn observe(&self, _: &str, id: RecordId, what: Observation) {
        self.0.lock().unwrap().push((id, what));
    }
}

/// An engine on a store that can be stalled.
struct Stalling {
    engine: Engine,
    store: Arc<FaultyStore>,
    memory: MemoryStore,
    stalled: Arc<AtomicBool>,
    /// How often a record was looked for while the store did not stall.
    loads: Arc<AtomicU64>,
    heard: Arc<Heard>,
}

impl Stalling {
    async fn start(reads: Reads, limits: Limits) -> Self {
        let (stalled, loads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stall, looks) = (stalled.clone(), loads.clone());
        let memory = MemoryStore::with_clock(clock());
        let store = FaultyStore::new(memory.clone(), move |call| {
            let read = match call.method {
                Method::Load | Method::Scan => true,
                Method::Swap | Method::Forget => false,
            };
            if call.method == Method::Load {
                looks.fetch_add(1, Ordering::SeqCst);
            }
            let stalls = stall.load(Ordering::SeqCst) && (!read || reads == Reads::Stalled);
            if stalls { Fault::Stalls } else { Fault::None }
        });
        let (store, heard) = (Arc::new(store), Arc::new(Heard::default()));
        let builder = builder(store.clone(), 1).limits(limits).observer(heard.clone());
        let engine = builder.open(identity_of_tests()).await.unwrap();
        Self { engine, store, memory, stalled, loads, heard }
    }

    fn stall(&self) {
        self.stalled.store(true, Ordering::SeqCst);
    }

    /// Ends the stall, and carries out the calls that came meanwhile.
    async fn recover(&self) {
        self.stalled.store(false, Ordering::SeqCst);
        self.store.land().await;
    }

    /// Sends this many requests at once, none of which may execute.
    async fn refuse(&self, keys: std::ops::Range<u64>) {
        let requests = keys.map(|n| {
            let engine = self.engine.clone();
            tokio::spawn(async move {
                engine.run(claim_of(&format!("k{n}"), "b"), async |_| panic!("nothing may be executed")).await
            })
        });
        for request in requests.collect::<Vec<_>>() {
            let told = request.await.unwrap();
            assert!(matches!(told, Err(EngineError::Store(_))), "{told:?}");
        }
    }

    async fn states(&self, keys: std::ops::Range<u64>) -> Vec<&'static str> {
        let mut states = Vec::new();
        for n in keys {
            let id = identity_of_tests().id_of(
                &onceward::Scope::new("acme").unwrap(),
                &onceward::Key::new(&format!("k{n}")).unwrap(),
            );
            let found = self.memory.load(id).await.unwrap().record;
            states.push(found.map_or("absent", |stamped| stamped.record.state.name()));
        }
        states
    }

    /// Retries every key, and returns how many executed.
    async fn retry(&self, keys: std::ops::Range<u64>) -> u64 {
        let ledger = Ledger::default();
        for n in keys {
            let worker = ledger.clone();
            let ran = self.engine.run(claim_of(&format!("k{n}"), "b"), async move |_| worker.execute()).await;
            assert!(matches!(ran, Ok(Ran::Executed { .. })), "k{n}: {ran:?}");
        }
        ledger.count()
    }

    fn looks(&self) -> u64 {
        self.loads.load(Ordering::SeqCst)
    }
}

/// How many of them are in this state.
fn count(states: &[&str], state: &str) -> usize {
    states.iter().filter(|found| **found == state).count()
}

#[tokio::test(start_paused = true)]
async fn no_key_is_in_progress_or_unknown_after_six_hundred_claims_that_a_stalled_store_carried_out_late() {
    for reads in [Reads::Answered, Reads::Stalled] {
        let stalling = Stalling::start(reads, Limits::default()).await;
        stalling.stall();
        stalling.refuse(0..CLAIMS).await;
        sleep(SECOND * 3).await;
        stalling.recover().await;
        // The next write shows that the store is back. Then it takes seconds.
        pay(&stalling.engine, &Ledger::default()).await.unwrap();
        sleep(SECOND * 6).await;
        let states = stalling.states(0..CLAIMS).await;
        assert_eq!(count(&states, "failed_retryable"), states.len(), "{states:?}");
        assert_eq!(stalling.heard.count(Observation::GivenBack), states.len());
        assert_eq!(stalling.retry(0..CLAIMS).await, CLAIMS);
    }
}

#[tokio::test(start_paused = true)]
async fn no_key_stays_unknown_after_a_stall_that_outlasted_the_leases_however_long_it_was() {
    for (reads, stall) in [
        (Reads::Answered, MINUTE * 2),
        (Reads::Stalled, MINUTE * 2),
        (Reads::Answered, MINUTE * 10),
        (Reads::Stalled, MINUTE * 10),
        (Reads::Answered, MINUTE * 50),
        (Reads::Stalled, MINUTE * 60 * 24),
    ] {
        let stalling = Stalling::start(reads, Limits::default()).await;
        stalling.stall();
        stalling.refuse(0..CLAIMS).await;
        sleep(stall).await;
        stalling.recover().await;
        // A retry before the claim is found meets a lapsed lease, and is refused as unknown.
        let told = stalling.engine.run(claim_of("k0", "b"), async |_| panic!("must not execute")).await;
        assert!(matches!(told, Ok(Ran::Refused(Refusal::Unknown { .. }))), "{told:?}");
        sleep(MINUTE * 2).await;
        let states = stalling.states(0..CLAIMS).await;
        assert_eq!(count(&states, "failed_retryable"), states.len(), "{stall:?}: {states:?}");
        assert_eq!(stalling.retry(0..CLAIMS).await, CLAIMS);
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_09_one_lost_claim_more_than_the_limit_is_counted_and_lapses_if_it_was_written() {
    for (lost, left_to_lapse) in [(3, 0), (4, 1)] {
        let limits = Limits::default().lost_claims(3);
        let stalling = Stalling::start(Reads::Answered, limits).await;
        stalling.stall();
        stalling.refuse(0..lost).await;
        assert_eq!(stalling.heard.count(Observation::LostClaimDropped), left_to_lapse);
        stalling.recover().await;
        sleep(MINUTE * 3).await;
        let states = stalling.states(0..lost).await;
        assert_eq!(count(&states, "unknown"), left_to_lapse, "{states:?}");
        assert_eq!(count(&states, "failed_retryable"), 3, "{states:?}");
        // Claims that were found have left the list.
        stalling.stall();
        stalling.refuse(10..13).await;
        assert_eq!(stalling.heard.count(Observation::LostClaimDropped), left_to_lapse);
    }
}

/// An engine whose claims are lost on the way, and never arrive.
async fn losing() -> (Engine, Arc<AtomicBool>, Arc<AtomicU64>) {
    let (losing, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (loses, counted) = (losing.clone(), looks.clone());
    let store = FaultyStore::new(MemoryStore::with_clock(clock()), move |call| match call.method {
        Method::Swap if loses.load(Ordering::SeqCst) => Fault::CallLost,
        Method::Load => {
            counted.fetch_add(1, Ordering::SeqCst);
            Fault::None
        }
        _ => Fault::None,
    });
    let engine = builder(Arc::new(store), 1).open(identity_of_tests()).await.unwrap();
    losing.store(true, Ordering::SeqCst);
    let told = super::retry(&engine).await;
    assert!(told.is_err(), "{told:?}");
    losing.store(false, Ordering::SeqCst);
    (engine, losing, looks)
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_never_arrives_is_searched_until_minutes_after_the_store_took_another_write() {
    let (engine, _, looks) = losing().await;
    engine.run(claim_of("another", "b"), async |_| Outcome::completed(Reply::new("x"))).await.unwrap();
    sleep(MINUTE * 4).await;
    let before = looks.load(Ordering::SeqCst);
    sleep(MINUTE * 3).await;
    let last = looks.load(Ordering::SeqCst);
    assert!(last > before, "given up within four minutes");
    sleep(MINUTE * 60).await;
    assert_eq!(looks.load(Ordering::SeqCst), last);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_never_arrives_is_searched_for_an_hour_where_no_write_shows_that_the_store_is_back() {
    let (engine, _, looks) = losing().await;
    sleep(MINUTE * 55).await;
    let before = looks.load(Ordering::SeqCst);
    sleep(MINUTE * 10).await;
    let last = looks.load(Ordering::SeqCst);
    assert!(last > before, "given up within an hour");
    sleep(MINUTE * 60 * 24).await;
    assert_eq!(looks.load(Ordering::SeqCst), last);
    drop(engine);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_asked_for_one_lost_claim_at_a_time_and_rarely() {
    let stalling = Stalling::start(Reads::Stalled, Limits::default()).await;
    stalling.stall();
    stalling.refuse(0..CLAIMS).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 10, "{tasks} tasks look for {CLAIMS} lost claims");
    sleep(SECOND * 30).await;
    let before = stalling.looks();
    sleep(MINUTE * 10).await;
    let looked = stalling.looks() - before;
    assert!(looked <= 10 * 60 / 5, "a store that hangs was asked {looked} times in ten minutes");
    assert!(looked >= 10, "it was asked {looked} times only");
}

#[tokio::test(start_paused = true)]
async fn the_task_that_searches_lost_claims_ends_with_the_list_and_with_the_engine() {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let stalling = Stalling::start(Reads::Answered, Limits::default()).await;
    let sweepers = alive();
    stalling.stall();
    stalling.refuse(0..5).await;
    assert_eq!(alive(), sweepers + 1);
    stalling.recover().await;
    sleep(MINUTE * 2).await;
    assert_eq!(alive(), sweepers, "the list is empty");
    stalling.stall();
    stalling.refuse(5..10).await;
    assert_eq!(alive(), sweepers + 1);
    drop(stalling);
    sleep(MINUTE * 2).await;
    assert_eq!(alive(), 0, "the engine is gone");
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_that_never_arrived_does_not_release_the_one_that_came_after_it() {
    let (engine, _, _) = losing().await;
    let ledger = Ledger::default();
    let worker = ledger.clone();
    let running = tokio::spawn({
        let engine = engine.clone();
        async move {
            let work = async move |_| {
                sleep(SECOND * 25).await;
                worker.execute()
            };
            engine.run(claim(), work).await
        }
    });
    for _ in 0..20 {
        sleep(SECOND).await;
        let state = engine.load(id()).await.unwrap().unwrap().record.state;
        assert!(matches!(state, State::InProgress { .. }), "{state:?}");
    }
    let ran = running.await.unwrap().unwrap();
    assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_take_over_that_lands_late_is_found_however_long_its_lease_and_keeps_the_doubt() {
    let stalling = Stalling::start(Reads::Answered, Limits::default()).await;
    let on_lapse = OnLapse::Resume { attempts: 5, within: MINUTE * 60 };
    let terms = Terms { lease: MINUTE * 20, on_lapse, ..Terms::default() };
    let claimed = stalling.engine.claim(claim().terms(terms).unwrap()).await.unwrap();
    let Claimed::Reserved(reservation) = claimed else { panic!("{claimed:?}") };
    let point = RecoveryPoint::new("charged", "1").unwrap();
    assert_eq!(reservation.checkpoint(point).await.unwrap(), onceward::engine::Tenure::Held);
    drop(reservation);
    sleep(MINUTE * 21).await;
    stalling.stall();
    let told = stalling.engine.resume(id()).await;
    assert!(told.is_err(), "{told:?}");
    sleep(MINUTE * 3).await;
    stalling.recover().await;
    sleep(MINUTE * 2).await;
    // The tenure before may have done more than it committed, though this one did nothing.
    let record = stalling.memory.load(id()).await.unwrap().record.unwrap().record;
    assert!(matches!(record.state, State::Unknown { .. }), "{:?}", record.state);
    assert_eq!(stalling.heard.count(Observation::GivenBack), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_answered_by_another_record_is_given_back_if_it_arrives_when_that_record_is_gone() {
    let memory = MemoryStore::with_clock(clock());
    let terms = Terms { retention: SECOND * 2, grace: Duration::ZERO, ..Terms::default() };
    let here = builder(Arc::new(memory.clone()), 1).open(identity_of_tests()).await.unwrap();
    let short = || claim().terms(terms.clone()).unwrap();
    here.run(short(), async |_| Outcome::completed(Reply::new("first"))).await.unwrap();
    let store = Arc::new(FaultyStore::scripted(memory.clone(), [(Method::Swap, 1, Fault::LandsWhenTold)]));
    let there = builder(store.clone(), 2).open(identity_of_tests()).await.unwrap();
    let ran = there.run(short(), async |_| panic!("must not execute")).await.unwrap();
    assert!(matches!(ran, Ran::Replayed { .. }), "{ran:?}");
    sleep(SECOND * 40).await;
    assert_eq!(memory.load(id()).await.unwrap().record, None, "it is swept");
    store.land().await;
    sleep(MINUTE).await;
    let state = memory.load(id()).await.unwrap().record.map(|stamped| stamped.record.state);
    assert!(!matches!(state, Some(State::InProgress { .. } | State::Unknown { .. })), "{state:?}");
}

/// Two engines, one of which has just had an answer that took two minutes. The store read its clock at the end of it.
async fn beside_a_late_answer(slow: u64) -> (Engine, Engine) {
    let memory = MemoryStore::with_clock(clock());
    let late = Fault::Slow { before: MINUTE * 2, after: Duration::ZERO };
    let store = Arc::new(FaultyStore::scripted(memory.clone(), [(Method::Load, slow, late)]));
    let there = builder(Arc::new(memory), 2).open(identity_of_tests()).await.unwrap();
    let here = builder(store, 1).open(identity_of_tests()).await.unwrap();
    (here, there)
}

#[tokio::test(start_paused = true)]
async fn a_tenure_that_begins_after_a_very_slow_answer_is_taken_for_a_live_one_by_other_engines() {
    // The slow call is a later one, or the first, which is then all that the engine knows of the store's time.
    for slow in [2, 1] {
        let (here, there) = beside_a_late_answer(slow).await;
        if slow == 2 {
            here.load(id()).await.unwrap();
        }
        let claimed = here.claim(claim()).await.unwrap();
        let Claimed::Reserved(reservation) = claimed else { panic!("{claimed:?}") };
        let told = there.claim(claim()).await.unwrap();
        assert!(matches!(told, Claimed::Refused(Refusal::InProgress { .. })), "{told:?}");
        reservation.settle(Outcome::completed(Reply::new("x"))).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_that_an_operator_ends_by_a_slow_write_lasts_until_no_cache_believes_in_its_answer() {
    let memory = MemoryStore::with_clock(clock());
    let slow = Fault::Slow { before: SECOND * 4, after: Duration::ZERO };
    let store = Arc::new(FaultyStore::scripted(memory.clone(), [(Method::Swap, 3, slow)]));
    let there = builder(Arc::new(memory), 2).open(identity_of_tests()).await.unwrap();
    let here = builder(store, 1).open(identity_of_tests()).await.unwrap();
    let ledger = Ledger::default();
    pay(&here, &ledger).await.unwrap();
    let operator = here.clone();
    let expiring = tokio::spawn(async move { operator.expire(id(), None).await });
    sleep(SECOND * 3).await;
    // The other engine caches the answer while the end of its window is on its way.
    assert!(matches!(super::retry(&there).await, Ok(Ran::Replayed { .. })));
    expiring.await.unwrap().unwrap();
    sleep(SECOND * 58).await;
    assert!(matches!(super::retry(&there).await, Ok(Ran::Replayed { .. })));
    assert!(matches!(pay(&here, &ledger).await, Ok(Ran::Replayed { .. })), "two answers at the same time");
    sleep(SECOND * 6).await;
    assert!(matches!(pay(&here, &ledger).await, Ok(Ran::Executed { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_late_after_a_second_outage_is_still_given_back() {
    let away = Arc::new(AtomicBool::new(false));
    let (is_away, memory) = (away.clone(), MemoryStore::with_clock(clock()));
    let store = Arc::new(FaultyStore::new(memory.clone(), move |call| match call.method {
        _ if is_away.load(Ordering::SeqCst) => Fault::Unavailable,
        // The second try of the claim is lost as well, so that it is given up.
        Method::Swap if (2..=3).contains(&call.nth) => Fault::LandsWhenTold,
        Method::Load if call.nth == 2 => Fault::Slow { before: SECOND * 6, after: Duration::ZERO },
        _ => Fault::None,
    }));
    let engine = builder(store.clone(), 1).open(identity_of_tests()).await.unwrap();
    let told = engine.run(claim(), async |_| panic!("must not execute")).await;
    assert!(told.is_err(), "{told:?}");
    // The store takes a write, and is then away for longer than a claim is looked for after that.
    engine.run(claim_of("another", "b"), async |_| Outcome::completed(Reply::new("x"))).await.unwrap();
    sleep(SECOND).await;
    away.store(true, Ordering::SeqCst);
    sleep(MINUTE * 20).await;
    away.store(false, Ordering::SeqCst);
    sleep(SECOND * 30).await;
    store.land().await;
    sleep(MINUTE * 3).await;
    let state = memory.load(id()).await.unwrap().record.map(|stamped| stamped.record.state.name());
    assert_eq!(state, Some("failed_retryable"));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_during_a_search_does_not_lose_the_claim() {
    let memory = MemoryStore::with_clock(clock());
    let store = FaultyStore::new(memory.clone(), |call| match (call.method, call.nth) {
        (Method::Swap, 2) => Fault::AnswerLost,
        (Method::Load, 2) => Fault::Slow { before: SECOND * 6, after: Duration::ZERO },
        (Method::Load, 3) => panic!("a bug of the store, which this test expects"),
        _ => Fault::None,
    });
    let engine = builder(Arc::new(store), 1).open(identity_of_tests()).await.unwrap();
    let told = engine.run(claim(), async |_| panic!("must not execute")).await;
    assert!(told.is_err(), "{told:?}");
    sleep(MINUTE * 3).await;
    let state = memory.load(id()).await.unwrap().record.map(|stamped| stamped.record.state.name());
    assert_eq!(state, Some("failed_retryable"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_deadline_passes_while_the_store_is_away_is_searched_on() {
    let (lost, away) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (loses, is_away, memory) = (lost.clone(), away.clone(), MemoryStore::with_clock(clock()));
    let store = Arc::new(FaultyStore::new(memory.clone(), move |call| match call.method {
        Method::Swap if loses.load(Ordering::SeqCst) => Fault::LandsWhenTold,
        Method::Load if loses.load(Ordering::SeqCst) => Fault::Unavailable,
        // One claim is not there, and the search for the other one fails.
        Method::Load if is_away.load(Ordering::SeqCst) && call.id != Some(id()) => Fault::Unavailable,
        _ => Fault::None,
    }));
    let engine = builder(store.clone(), 1).open(identity_of_tests()).await.unwrap();
    lost.store(true, Ordering::SeqCst);
    let told = tokio::join!(
        engine.run(claim(), async |_| panic!("must not execute")),
        engine.run(claim_of("another", "b"), async |_| panic!("must not execute")),
    );
    assert!(told.0.is_err() && told.1.is_err(), "{told:?}");
    lost.store(false, Ordering::SeqCst);
    // From this write on both are searched at the same times, the last one after five minutes.
    engine.run(claim_of("third", "b"), async |_| Outcome::completed(Reply::new("x"))).await.unwrap();
    sleep(SECOND * 290).await;
    away.store(true, Ordering::SeqCst);
    sleep(SECOND * 30).await;
    away.store(false, Ordering::SeqCst);
    store.land().await;
    sleep(MINUTE * 3).await;
    let state = memory.load(id()).await.unwrap().record.map(|stamped| stamped.record.state.name());
    assert_eq!(state, Some("failed_retryable"));
}
