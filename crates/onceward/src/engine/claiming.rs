//! Taking a key: answered from a cache, or claimed in the store.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::{Instrument as _, Span};

use super::apply::{Patience, Start};
use super::observe::Observation;
use super::{Claimed, Engine, EngineError, Inner, Operation, Ran, Reservation, Stage};
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
        if let Some(Ran::Replayed { reply, expires_at }) = inner.replay_from_caches(id, &claim).await {
            return Ok(Claimed::Replay { reply, expires_at });
        }
        inner.accepting()?;
        let (answer, answered) = oneshot::channel();
        let work = async move {
            let owner = claim.owner.unwrap_or_else(|| inner.instance.next_owner());
            let claimed = inner.claim(id, &claim, owner, Start::Absent).await;
            // A claim does not wait: its caller gives up at once.
            if let Ok(Claimed::Refused(Refusal::InProgress { .. })) = &claimed {
                inner.observe(&claim.route, id, Observation::InProgress);
            }
            // Its named owner may ask again and be at work already: releasing would let a second one in.
            let unclaimed = if claim.owner.is_some() { Unclaimed::Keep } else { Unclaimed::GiveBack };
            // A caller that has gone away drops what it is handed, and that is what gives the key back.
            drop(answer.send(claimed.map(|claimed| Handed::new(claimed, unclaimed))));
        };
        tokio::spawn(work.instrument(Span::current()));
        answered.await.unwrap_or(Err(EngineError::Stopping)).and_then(Handed::take)
    }

    /// Takes a lapsed operation over from its last recovery point, if its terms allow that.
    ///
    /// `None` where there is nothing to take over: it runs, is settled, or is unknown now.
    pub async fn resume(&self, id: RecordId) -> Result<Option<Reservation>, EngineError> {
        let inner = self.inner.clone();
        inner.accepting()?;
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            let resumed = inner.take_over(id).await;
            let handed = resumed.map(|taken| {
                taken.map(|operation| Handed::new(Claimed::Reserved(operation), Unclaimed::GiveBack))
            });
            drop(answer.send(handed));
        });
        match answered.await.unwrap_or(Err(EngineError::Stopping))?.map(Handed::take).transpose()? {
            Some(Claimed::Reserved(reservation)) => Ok(Some(reservation)),
            Some(Claimed::Replay { .. } | Claimed::Refused(_)) | None => Ok(None),
        }
    }
}

/// What becomes of an operation that its caller did not receive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unclaimed {
    Keep,
    GiveBack,
}

/// An operation on its way to its caller. If it never arrives, it is given back: nothing was done under it.
struct Handed {
    claimed: Option<Claimed<Operation>>,
    unclaimed: Unclaimed,
    runtime: Handle,
}

impl Handed {
    fn new(claimed: Claimed<Operation>, unclaimed: Unclaimed) -> Self {
        Self { claimed: Some(claimed), unclaimed, runtime: Handle::current() }
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

impl Drop for Handed {
    fn drop(&mut self) {
        let (Some(Claimed::Reserved(operation)), Unclaimed::GiveBack) = (self.claimed.take(), self.unclaimed)
        else {
            return;
        };
        let (engine, id) = (operation.engine().clone(), operation.id());
        // If the runtime is gone and never polls this, its drop is logged.
        let reservation = Reservation::new(operation);
        let give_back = async move {
            let outcome = Outcome::Retryable("the caller left before it had begun".to_owned());
            // Where it could not be stored, that was logged.
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
        // After an ambiguous write the machine sees a running tenure; the owner token tells that it is this one.
        let Some(standing) = applied.standing.filter(|standing| standing.record.is_owned_by(owner)) else {
            self.give_back(id, owner, applied.lost);
            return Ok(None);
        };
        Ok(Some(Operation::new(self.clone(), id, standing, since_claim)))
    }

    pub(super) fn id_of(&self, claim: &Claim) -> RecordId {
        self.identity.id_of(&claim.scope, &claim.key)
    }

    /// An answer that costs the store nothing: a replay, or the refusal of another request under a completed key.
    pub(super) async fn replay_from_caches(&self, id: RecordId, claim: &Claim) -> Option<Ran> {
        let moment = self.store_clock.estimate()?;
        if let Some(record) = self.cache.get(id, moment) {
            return self.replay_of(id, claim, &record, moment);
        }
        let shared = self.shared.as_ref()?;
        let (record, as_of) = shared.get(id).await?;
        // Looked at again: the answer took a while, in which this machine may have slept.
        let moment = self.store_clock.estimate()?;
        let left = shared.believed_for(as_of, moment.now)?;
        record.published_expiry().filter(|expiry| *expiry > moment.now)?;
        let record = Arc::new(record);
        self.cache.keep_until(id, &record, instant() + left);
        self.replay_of(id, claim, &record, moment)
    }

    fn replay_of(&self, id: RecordId, claim: &Claim, record: &Record, moment: Moment) -> Option<Ran> {
        let owner = record.owner;
        let step = (self.machine)(Some(record), moment, &self.question(claim, owner));
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

    /// A claim that only asks: what it would write is not written.
    pub(super) fn question<'a>(&self, claim: &'a Claim, owner: OwnerToken) -> Event<'a> {
        Event::Claim { claim, owner, label: "", format: self.record_format }
    }

    pub(super) fn accepting(&self) -> Result<(), EngineError> {
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

    /// One claim. Its future must not be dropped: see [`Engine::run`] and [`Engine::claim`].
    pub(super) async fn claim(
        self: &Arc<Self>,
        id: RecordId,
        claim: &Claim,
        owner: OwnerToken,
        start: Start,
    ) -> Result<Claimed<Operation>, EngineError> {
        let now = self.store_clock.read();
        let since_claim = Stopwatch::start(now);
        let label = self.identity.label(id, &claim.key);
        let event = Event::Claim { claim, owner, label: &label, format: self.record_format };
        let patience = Patience::of_claim(now, self.limits.claim_patience);
        // A named owner asks again and is recognised; one that this engine named never does.
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
        let (Answer::Decision(decision), Some(standing)) = (applied.answer, applied.standing) else {
            // The machine answers a claim with a decision about a record that is there.
            return Err(EngineError::Contended { id, conflicts: 0 });
        };
        match decision {
            Decision::Execute | Decision::Resume(_) => {
                Ok(Claimed::Reserved(Operation::new(self.clone(), id, standing, since_claim)))
            }
            Decision::Replay(reply) => {
                give_back(applied.lost);
                Ok(Claimed::Replay { reply, expires_at: promised(&standing.record) })
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
