//! Unknown outcomes that a service is asked about, whose absence counts only where it is controlled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::engine::{FindResult, Observation, Observer};
use onceward::plumbing::time::sleep;
use onceward::reconcile::{FindTerms, Finding, Plan, ReconcileFuture, Reconciler, UnknownOperation};
use onceward::record::{Letter, State};
use onceward::{
    Claim, Engine, Fingerprint, Key, MemoryStore, OperationId, Outcome, Ran, RecordId, Refusal, Reply, Scope,
};
use onceward_testkit::VirtualClock;

use super::{SECOND, builder, clock, identity_of_tests};

const MINUTE: Duration = Duration::from_secs(60);
/// Longer than work may go on after its timeout.
const ABSENT_AFTER: Duration = Duration::from_secs(15 * 60);

/// A payment provider: its charges by the operations that they were sent with, and how it answers.
#[derive(Clone, Default)]
struct Provider(Arc<Mutex<Books>>);

#[derive(Default)]
struct Books {
    charges: HashMap<OperationId, Charge>,
    answers: Answers,
    asked: Vec<OperationId>,
    /// The token loses its rights after so many questions.
    loses_rights_after: Option<usize>,
}

struct Charge {
    /// Whether the search shows it already.
    listed: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Answers {
    #[default]
    Truly,
    /// A mistyped path: there never is anything.
    Nothing,
    Twice,
}

impl Provider {
    fn charge(&self, operation: OperationId, listed: bool) {
        self.0.lock().unwrap().charges.insert(operation, Charge { listed });
    }

    fn list_all(&self) {
        self.0.lock().unwrap().charges.values_mut().for_each(|charge| charge.listed = true);
    }

    fn answer(&self, answers: Answers) {
        self.0.lock().unwrap().answers = answers;
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().asked.len()
    }

    fn look(&self, operation: OperationId) -> Result<Finding, String> {
        let mut books = self.0.lock().unwrap();
        books.asked.push(operation);
        if books.loses_rights_after.is_some_and(|questions| books.asked.len() > questions) {
            return Err("403".to_owned());
        }
        let listed = books.charges.get(&operation).is_some_and(|charge| charge.listed);
        Ok(match books.answers {
            Answers::Truly if listed => Finding::Completed(Arc::new(Reply::new("found").with_status(201))),
            Answers::Truly | Answers::Nothing => Finding::Absent,
            Answers::Twice => Finding::Ambiguous("two charges".to_owned()),
        })
    }
}

impl Reconciler for Provider {
    fn find<'a>(&'a self, unknown: &'a UnknownOperation) -> ReconcileFuture<'a, Result<Finding, String>> {
        Box::pin(async move { self.look(unknown.operation) })
    }

    fn plan(&self, _: &str) -> Plan {
        let terms = FindTerms::default().attempts(3).backoff(SECOND).max_backoff(MINUTE);
        Plan::Find(terms.absent_after(Some(ABSENT_AFTER)))
    }
}

/// Counts what is worth an alarm.
#[derive(Clone, Default)]
struct Alarms(Arc<Mutex<Vec<Observation>>>);

impl Alarms {
    fn count(&self, what: Observation) -> usize {
        self.0.lock().unwrap().iter().filter(|seen| **seen == what).count()
    }
}

impl Observer for Alarms {
    fn observe(&self, _: &str, _: RecordId, what: Observation) {
        self.0.lock().unwrap().push(what);
    }
}

struct Api {
    engine: Engine,
    provider: Provider,
    alarms: Alarms,
    clock: Arc<VirtualClock>,
    store: MemoryStore,
}

impl Api {
    async fn open() -> Self {
        let clock = clock();
        let store = MemoryStore::with_clock(clock.clone());
        let (provider, alarms) = (Provider::default(), Alarms::default());
        let builder = builder(Arc::new(store.clone()), 1).clock(clock.clone());
        let builder = builder.reconciler(Arc::new(provider.clone())).observer(Arc::new(alarms.clone()));
        let engine = builder.open(identity_of_tests()).await.unwrap();
        Self { engine, provider, alarms, clock, store }
    }

    /// One whose provider already shows a charge.
    async fn with_a_known_charge() -> Self {
        let api = Self::open().await;
        assert!(matches!(api.pay("acme", "known", true).await, Ran::Executed { .. }));
        sleep(SECOND).await;
        api
    }

    fn claim(scope: &str, key: &str) -> Claim {
        Claim::new(Scope::new(scope).unwrap(), Key::new(key).unwrap(), Fingerprint::of_bytes(b"body"))
    }

    /// A charge whose answer arrives.
    async fn pay(&self, scope: &str, key: &str, listed: bool) -> Ran {
        let provider = self.provider.clone();
        let work = async move |operation: onceward::Operation| {
            provider.charge(operation.operation_id(), listed);
            Outcome::completed(Reply::new("charged").with_status(201))
        };
        self.engine.run(Self::claim(scope, key), work).await.unwrap()
    }

    /// An execution that is lost, before or after the charge.
    async fn lose(&self, key: &str, charged: bool) -> OperationId {
        let provider = self.provider.clone();
        let (told, name) = tokio::sync::oneshot::channel();
        let work = async move |operation: onceward::Operation| {
            if charged {
                provider.charge(operation.operation_id(), false);
            }
            told.send(operation.operation_id()).unwrap();
            Outcome::lost("the connection broke")
        };
        assert!(matches!(self.engine.run(Self::claim("acme", key), work).await.unwrap(), Ran::Unknown(_)));
        name.await.unwrap()
    }

    async fn state(&self, key: &str) -> State {
        let id = self.engine.id_of(&Scope::new("acme").unwrap(), &Key::new(key).unwrap());
        self.engine.load(id).await.unwrap().unwrap().record.state
    }

    async fn is_released(&self, key: &str) -> bool {
        matches!(self.state(key).await, State::FailedRetryable { .. })
    }
}

#[tokio::test(start_paused = true)]
async fn an_absence_releases_when_it_is_seen_twice_after_its_time() {
    let api = Api::with_a_known_charge().await;
    api.lose("k", false).await;
    sleep(ABSENT_AFTER - MINUTE).await;
    assert_eq!(
        api.provider.asked(),
        1,
        "it was asked once at the end, and an early absence is not controlled"
    );
    // The second absence is at least half of the time after the first.
    sleep(ABSENT_AFTER / 2).await;
    assert!(!api.is_released("k").await);
    sleep(MINUTE * 2).await;
    assert!(api.is_released("k").await);
    assert!(matches!(api.pay("acme", "k", true).await, Ran::Executed { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_charge_that_the_search_shows_late_completes_the_operation() {
    let api = Api::with_a_known_charge().await;
    api.lose("k", true).await;
    // Between the two absences.
    sleep(ABSENT_AFTER + MINUTE).await;
    api.provider.list_all();
    sleep(ABSENT_AFTER).await;
    assert!(matches!(api.pay("acme", "k", true).await, Ran::Replayed { reply, .. } if reply.body == "found"));
    assert_eq!(api.alarms.count(Observation::Contradiction), 0);
}

#[tokio::test(start_paused = true)]
async fn a_charge_that_shows_after_the_release_completes_it_with_an_alarm() {
    let api = Api::with_a_known_charge().await;
    api.lose("k", true).await;
    sleep(ABSENT_AFTER * 2).await;
    assert!(api.is_released("k").await);
    api.provider.list_all();
    sleep(ABSENT_AFTER * 2).await;
    assert!(matches!(api.state("k").await, State::Completed { .. }));
    assert_eq!(api.alarms.count(Observation::Contradiction), 1);
}

#[tokio::test(start_paused = true)]
async fn a_released_operation_is_looked_for_once_more_and_then_kept_as_long_as_an_answer() {
    let api = Api::with_a_known_charge().await;
    api.lose("k", false).await;
    sleep(ABSENT_AFTER * 2).await;
    let asked = api.provider.asked();
    sleep(ABSENT_AFTER * 2).await;
    assert_eq!(api.provider.asked(), asked + 1);
    sleep(Duration::from_secs(20 * 60 * 60)).await;
    api.engine.sweep_expired().await.unwrap();
    assert!(api.is_released("k").await);
    assert_eq!(api.provider.asked(), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_where_no_operation_is_known_to_be_there() {
    let api = Api::open().await;
    api.lose("k", false).await;
    sleep(ABSENT_AFTER * 3).await;
    let State::Unknown { letter, .. } = api.state("k").await else { panic!("it was decided") };
    assert_eq!(letter, Letter::Dead);
    assert_eq!(api.alarms.count(Observation::Found(FindResult::Uncontrolled)), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_by_a_find_that_never_finds_anything() {
    let api = Api::with_a_known_charge().await;
    api.provider.answer(Answers::Nothing);
    api.lose("k", false).await;
    sleep(ABSENT_AFTER * 3).await;
    assert!(matches!(api.state("k").await, State::Unknown { letter: Letter::Dead, .. }));
    assert!(api.alarms.count(Observation::Found(FindResult::Uncontrolled)) > 0);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_was_completed_later_is_no_control() {
    let api = Api::open().await;
    api.lose("k", false).await;
    sleep(SECOND).await;
    assert!(matches!(api.pay("acme", "later", true).await, Ran::Executed { .. }));
    sleep(ABSENT_AFTER * 3).await;
    assert!(matches!(api.state("k").await, State::Unknown { letter: Letter::Dead, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_loses_its_rights_between_the_control_and_the_find_releases_nothing() {
    let api = Api::with_a_known_charge().await;
    api.lose("k", false).await;
    // The question at the end, the one that is controlled, and the control itself.
    api.provider.0.lock().unwrap().loses_rights_after = Some(3);
    sleep(ABSENT_AFTER * 3).await;
    let State::Unknown { letter, .. } = api.state("k").await else { panic!("it was decided") };
    assert_eq!(letter, Letter::Live, "a service that cannot be asked is no attempt");
}

#[tokio::test(start_paused = true)]
async fn two_charges_for_one_operation_are_a_dead_letter_and_never_a_finding() {
    let api = Api::with_a_known_charge().await;
    api.provider.answer(Answers::Twice);
    api.lose("k", true).await;
    sleep(SECOND).await;
    assert!(matches!(api.state("k").await, State::Unknown { letter: Letter::Dead, .. }));
}

#[tokio::test(start_paused = true)]
async fn the_control_is_of_the_same_scope_where_there_is_one() {
    let api = Api::open().await;
    for (scope, key) in [("other", "a"), ("acme", "b"), ("other", "c")] {
        api.pay(scope, key, true).await;
        sleep(SECOND).await;
    }
    let lost = api.lose("k", false).await;
    sleep(ABSENT_AFTER * 2).await;
    assert!(api.is_released("k").await);
    let own = api.engine.id_of(&Scope::new("acme").unwrap(), &Key::new("b").unwrap());
    let asked = api.provider.0.lock().unwrap().asked.clone();
    let controls: Vec<_> =
        asked.into_iter().filter(|asked| *asked != lost).map(|asked| asked.record()).collect();
    assert_eq!(controls, [own, own]);
}

#[tokio::test(start_paused = true)]
async fn another_engine_goes_on_with_an_absence_that_was_counted() {
    let api = Api::with_a_known_charge().await;
    api.lose("k", false).await;
    sleep(ABSENT_AFTER + MINUTE).await;
    drop(api.engine);
    let builder = builder(Arc::new(api.store.clone()), 2).clock(api.clock.clone());
    let engine = builder.reconciler(Arc::new(api.provider.clone())).open(identity_of_tests()).await.unwrap();
    sleep(ABSENT_AFTER).await;
    let ran = engine.run(Api::claim("acme", "k"), async |_| Outcome::completed(Reply::new("once"))).await;
    assert!(matches!(ran.unwrap(), Ran::Executed { .. }));
}

#[tokio::test(start_paused = true)]
async fn retries_are_refused_until_the_absence_is_proven() {
    let api = Api::with_a_known_charge().await;
    api.lose("k", false).await;
    sleep(ABSENT_AFTER).await;
    let ran = api.pay("acme", "k", true).await;
    assert!(matches!(ran, Ran::Refused(Refusal::Unknown { letter: Letter::Live, .. })), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_control_that_the_service_has_forgotten_is_replaced_by_another() {
    let api = Api::with_a_known_charge().await;
    api.lose("first", false).await;
    sleep(ABSENT_AFTER * 2).await;
    assert!(api.is_released("first").await);
    assert!(matches!(api.pay("acme", "newer", true).await, Ran::Executed { .. }));
    let known = api.engine.id_of(&Scope::new("acme").unwrap(), &Key::new("known").unwrap());
    api.provider.0.lock().unwrap().charges.retain(|charged, _| charged.record() != known);
    sleep(SECOND).await;
    api.lose("second", false).await;
    sleep(ABSENT_AFTER * 3).await;
    assert!(api.is_released("second").await);
}
