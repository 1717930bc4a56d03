//! Routes that only observe: everything goes through, and is counted.

use std::sync::Arc;

use onceward::http::{Disposition, KeyRule, Mode, Policy, Routes};
use onceward::store::{Entry, Filter, Scan, Store as _, Which};
use onceward::{
    Limits, Record, Sweeping,
    engine::{Instance, Observation},
    record::{State, StateKind},
};
use onceward_testkit::{Fault, FaultyStore, Method};

use super::log::Log;
use super::observations::Observations;
use super::{Got, SECOND, World, builder, doing, memory, post, with, without, world_with};

fn watching() -> Policy {
    Policy::new().mode(Mode::Observe)
}

async fn observed_world(policy: Policy) -> (World, Arc<Observations>) {
    let observations = Arc::new(Observations::default());
    (world_with(builder(memory()).observer(observations.clone()), policy).await, observations)
}

/// Neither client nor service sees anything of the layer.
fn went_through(world: &World, got: &Got) {
    assert_eq!((&*got.handled.route, got.handled.disposition), ("default", Disposition::Observed));
    for name in got.headers.keys().chain(world.upstream.saw.lock().unwrap().keys()) {
        let own = name.as_str().starts_with("onceward") || name.as_str().starts_with("idempotency-");
        assert!(!own || name == "idempotency-key", "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn everything_is_executed_and_what_would_have_happened_is_counted() {
    use Observation::{Completed, Created, Lost, Mismatch, Reclaimed, Released, ReplayedFromCache, Unknown};
    let (world, observations) = observed_world(watching()).await;
    for (number, (request, would)) in [
        (doing("headers", "a", "{}"), vec![Created, Completed]),
        (doing("", "a", "{}"), vec![ReplayedFromCache]),
        (doing("", "a", "[]"), vec![Mismatch]),
        (doing("status:503", "b", "{}"), vec![Created, Lost]),
        (doing("", "b", "{}"), vec![Unknown]),
        (doing("status:429", "c", "{}"), vec![Created, Released]),
        (doing("", "c", "{}"), vec![Reclaimed, Completed]),
        (doing("word:retryable:200", "d", "{}"), vec![Created, Released]),
    ]
    .into_iter()
    .enumerate()
    {
        let got = world.send(request).await;
        if number != 7 {
            went_through(&world, &got);
        }
        let executed = format!("execution {} of ", number + 1);
        assert!(got.body.starts_with(executed.as_bytes()), "{got:?}");
        let mut counted = observations.take(*would.last().unwrap()).await;
        counted.retain(|what| *what != Observation::SuspiciousKey);
        assert_eq!(counted, would, "{number}");
    }
    let scan = Scan { which: Which::Filter(Filter::default()), after: None, limit: 10 };
    for entry in world.engine.list(scan).await.unwrap().entries {
        let record = entry.record.unwrap();
        assert!(record.subject.is_shadow());
        if let onceward::record::State::Completed { reply, .. } = &record.state {
            assert!(reply.headers.is_empty() && reply.body.is_empty(), "{reply:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_would_have_been_refused_goes_through() {
    let (world, observations) = observed_world(watching().key(KeyRule::Required)).await;
    for (request, what) in [
        (without(post("k", "{}"), "idempotency-key"), Observation::KeyMissing),
        (post("a,b", "{}"), Observation::KeyInvalid),
        (without(post("k", "{}"), "x-tenant"), Observation::ScopeMissing),
        (with(post("k", "{}"), "connection", "idempotency-key"), Observation::KeyInvalid),
    ] {
        let got = world.send(request).await;
        went_through(&world, &got);
        assert_eq!((got.status, observations.all()), (201, vec![what]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_shadow_never_meets_a_protected_operation() {
    let (mut world, observations) = observed_world(watching()).await;
    world.send(post("k", "{}")).await;
    observations.take(Observation::Completed).await;
    world.routes = Routes::new(Policy::new()).unwrap();
    let got = world.send(post("k", "{}")).await;
    assert_eq!((got.handled.disposition, world.ledger()), (Disposition::Executed, 2));
    assert!(world.send(post("k", "{}")).await.is_replay());
    world.routes = Routes::new(watching()).unwrap();
    world.send(post("other", "{}")).await;
    assert!(observations.take(Observation::Completed).await.contains(&Observation::Created));
}

#[tokio::test(start_paused = true)]
async fn a_retry_beside_the_first_request_counts_as_in_progress() {
    let (world, observations) = observed_world(watching()).await;
    let sender = world.clone();
    let running = tokio::spawn(async move { sender.send(doing("hang", "k", "{}")).await });
    observations.take(Observation::Created).await;
    let got = world.send(with(post("k", "{}"), "prefer", "wait=10")).await;
    assert_eq!((got.status, world.ledger()), (201, 2));
    observations.take(Observation::InProgress).await;
    world.upstream.go.notify_one();
    assert_eq!(running.await.unwrap().status, 201);
    observations.take(Observation::Completed).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_takes_its_request_with_it_and_counts_as_completed() {
    let (world, observations) = observed_world(watching()).await;
    tokio::select! {
        got = world.send(doing("hang", "k", "{}")) => panic!("{got:?}"),
        _ = observations.take(Observation::Created) => {}
    }
    observations.take(Observation::Completed).await;
    assert_eq!(Arc::strong_count(&world.upstream.ledger), 1, "the service still works on it");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_or_panics_leaves_the_outcome_unknown() {
    let (world, observations) = observed_world(watching()).await;
    let sender = world.clone();
    let sent = tokio::spawn(async move { sender.send(doing("panic", "k", "{}")).await });
    assert!(sent.await.is_err(), "the panic is the service's, as without this layer");
    observations.take(Observation::Lost).await;
    assert_eq!(world.send(post("k", "{}")).await.status, 201);
    observations.take(Observation::Unknown).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_limit_goes_through_and_is_not_counted() {
    let (world, observations) = observed_world(watching().max_request_body(4)).await;
    let got = world.send(post("k", "12345")).await;
    assert_eq!((got.status, &got.body[..]), (201, &b"execution 1 of 12345"[..]));
    world.send(post("k", "1234")).await;
    let mut counted = observations.take(Observation::Completed).await;
    counted.retain(|what| *what != Observation::SuspiciousKey);
    assert_eq!(counted, [Observation::Created, Observation::Completed]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_or_slow_delays_no_observed_request() {
    let identity = onceward::RecordId::from_bytes([0; 16]);
    for fault in [Fault::Unavailable, Fault::CallLost] {
        let store = FaultyStore::new(memory(), move |call| {
            if call.id.is_some_and(|id| id != identity) { fault } else { Fault::None }
        });
        let world = world_with(builder(store), watching()).await;
        let before = onceward::plumbing::time::instant();
        let got = world.send(post("k", "{}")).await;
        assert_eq!((got.status, onceward::plumbing::time::instant()), (201, before), "{fault:?}");
        went_through(&world, &got);
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_at_its_limits_counts_nothing() {
    let observations = Arc::new(Observations::default());
    let limits = Limits::default().executions(1);
    let world = world_with(builder(memory()).observer(observations.clone()).limits(limits), watching()).await;
    let sender = world.clone();
    let running = tokio::spawn(async move { sender.send(doing("hang", "a", "{}")).await });
    observations.take(Observation::Created).await;
    assert_eq!(world.send(post("b", "{}")).await.status, 201);
    world.upstream.go.notify_one();
    running.await.unwrap();
    let counted = observations.take(Observation::Completed).await;
    assert!(!counted.contains(&Observation::Created), "{counted:?}");
}

async fn in_state(world: &World, state: Option<StateKind>) -> Vec<Entry> {
    let which = Which::Filter(Filter { state, ..Filter::default() });
    world.engine.list(Scan { which, after: None, limit: 10 }).await.unwrap().entries
}

#[tokio::test(start_paused = true)]
async fn what_is_only_observed_is_never_unknown_and_expires_like_an_answer() {
    let policy = watching().retention(SECOND * 600).grace(SECOND * 60);
    for what in ["status:503", "word:unknown:200", "panic", "slow:100"] {
        let (world, observations) = observed_world(policy.clone()).await;
        let sender = world.clone();
        let sent = tokio::spawn(async move { sender.send(doing(what, "k", "{}")).await });
        assert!(observations.take(Observation::Lost).await.contains(&Observation::Created), "{what}");
        assert!(in_state(&world, Some(StateKind::Unknown)).await.is_empty(), "{what}");
        // Its retry is counted as one whose outcome would be unknown.
        world.send(post("k", "{}")).await;
        observations.take(Observation::Unknown).await;
        assert_eq!(sent.await.is_err(), what == "panic");
        onceward::plumbing::time::sleep(SECOND * 500).await;
        assert_eq!(in_state(&world, None).await.len(), 1, "{what}: it is forgotten too early");
        onceward::plumbing::time::sleep(SECOND * 300).await;
        assert!(in_state(&world, None).await.is_empty(), "{what}: it stays");
        let counted = observations.all();
        for alarm in [Observation::Contradiction, Observation::ReconcileScheduled, Observation::DeadLettered]
        {
            assert!(!counted.contains(&alarm), "{what}: {counted:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_timeout_is_the_truth_about_a_shadow_and_no_contradiction() {
    for retention in [SECOND, SECOND * 600] {
        let (world, observations) = observed_world(watching().retention(retention).grace(SECOND)).await;
        let got = world.send(doing("slow:100", "k", "{}")).await;
        assert_eq!(got.status, 201);
        onceward::plumbing::time::sleep(SECOND).await;
        let counted = observations.all();
        assert!(counted.contains(&Observation::Lost), "{counted:?}");
        assert!(!counted.contains(&Observation::Contradiction), "{counted:?}");
        // Within its retention the late answer completes it; after that there is no record any more.
        assert_eq!(counted.contains(&Observation::Completed), retention > SECOND * 60, "{counted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shadow_whose_outcome_would_be_unknown_holds_nothing_back_once_the_route_is_protected() {
    let (mut world, observations) = observed_world(watching()).await;
    world.send(doing("status:503", "k", "{}")).await;
    observations.take(Observation::Lost).await;
    world.routes = Routes::new(Policy::new()).unwrap();
    let got = world.send(post("k", "{}")).await;
    assert_eq!((got.handled.disposition, got.status, world.ledger()), (Disposition::Executed, 201, 2));
    assert!(world.send(post("k", "{}")).await.is_replay());
    assert_eq!(world.ledger(), 2);
}

#[tokio::test(start_paused = true)]
async fn shadows_that_an_earlier_version_left_unknown_are_ended_soon_after_the_start_and_operations_are_not()
{
    let (store, observations) = (memory(), Arc::new(Observations::default()));
    let world = world_with(builder(store.clone()).observer(observations.clone()), watching()).await;
    world.send(doing("status:503", "old", "{}")).await;
    observations.take(Observation::Lost).await;
    let shadow = in_state(&world, None).await.remove(0);
    let record = shadow.record.unwrap();
    let unknown = State::Unknown {
        since: record.created_at,
        due_at: record.created_at,
        probes: 0,
        letter: onceward::record::Letter::Live,
        cause: onceward::record::Cause::Said,
    };
    let left = Record { state: unknown.clone(), doubt: None, ..record.clone() };
    store.swap(shadow.id, Some(shadow.version), left.clone()).await.unwrap();
    let mut subject = (*record.subject).clone();
    subject.scope = "acme".to_owned();
    let operation = Record { state: unknown, doubt: None, subject: Arc::new(subject), ..record };
    let id = onceward::RecordId::from_bytes([7; 16]);
    store.swap(id, None, operation).await.unwrap();
    assert_eq!(in_state(&world, Some(StateKind::Unknown)).await.len(), 2);
    drop(world);

    let again = world_with(builder(store.clone()).instance(Instance::named(2)), watching()).await;
    onceward::plumbing::time::sleep(Sweeping::default().leases_every * 2).await;
    let unknown = async || -> Vec<_> {
        in_state(&again, Some(StateKind::Unknown)).await.iter().map(|entry| entry.id).collect()
    };
    assert_eq!(unknown().await, [id]);
    // Another gateway, of that version still, leaves one later.
    let ended = store.load(shadow.id).await.unwrap().record.unwrap();
    store.swap(shadow.id, Some(ended.version), left).await.unwrap();
    assert_eq!(unknown().await.len(), 2);
    onceward::plumbing::time::sleep(SECOND * 3700).await;
    assert_eq!(unknown().await, [id]);
    onceward::plumbing::time::sleep(SECOND * 26 * 3600).await;
    let left: Vec<_> = in_state(&again, None).await.iter().map(|entry| entry.id).collect();
    assert_eq!(left, [id]);
}

/// The log lines about observed requests on a faulty store, without the lines about the store itself.
async fn logged_about(what: &'static str, policy: Policy, plan: fn(Method, u64) -> Fault) -> Vec<String> {
    let store = FaultyStore::new(memory(), move |call| plan(call.method, call.nth));
    let world = world_with(builder(store), policy).await;
    let log = Log::listen();
    for _ in 0..2 {
        let sender = world.clone();
        let sent = tokio::spawn(async move { sender.send(doing(what, "k", "{}")).await });
        assert_eq!(sent.await.is_err(), what == "panic");
        // Longer than a failed settlement is tried again.
        onceward::plumbing::time::sleep(Limits::default().settle_give_up + SECOND * 60).await;
    }
    let mut lines = log.messages();
    lines.retain(|line| !line.starts_with("the store "));
    lines
}

#[tokio::test(start_paused = true)]
async fn nothing_is_logged_about_a_shadow_that_would_be_false_because_its_request_went_through() {
    let soon = watching().retention(SECOND).grace(SECOND);
    let late = watching().lease(SECOND * 4).timeout(SECOND * 4);
    let fine = |_, _| Fault::None;
    let mut logged = Vec::new();
    for (what, policy, plan) in [
        ("status:503", watching(), fine as fn(Method, u64) -> Fault),
        ("panic", watching(), fine),
        ("slow:100", watching(), fine),
        // Its record is gone when the answer comes.
        ("slow:100", soon, fine),
        // The first swap is the identity's, the second the claim's.
        ("", watching(), |method, nth| match (method, nth) {
            (Method::Swap, 3..40) => Fault::Unavailable,
            _ => Fault::None,
        }),
        ("status:429", watching(), |method, nth| match (method, nth) {
            (Method::Swap, 3..) => Fault::Unavailable,
            _ => Fault::None,
        }),
        ("slow:50", watching(), |method, nth| match (method, nth) {
            (Method::Swap, 3..40) => Fault::Unavailable,
            _ => Fault::None,
        }),
        ("", watching(), |method, nth| match (method, nth) {
            (Method::Swap, 3..) => Fault::Refused,
            _ => Fault::None,
        }),
        ("", watching(), |method, nth| match (method, nth) {
            (Method::Swap, 1) => Fault::None,
            (Method::Swap | Method::Load, _) => Fault::Unreadable,
            _ => Fault::None,
        }),
        // Too late to begin, if it were protected.
        ("", late, |method, nth| match (method, nth) {
            (Method::Swap, 2) => Fault::Slow { before: SECOND * 3, after: SECOND / 2 },
            _ => Fault::None,
        }),
    ] {
        logged.push((what, logged_about(what, policy, plan).await));
    }
    logged.retain(|(_, lines)| !lines.is_empty());
    assert!(logged.is_empty(), "{logged:#?}");
}
