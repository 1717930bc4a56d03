//! One tenure of an operation: what its owner knows and may write.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::apply::{Applied, Failed, Patience, Start, StoredRecord};
use super::observe::{FindResult, Observation};
use super::operate::{By, Settled, settled};
use super::reconcile::{Execution, claims_receipt};
use super::{EngineError, Inner, log};
use crate::event::{Answer, Event, Finding, Moment, Refusal};
use crate::outcome::{Outcome, RecoveryPoint};
use crate::record::{Fence, Record};
use crate::time::Stopwatch;
use crate::{OperationId, RecordId};

/// The operation that work runs under: its names, its tenure, and its recovery point.
///
/// It has no method to settle: work returns its outcome to the engine, and a [`Reservation`](super::Reservation) is settled
/// once. Clones share one tenure.
#[derive(Clone)]
pub struct Operation(Arc<OperationState>);

struct OperationState {
    engine: Arc<Inner>,
    id: RecordId,
    fence: Fence,
    /// The record as it was last written under this tenure.
    stored: Mutex<StoredRecord>,
    /// Runs since the claim was sent.
    since_claim: Stopwatch,
}

impl Operation {
    pub(super) fn new(
        engine: Arc<Inner>,
        id: RecordId,
        stored: StoredRecord,
        since_claim: Stopwatch,
    ) -> Self {
        let fence = stored.record.fence;
        Self(Arc::new(OperationState { engine, id, fence, stored: Mutex::new(stored), since_claim }))
    }

    /// The id of the record, which is the same for every window of a key. [`Self::operation_id`] names one window.
    pub fn id(&self) -> RecordId {
        self.0.id
    }

    /// The operation's public name: the record and the window.
    pub fn operation_id(&self) -> OperationId {
        self.read(|record| record.operation(self.0.id))
    }

    /// The number that names this tenure. Every write presents it.
    pub fn fence(&self) -> Fence {
        self.0.fence
    }

    /// Which tenure this is: 1, or more after a Resume.
    pub fn attempt(&self) -> u32 {
        self.read(|record| record.attempt)
    }

    /// How long ago the claim was sent. Work that delays its first outside effect should check [`Self::begin_within`]
    /// instead.
    pub fn age(&self) -> Duration {
        self.0.since_claim.elapsed(&*self.0.engine.local_clock)
    }

    /// How much longer the first outside effect may be delayed; zero if it is too late.
    ///
    /// Work begins within half a lease after its claim, so that its first effect happens before the lease lapses and another
    /// owner takes over.
    pub fn begin_within(&self) -> Duration {
        (self.lease() / 2).saturating_sub(self.age())
    }

    /// The last phase that was committed. Work begins after it.
    pub fn recovery_point(&self) -> Option<RecoveryPoint> {
        self.read(|record| record.recovery_point.clone())
    }

    /// Extends the lease. Under [`Engine::run`](super::Engine::run) the engine does so by itself.
    pub async fn renew(&self) -> Result<Tenure, EngineError> {
        let event = Event::Renew { fence: self.0.fence };
        let (answer, _) = self.apply(&event, self.lease() / 4).await.map_err(|failed| failed.error)?;
        Ok(Tenure::of(&answer))
    }

    /// Notes that a phase was committed, and extends the lease.
    pub async fn checkpoint(&self, point: RecoveryPoint) -> Result<Tenure, EngineError> {
        let patience = self.0.engine.limits.settle_patience;
        let event = Event::Checkpoint { fence: self.0.fence, point };
        let (answer, _) = self.apply(&event, patience).await.map_err(|failed| failed.error)?;
        checkpointed(&answer)
    }

    /// Asks the engine's [`Reconciler`](super::reconcile::Reconciler) what became of this operation, now that its execution has
    /// ended without a usable answer. The owner settles with what this brings.
    pub async fn find(&self) -> Result<Finding, String> {
        let OperationState { engine, id, .. } = &*self.0;
        let record = self.stored_record().record;
        let Some(reconciler) = engine.finders.reconciler() else {
            return Err("the engine has no reconciler".to_owned());
        };
        let found = engine.ask_reconciler(&**reconciler, *id, record.clone(), Execution::Ended).await;
        engine.observe(&record.subject.route, *id, Observation::Found(FindResult::of(&found)));
        found
    }

    pub(super) async fn settle(&self, outcome: Outcome, patience: Duration) -> Result<Settled, EngineError> {
        let event = Event::Settle { fence: self.0.fence, outcome: outcome.clone() };
        let (answer, stored) = self.apply(&event, patience).await.map_err(|failed| failed.error)?;
        if claims_receipt(&outcome) {
            self.read(|record| self.engine().check_receipt(self.0.id, self.0.fence, record));
        }
        Ok(match (settled(&answer, stored.as_ref()), outcome) {
            // The first write was carried out and its answer lost: the second one finds its own reply.
            (Settled::Completed { reply, expires_at, by: By::Other }, Outcome::Completed(own))
                if reply == own =>
            {
                Settled::Completed { reply, expires_at, by: By::This }
            }
            (settled, _) => settled,
        })
    }

    async fn apply(
        &self,
        event: &Event<'_>,
        patience: Duration,
    ) -> Result<(Answer, Option<StoredRecord>), Failed> {
        let OperationState { engine, id, fence, .. } = &*self.0;
        let now = engine.store_clock.read();
        let patience = Patience::until(now, now.at + patience);
        let start = Start::LastWritten(self.stored().clone());
        let Applied { answer, stored, .. } = engine.apply(*id, start, event, patience).await?;
        if let Some(stored) = stored.as_ref().filter(|stored| stored.record.fence == *fence) {
            *self.stored() = stored.clone();
        }
        Ok((answer, stored))
    }

    /// Logs that the service got nothing of the request.
    #[cfg(feature = "http")]
    pub(crate) fn log_not_executed(&self, cause: &str) {
        self.log(|about| log::not_executed(about, cause));
    }

    /// Logs what a find at the end of the execution brought.
    #[cfg(feature = "http")]
    pub(crate) fn log_found_at_end(&self, cause: &str, found: FindResult) {
        self.log(|about| log::found_at_end(about, cause, found));
    }

    /// Logs a line about this operation, unless it is a shadow.
    pub(super) fn log(&self, line: impl FnOnce(log::About<'_>)) {
        self.read(|record| {
            let about = log::About::new(self.0.id, Some(record));
            if !about.shadow {
                line(about);
            }
        });
    }

    /// Reads from the record without a copy of it.
    pub(super) fn read<T>(&self, what: impl FnOnce(&Record) -> T) -> T {
        what(&self.stored().record)
    }

    /// The refusal that a retry would get from the record as it is now.
    pub(super) fn refusal(&self) -> Refusal {
        let now = self.0.engine.store_clock.estimate();
        self.read(|record| {
            let at = Moment { now: record.created_at, expiry_now: record.created_at };
            record.refusal(now.unwrap_or(at))
        })
    }

    pub(super) fn engine(&self) -> &Arc<Inner> {
        &self.0.engine
    }

    /// How long this tenure lasts without being renewed.
    pub(super) fn lease(&self) -> Duration {
        self.read(|record| record.terms.lease)
    }

    /// The record as this tenure last saw it.
    pub(super) fn stored_record(&self) -> StoredRecord {
        self.stored().clone()
    }

    // A panic while the lock is held cannot leave half a record, because it is replaced as a whole.
    fn stored(&self) -> MutexGuard<'_, StoredRecord> {
        self.0.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to an owner's checkpoint. It is a conflict only where the receipt row has the phases.
pub(super) fn checkpointed(answer: &Answer) -> Result<Tenure, EngineError> {
    match answer {
        Answer::Conflict => Err(EngineError::PhaseInReceipt),
        Answer::Decision(_)
        | Answer::Applied
        | Answer::AlreadySettled(_)
        | Answer::Fenced
        | Answer::Lapsed
        | Answer::Swept
        | Answer::Left => Ok(Tenure::of(answer)),
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("id", &self.0.id).field("fence", &self.0.fence).finish()
    }
}

/// Whether an owner still holds its tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an owner whose tenure is over must not go on"]
pub enum Tenure {
    /// It goes on.
    Held,
    /// It is over: another owner, or the sweeper, has decided.
    Over,
}

impl Tenure {
    pub(super) fn of(answer: &Answer) -> Self {
        match answer {
            Answer::Applied => Self::Held,
            Answer::Decision(_)
            | Answer::AlreadySettled(_)
            | Answer::Fenced
            | Answer::Conflict
            | Answer::Lapsed
            | Answer::Swept
            | Answer::Left => Self::Over,
        }
    }
}
