//! Taking a key: answered from a cache, or claimed in the store.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::{Instrument as _, Span};

use super::apply::{Patience, Start};
use super::observe::Observation;
use super::{Claimed, Engine, EngineError, Inner, Operation, Ran, Reservation, SeenOperation, Stage};
use crate::claim::Claim;
use crate::event::{Answer, Decision, Event, Moment, Refusal, Write};
use crate::outcome::Outcome;
use crate::record::Record;
use crate::time::{Stopwatch, instant};
use crate::{RecordId, Timestamp, entropy::OwnerToken};

impl Engine {
    /// Takes a key without doing the work: for callers that execute elsewhere and settle later.
    ///
    /// Like [`Engine::run`] this is detached: where the caller goes away before it has its reservation, the key is released.
    pub async fn claim(&self, claim: Claim) -> Result<Claimed, EngineError> {
        let inner = self.inner.clone();
        let id = inner.id_of(&claim);
        let seen = SeenOperation::default();
        if let Some(Ran::Replayed { reply, expires_at }) = inner.replay_from_caches(id, &claim, &seen).await {
            return Ok(Claimed::Replay { reply, expires_at });
        }
        inner.check_accepting()?;
        let (answer, answered) = oneshot::channel();
        let work = async move {
            let owner = claim.owner.unwrap_or_else(|| inner.instance.next_owner());
            let claimed = inner.claim(id, &claim, owner, Start::Absent, &seen).await;
            // `claim` does not wait for another execution, so this is the end of the request.
            if let Ok(Claimed::Refused(Refusal::InProgress { .. })) = &claimed {
                inner.observe(&claim.route, id, Observation::InProgress);
            }
            // A named owner may claim again, and may be at work already: a release would let a second owner in.
            let if_undelivered =
                if claim.owner.is_some() { IfUndelivered::Keep } else { IfUndelivered::Release };
            // If the caller has gone, the delivery is dropped, which releases the key.
            drop(answer.send(claimed.map(|claimed| Delivery::new(claimed, if_undelivered))));
        };
        tokio::spawn(work.instrument(Span::current()));
        answered.await.unwrap_or(Err(EngineError::Stopping)).and_then(Delivery::take)
    }

    /// Takes a lapsed operation over from its last recovery point, if its terms allow that.
    ///
    /// `None` where there is nothing to take over: it runs, is settled, or is unknown now.
    pub async fn resume(&self, id: RecordId) -> Result<Option<Reservation>, EngineError> {
        let inner = self.inner.clone();
        inner.check_accepting()?;
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            let resumed = inner.take_over(id).await;
            let delivery = resumed.map(|taken| {
                taken.map(|operation| Delivery::new(Claimed::Reserved(operation), IfUndelivered::Release))
            });
            drop(answer.send(delivery));
        });
        match answered.await.unwrap_or(Err(EngineError::Stopping))?.map(Delivery::take).transpose()? {
            Some(Claimed::Reserved(reservation)) => Ok(Some(reservation)),
            Some(Claimed::Replay { .. } | Claimed::Refused(_)) | None => Ok(None),
        }
    }
}

/// What happens to an operation that its caller does not receive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfUndelivered {
    Keep,
    Release,
}

/// A claim's result on its way to the caller. An operation that is not received is released, because nothing was done.
struct Delivery {
    claimed: Option<Claimed<Operation>>,
    if_undelivered: IfUndelivered,
    runtime: Handle,
}

impl Delivery {
    fn new(claimed: Claimed<Operation>, if_undelivered: IfUndelivered) -> Self {
        Self { claimed: Some(claimed), if_undelivered, runtime: Handle::current() }
    }

    fn take(mut self) -> Result<Claimed, EngineError> {
        match self.claimed.take() {
            Some(Claimed::Reserved(operation)) => Ok(Claimed::Reserved(Reservation::new(operation))),
            Some(Claimed::Replay { reply, expires_at }) => Ok(Claimed::Replay { reply, expires_at }),
            Some(Claimed::Refused(refusal)) => Ok(Claimed::Refused(refusal)),
            None => Err(EngineError::Stopping),
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let (Some(Claimed::Reserved(operation)), IfUndelivered::Release) =
            (self.claimed.take(), self.if_undelivered)
        else {
            return;
        };
        let (engine, id) = (operation.engine().clone(), operation.id());
        // If the runtime is shut down before it polls the task, dropping the reservation logs a warning.
        let reservation = Reservation::new(operation);
        let give_back = async move {
            let outcome = Outcome::Retryable("the caller left before it had begun".to_owned());
            // A failed settlement was logged already.
            if reservation.settle(outcome).await.is_ok() {
                engine.observe("", id, Observation::GivenBack);
            }
        };
        self.runtime.spawn(give_back.instrument(Span::current()));
    }
}

impl Inner {
    async fn take_over(self: &Arc<Self>, id: RecordId) -> Result<Option<Operation>, EngineError> {
        let now = self.store_clock.read();
        let since_claim = Stopwatch::start(now);
        let owner = self.instance.next_owner();
        let patience = Patience::of_claim(now, self.limits.claim_patience);
        let applied = match self.apply(id, Start::Load, &Event::Resume { owner }, patience).await {
            Ok(applied) => applied,
            Err(failed) => {
                self.give_back(id, owner, failed.lost);
                return Err(failed.into_error());
            }
        };
        // After a lost answer the machine finds a running tenure. The owner token tells whether it is this one.
        let Some(stored) = applied.stored.filter(|stored| stored.record.is_owned_by(owner)) else {
            self.give_back(id, owner, applied.lost);
            return Ok(None);
        };
        Ok(Some(Operation::new(self.clone(), id, stored, since_claim)))
    }

    pub(super) fn id_of(&self, claim: &Claim) -> RecordId {
        self.identity.id_of(&claim.scope, &claim.key)
    }

    /// An answer from memory or the shared cache: a replay, or the refusal of another request under a completed key.
    pub(super) async fn replay_from_caches(
        &self,
        id: RecordId,
        claim: &Claim,
        seen: &SeenOperation,
    ) -> Option<Ran> {
        let replay = |record: &Record, moment| {
            let ran = self.replay_of(id, claim, record, moment);
            ran.inspect(|_| seen.note(record.operation(id)))
        };
        let moment = self.store_clock.estimate()?;
        if let Some(record) = self.cache.get(id, moment) {
            return replay(&record, moment);
        }
        let shared = self.shared_cache.as_ref()?;
        let (record, as_of) = shared.get(id).await?;
        // Read again, because this machine may have been suspended while the cache was asked.
        let moment = self.store_clock.estimate()?;
        let left = shared.believed_for(as_of, moment.now)?;
        record.published_expiry().filter(|expiry| *expiry > moment.now)?;
        let record = Arc::new(record);
        self.cache.keep_until(id, &record, instant() + left);
        replay(&record, moment)
    }

    fn replay_of(&self, id: RecordId, claim: &Claim, record: &Record, moment: Moment) -> Option<Ran> {
        let owner = record.owner;
        let step = (self.machine)(Some(record), moment, &self.read_only_claim(claim, owner));
        match (step.write, step.answer) {
            (Write::Keep, Answer::Decision(Decision::Replay(reply))) => {
                self.observe(&claim.route, id, Observation::ReplayedFromCache);
                Some(Ran::Replayed { reply, expires_at: promised(record) })
            }
            (Write::Keep, Answer::Decision(Decision::Refuse(refusal @ Refusal::Mismatch(_)))) => {
                self.observe(&claim.route, id, Observation::Mismatch);
                Some(Ran::Refused(refusal))
            }
            _ => None,
        }
    }

    /// The event of a claim whose write is not carried out.
    pub(super) fn read_only_claim<'a>(&self, claim: &'a Claim, owner: OwnerToken) -> Event<'a> {
        let (format, namespace) = (self.record_format, self.namespace);
        Event::Claim { claim, owner, label: "", format, namespace }
    }

    pub(super) fn check_accepting(&self) -> Result<(), EngineError> {
        match *self.stop.borrow() {
            Stage::Open => Ok(()),
            Stage::Draining | Stage::Stopped => Err(EngineError::Stopping),
        }
    }

    pub(super) fn permit(
        &self,
        semaphore: &Arc<Semaphore>,
        what: &'static str,
        limit: usize,
    ) -> Result<OwnedSemaphorePermit, EngineError> {
        semaphore.clone().try_acquire_owned().map_err(|_| EngineError::Overloaded { what, limit })
    }

    /// Claims once. The future must not be dropped: a claim that was written must be executed or released.
    pub(super) async fn claim(
        self: &Arc<Self>,
        id: RecordId,
        claim: &Claim,
        owner: OwnerToken,
        start: Start,
        seen: &SeenOperation,
    ) -> Result<Claimed<Operation>, EngineError> {
        let now = self.store_clock.read();
        let since_claim = Stopwatch::start(now);
        let label = self.identity.label(id, &claim.key);
        let (format, namespace) = (self.record_format, self.namespace);
        let event = Event::Claim { claim, owner, label: &label, format, namespace };
        let patience = Patience::of_claim(now, self.limits.claim_patience);
        // An owner that was named by its caller may claim again, and is recognised then. One that this engine named may not.
        let give_back = |lost| {
            if claim.owner != Some(owner) {
                self.give_back(id, owner, lost);
            }
        };
        let applied = match self.apply(id, start, &event, patience).await {
            Ok(applied) => applied,
            Err(failed) => {
                give_back(failed.lost);
                return Err(failed.into_error());
            }
        };
        let (Answer::Decision(decision), Some(stored)) = (applied.answer, applied.stored) else {
            // Does not happen: the machine answers a claim with a decision, and there is a record then.
            return Err(EngineError::Contended { id, conflicts: 0 });
        };
        seen.note(stored.record.operation(id));
        match decision {
            Decision::Execute | Decision::Resume(_) => {
                Ok(Claimed::Reserved(Operation::new(self.clone(), id, stored, since_claim)))
            }
            Decision::Replay(reply) => {
                give_back(applied.lost);
                Ok(Claimed::Replay { reply, expires_at: promised(&stored.record) })
            }
            Decision::Refuse(refusal) => {
                give_back(applied.lost);
                Ok(Claimed::Refused(refusal))
            }
        }
    }
}

/// Until when a completed answer is promised.
pub(super) fn promised(record: &Record) -> Timestamp {
    record.published_expiry().unwrap_or(record.created_at)
}
