//! The loop that asks about what is due, and one find from its question to the applied finding.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::control::{CONTROLS_MAX, Controls};
use super::{
    CompletedOperation, Execution, FindTerms, Finding, Plan, Reconciler, Reconciling, UnknownOperation,
};
use crate::engine::apply::{Applied, Patience, Start, StoredRecord};
use crate::engine::attach::{LocalTenure, WakeOnDrop};
use crate::engine::observe::{FindResult, Observation};
use crate::engine::{Engine, EngineError, Inner, Operation, Stage, log};
use crate::event::{Answer, Control, Event, FindStart};
use crate::outcome::{Outcome, Unsure};
use crate::record::{Fence, Letter, Naming, Receipts, Record, State};
use crate::store::{Cursor, Due, Entry, Scan, Which};
use crate::time::{instant, sleep};
use crate::{RecordId, Timestamp};

/// Completions whose receipts are checked at once.
const CHECKS: usize = 2;
/// Completions whose receipts wait to be checked, or are. One beyond is not checked.
const CHECKS_WAITING: usize = 256;
/// How often a receipt is tried to be checked. The pause before the second time is doubled each further time.
const CHECK_TRIES: u32 = 6;
const CHECK_PAUSE: Duration = Duration::from_secs(1);

/// Routes whose outages are logged. Routes are configured, and few.
const ROUTES_LOGGED: usize = 1024;

/// An absence needs itself, its controls, and itself once more.
const FINDS_PER_ABSENCE: u32 = 2 + CONTROLS_MAX;

/// Who decides in a verdict of this loop.
pub(super) const BY: &str = "reconciliation";

/// Who finds out, and how many do so now.
pub(in crate::engine) struct Finders {
    reconciler: Option<Arc<dyn Reconciler>>,
    pub(in crate::engine) reconciling: Reconciling,
    places: Arc<Semaphore>,
    /// For checks of completions, so that they never keep a find waiting.
    checks: Arc<Semaphore>,
    pub(super) controls: Controls,
    checks_waiting: Arc<Semaphore>,
    /// The routes whose last find got no answer, so that an outage is logged when it begins and when it ends.
    unasked: Mutex<HashSet<String>>,
}

impl Finders {
    pub(in crate::engine) fn new(reconciler: Option<Arc<dyn Reconciler>>, reconciling: Reconciling) -> Self {
        let places = Arc::new(Semaphore::new(reconciling.finders.min(Semaphore::MAX_PERMITS)));
        let [checks, checks_waiting] = [CHECKS, CHECKS_WAITING].map(|count| Arc::new(Semaphore::new(count)));
        let controls = Controls::default();
        Self { reconciler, reconciling, places, checks, controls, checks_waiting, unasked: Mutex::default() }
    }

    /// How the operations of a route are found out. Where the reconciler panics, nothing finds them out.
    pub(in crate::engine) fn plan(&self, route: &str) -> Plan {
        let Some(reconciler) = &self.reconciler else {
            return Plan::GiveUpAfter(self.reconciling.give_up_after_on(route));
        };
        catch_unwind(AssertUnwindSafe(|| reconciler.plan(route))).unwrap_or_else(|_| {
            tracing::error!(
                route,
                next = "see to the reconciler: until then the outcomes are found out by a person only",
                "the reconciler panicked when it was asked how a route's operations are found out"
            );
            Plan::Leave
        })
    }

    /// Logs when the finds of a route begin to fail, and when one is answered again.
    fn log_reach(&self, route: &str, found: &Result<Finding, String>) {
        // A panic while the lock is held loses a log line at worst.
        let mut unasked = self.unasked.lock().unwrap_or_else(PoisonError::into_inner);
        match found {
            Err(why) if unasked.len() < ROUTES_LOGGED && unasked.insert(route.to_owned()) => {
                log::cannot_be_asked(route, why);
            }
            Ok(_) if unasked.remove(route) => log::can_be_asked(route),
            Ok(_) | Err(_) => {}
        }
    }

    pub(in crate::engine) fn reconciler(&self) -> Option<&Arc<dyn Reconciler>> {
        self.reconciler.as_ref()
    }
}

/// A place for a find that is about to begin.
pub(in crate::engine) struct HeldPlace {
    place: OwnedSemaphorePermit,
    terms: FindTerms,
}

impl fmt::Debug for Finders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finders").field("reconciling", &self.reconciling).finish_non_exhaustive()
    }
}

impl Engine {
    /// Asks about every operation that is due now, and returns when every finding is applied. This also happens in the
    /// background.
    pub async fn reconcile(&self) -> Result<(), EngineError> {
        let finders = &self.inner.finders;
        let all = u32::try_from(finders.reconciling.finders.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let mut after = None;
        loop {
            let passed = pass(&self.inner, after).await?;
            // Every place is free when every find has ended.
            drop(finders.places.acquire_many(all).await);
            after = match passed {
                Passed::Busy => None,
                Passed::Page(Some(next)) => Some(next),
                Passed::Page(None) => return Ok(()),
            };
        }
    }
}

/// Starts the loop. It holds the engine weakly between passes, and so ends with it.
pub(in crate::engine) fn start(inner: &Arc<Inner>) {
    tokio::spawn(keep_finding(Arc::downgrade(inner), inner.finders.reconciling.every));
}

async fn keep_finding(inner: Weak<Inner>, every: Duration) {
    let mut after = None;
    loop {
        sleep(every).await;
        let Some(inner) = inner.upgrade() else { return };
        if *inner.stop.borrow() != Stage::Open {
            return;
        }
        after = match pass(&inner, after).await {
            Ok(Passed::Page(next)) => next,
            Ok(Passed::Busy) => None,
            Err(error) => {
                tracing::debug!(%error, "unknown outcomes could not be listed, and are asked about later");
                None
            }
        };
    }
}

/// How far a pass came.
enum Passed {
    /// Through its page, behind which the next one begins.
    Page(Option<Cursor>),
    /// Every finder is busy. The rest is still due at the next pass.
    Busy,
}

/// One page of what is due.
async fn pass(inner: &Arc<Inner>, after: Option<Cursor>) -> Result<Passed, EngineError> {
    let scan = Scan { which: Which::Due(Due::Reconcile), after, limit: inner.sweeping.batch };
    let sent = instant();
    let page = inner.scan(scan).await?;
    inner.store_clock.saw(page.now, sent);
    for Entry { id, version, record } in page.entries {
        let record = match record {
            Ok(record) => record,
            Err(why) => {
                inner.observe("", id, Observation::StoreError);
                if inner.outages.is_first_report(id) {
                    log::unreadable(log::About::new(id, None), &why);
                }
                continue;
            }
        };
        let stored = StoredRecord { record: Arc::new(record), version };
        match inner.plan_of(&stored.record) {
            Plan::Leave => {}
            Plan::GiveUpAfter(after) => inner.give_up(id, stored, after).await,
            Plan::Find(terms) => {
                let Ok(place) = inner.finders.places.clone().try_acquire_owned() else {
                    return Ok(Passed::Busy);
                };
                ask(inner, place, (id, stored), FindStart::WhenDue, terms).await;
            }
        }
    }
    Ok(Passed::Page(page.next))
}

/// Holds one operation for a finder, and starts it.
async fn ask(
    inner: &Arc<Inner>,
    place: OwnedSemaphorePermit,
    (id, stored): (RecordId, StoredRecord),
    start: FindStart,
    terms: FindTerms,
) {
    let Some(reconciler) = inner.finders.reconciler.clone() else { return };
    let (fence, hold) = (stored.record.fence, inner.hold(&terms));
    let now = inner.store_clock.read();
    let patience = Patience::of_claim(now, inner.limits.claim_patience);
    let event = Event::Find { fence, hold, start };
    match inner.apply(id, Start::Pinned(stored), &event, patience).await {
        Ok(Applied { answer: Answer::Applied, stored: Some(held), .. }) => {
            let local = inner.finding.begin(id);
            tokio::spawn(find(inner.clone(), (place, local), (reconciler, terms), (id, held)));
        }
        // Another engine holds it, or it is known by now.
        Ok(_) => {}
        Err(failed) => {
            tracing::debug!(%id, error = %failed.error, "an unknown outcome was not held for a find, and is asked about later");
        }
    }
}

/// Looks once more for an operation that was released because there was no trace of it, if that is due.
pub(in crate::engine) async fn ask_once_more(inner: &Arc<Inner>, id: RecordId, stored: StoredRecord) {
    let Plan::Find(terms) = inner.plan_of(&stored.record) else { return };
    // Where every finder is busy, the next sweep comes back to it.
    let Ok(place) = inner.finders.places.clone().try_acquire_owned() else { return };
    ask(inner, place, (id, stored), FindStart::WhenDue, terms).await;
}

/// One find, from the question to the applied finding. Callers that wait for the operation are woken at its end.
async fn find(
    inner: Arc<Inner>,
    (place, (finding_here, wake)): (OwnedSemaphorePermit, (LocalTenure, WakeOnDrop)),
    (reconciler, terms): (Arc<dyn Reconciler>, FindTerms),
    (id, held): (RecordId, StoredRecord),
) {
    let (fence, route) = (held.record.fence, held.record.subject.route.clone());
    let (found, control) = tokio::select! {
        biased;
        found = inner.find_out(&*reconciler, id, held.record.clone(), &terms) => found,
        // The hold ends by itself, and another engine asks then.
        () = inner.stopped() => return,
    };
    inner.observe(&route, id, Observation::Found(FindResult::of(&found)));
    // That it happened is true whatever became of the record; everything else is about the record as it was held.
    let start = match &found {
        Ok(Finding::Completed(_)) => Start::LastWritten(held),
        Ok(_) | Err(_) => Start::Pinned(held),
    };
    let event = Event::Found { fence, finding: found, control, terms, by: BY };
    let now = inner.store_clock.read();
    let patience = Patience::until(now, now.at + inner.limits.settle_patience);
    if let Err(failed) = inner.apply(id, start, &event, patience).await {
        tracing::debug!(%id, error = %failed.error, "a finding could not be stored, and is asked for again");
    }
    drop((wake, finding_here, place));
}

impl Inner {
    /// How an unknown operation is found out. One of another namespace is left to the engines of that namespace.
    pub(in crate::engine) fn plan_of(&self, record: &Record) -> Plan {
        if record.subject.is_shadow() {
            return Plan::Leave;
        }
        let plan = match self.finders.plan(&record.subject.route) {
            // Work may go on for so long after its timeout.
            Plan::Find(terms) => {
                Plan::Find(terms.absent_after(terms.absent_after.map(|after| after.max(self.limits.linger))))
            }
            plan @ (Plan::GiveUpAfter(_) | Plan::Leave) => plan,
        };
        match (record.namespace(), record.naming) {
            (Some(namespace), Naming::Windowed) if namespace == self.namespace => plan,
            (Some(namespace), _) if namespace != self.namespace => Plan::Leave,
            // Nothing tells whose it is, because it was claimed by a version that could find nothing out. Or its id is that of every
            // window of its key, so that what is found can be about another one.
            (None, _) | (Some(_), Naming::Bare | Naming::Windowed) => {
                Plan::GiveUpAfter(self.finders.reconciling.give_up_after_on(&record.subject.route))
            }
        }
    }

    async fn give_up(&self, id: RecordId, stored: StoredRecord, after: Duration) {
        let patience = Patience::of_claim(self.store_clock.read(), self.limits.claim_patience);
        let event = Event::GiveUp { after };
        if let Err(failed) = self.apply(id, Start::Pinned(stored), &event, patience).await {
            tracing::debug!(%id, error = %failed.error, "an unknown outcome was not given up, which is tried again later");
        }
    }

    /// Takes a place for the find that follows an unknown outcome, which other engines then leave alone for a while.
    pub(in crate::engine) fn hold_for_finder(
        &self,
        operation: &Operation,
        outcome: Outcome,
    ) -> (Outcome, Option<HeldPlace>) {
        // Most outcomes are known, and cost nothing here.
        let unsure = match outcome {
            Outcome::Unknown(unsure) if unsure.find_after.is_zero() => unsure,
            Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Voided { .. } | Outcome::Unknown(_) => {
                return (outcome, None);
            }
        };
        let plan = operation.read(|record| self.plan_of(record));
        match (plan, self.finders.places.clone().try_acquire_owned()) {
            (Plan::Find(terms), Ok(place)) => {
                let unsure = Unsure { find_after: self.hold(&terms), ..unsure };
                (Outcome::Unknown(unsure), Some(HeldPlace { place, terms }))
            }
            (Plan::Find(_) | Plan::GiveUpAfter(_) | Plan::Leave, _) => (Outcome::Unknown(unsure), None),
        }
    }

    /// Starts the find of an operation that was settled as unknown and held.
    pub(in crate::engine) fn find_held(
        self: &Arc<Self>,
        HeldPlace { place, terms }: HeldPlace,
        id: RecordId,
        held: StoredRecord,
    ) {
        let State::Unknown { letter: Letter::Live, .. } = held.record.state else { return };
        let Some(reconciler) = self.finders.reconciler.clone() else { return };
        let local = self.finding.begin(id);
        tokio::spawn(find(self.clone(), (place, local), (reconciler, terms), (id, held)));
    }

    /// How long other finders leave an operation alone: two writes to the store lie within, besides the find.
    fn hold(&self, terms: &FindTerms) -> Duration {
        let finds = if terms.absent_after.is_some() { FINDS_PER_ABSENCE } else { 1 };
        let finds = self.finders.reconciling.find_timeout.saturating_mul(finds);
        finds.saturating_add(self.limits.claim_patience.saturating_mul(2))
    }

    /// Asks about an operation of this engine now, because its execution has ended. Where every finder is busy, the loop does.
    pub(in crate::engine) async fn find_soon(self: &Arc<Self>, id: RecordId, stored: StoredRecord) {
        let State::Unknown { letter: Letter::Live, .. } = stored.record.state else { return };
        let Plan::Find(terms) = self.plan_of(&stored.record) else { return };
        let Ok(place) = self.finders.places.clone().try_acquire_owned() else { return };
        ask(self, place, (id, stored), FindStart::Now, terms).await;
    }

    /// The reconciler's finding, and whether it was controlled: an absence is, where it would count.
    async fn find_out(
        &self,
        reconciler: &dyn Reconciler,
        id: RecordId,
        record: Arc<Record>,
        terms: &FindTerms,
    ) -> (Result<Finding, String>, Control) {
        let found = self.ask_reconciler(reconciler, id, record.clone(), Execution::MayGoOn).await;
        let is_absence = found.as_ref().is_ok_and(Finding::is_absence);
        if !is_absence || !self.absence_would_count(&record, terms) {
            return (found, Control::None);
        }
        let asked_at = match self.asked_at().await {
            Ok(asked_at) => asked_at,
            Err(why) => return (Err(why), Control::None),
        };
        let (operation, fence) = (record.operation(id), record.fence);
        let unknown = UnknownOperation { operation, fence, record, execution: Execution::MayGoOn, asked_at };
        // Without a control this is no absence any more.
        (self.sized(self.controlled(reconciler, &unknown).await), Control::Made)
    }

    /// After a release only a trace would mean anything.
    fn absence_would_count(&self, record: &Record, terms: &FindTerms) -> bool {
        let from = terms.absent_after.and_then(|after| record.absence_counts_from(after));
        let now = self.store_clock.estimate().map(|at| at.expiry_now);
        matches!(record.state, State::Unknown { .. }) && from.zip(now).is_some_and(|(from, now)| from <= now)
    }

    /// The reconciler's finding, within the limits of time and size.
    pub(in crate::engine) async fn ask_reconciler(
        &self,
        reconciler: &dyn Reconciler,
        id: RecordId,
        record: Arc<Record>,
        execution: Execution,
    ) -> Result<Finding, String> {
        if record.naming == Naming::Bare {
            return Err(
                "its id does not name its window, because a record of format 1 was begun with".to_owned()
            );
        }
        let (operation, fence, asked_at) = (record.operation(id), record.fence, self.asked_at().await?);
        let unknown = UnknownOperation { operation, fence, record, execution, asked_at };
        let found = self.limited(async { reconciler.find(&unknown).await }).await;
        self.finders.log_reach(&unknown.record.subject.route, &found);
        self.sized(found)
    }

    /// The store's time, within the time of a find.
    pub(in crate::engine) async fn asked_at(&self) -> Result<Timestamp, String> {
        let asked = async {
            self.store_time().await.map_err(|error| format!("the store's time is not known: {error}"))
        };
        self.limited(asked).await
    }

    pub(in crate::engine) fn sized(&self, found: Result<Finding, String>) -> Result<Finding, String> {
        match found {
            Ok(Finding::Completed(reply)) => Ok(match self.check_size(&reply) {
                Ok(()) => Finding::Completed(reply),
                Err(error) => {
                    Finding::DoneNotKept(format!("it happened, and its answer cannot be kept: {error}"))
                }
            }),
            other => other,
        }
    }

    /// Within the time of a find. A reconciler that panics must not end the loop, and its state is its own.
    pub(in crate::engine) async fn limited<T>(
        &self,
        asked: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let limit = self.finders.reconciling.find_timeout;
        tokio::select! {
            biased;
            // The panic's own text may hold anything, so it is left to the panic hook.
            answered = AssertUnwindSafe(asked).catch_unwind() => {
                answered.unwrap_or_else(|_| Err("the reconciler panicked".to_owned()))
            }
            () = sleep(limit) => Err(format!("it took longer than {limit:?}")),
        }
    }

    /// Reports work whose owner said that it was done to the reconciler, so that its receipt is checked.
    pub(in crate::engine) fn check_receipt(self: &Arc<Self>, id: RecordId, fence: Fence, record: &Record) {
        // A tenure of another window says nothing about this one.
        let is_own = record.opened <= fence && fence <= record.fence;
        if !is_own || record.receipts() == Receipts::None || !matches!(self.plan_of(record), Plan::Find(_)) {
            return;
        }
        let Some(reconciler) = self.finders.reconciler.clone() else { return };
        let Ok(waiting) = self.finders.checks_waiting.clone().try_acquire_owned() else { return };
        // Many may wait, and a reply can be large.
        let record = Arc::new(record.without_reply());
        let inner = self.clone();
        tokio::spawn(async move {
            let checked = inner.check_until_known(&*reconciler, id, (fence, record));
            tokio::select! {
                biased;
                () = checked => {}
                () = inner.stopped() => {}
            }
            drop(waiting);
        });
    }

    async fn check_until_known(
        &self,
        reconciler: &dyn Reconciler,
        id: RecordId,
        (fence, record): (Fence, Arc<Record>),
    ) {
        let operation = record.operation(id);
        let mut pause = CHECK_PAUSE;
        for _ in 0..CHECK_TRIES {
            let checked = async {
                let checked_at = self.asked_at().await?;
                let completed = CompletedOperation { operation, fence, record: record.clone(), checked_at };
                let Ok(_place) = self.finders.checks.acquire().await else { return Ok(()) };
                self.limited(async { reconciler.completed(&completed).await }).await
            };
            match checked.await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%operation, error, "a receipt could not be checked yet"),
            }
            sleep(pause).await;
            pause *= 2;
        }
        tracing::warn!(
            %operation,
            route = record.subject.route,
            next = "see to the database of the receipts: later completions are checked again",
            "it was not checked whether a completed operation has its receipt, because its table could not be asked"
        );
    }
}

/// Whether an owner that ends with this outcome must have committed a receipt: it said that the work was done, and 4xx answers need
/// none.
pub(in crate::engine) fn claims_receipt(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Completed(reply) => !(400..500).contains(&reply.status),
        Outcome::Unknown(_) => outcome.is_done(),
        Outcome::Retryable(_) | Outcome::Voided { .. } => false,
    }
}
