//! Taking a key: from memory, from the store, or not at all.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::apply::{Ambiguous, Applied, Patience, Start, Wrote};
use super::observe::Observation;
use super::reservation::{Held, Reservation};
use super::{Claimed, Engine, EngineError, Inner, Ran, Stage};
use crate::claim::Claim;
use crate::event::{Answer, Decision, Event, Refusal, Write};
use crate::outcome::Outcome;
use crate::record::{Record, State, Terms};
use crate::time::{Stopwatch, instant, sleep};
use crate::{OwnerToken, RecordId, Timestamp};

/// A claim that was given up is looked for at this pace, until its lease would have lapsed anyway.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(1);

impl Engine {
    /// Takes a key without doing the work: for callers that execute elsewhere and settle later.
    ///
    /// Like [`Engine::run`] this is detached: a caller that goes away before it has its reservation leaves no key
    /// behind that nobody works on.
    pub async fn claim(&self, claim: Claim) -> Result<Claimed, EngineError> {
        let inner = self.inner.clone();
        let id = inner.id_of(&claim);
        if let Some(Ran::Replayed { reply, expires_at }) = inner.replay_from_cache(id, &claim) {
            return Ok(Claimed::Replay { reply, expires_at });
        }
        inner.accepting()?;
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            let claimed = inner.claim(id, &claim, Start::Absent).await;
            let Err(Ok(Claimed::Reserved(reservation))) = answer.send(claimed) else { return };
            if claim.owner.is_some() {
                // Its named owner may ask again and be at work already: releasing would let a second one in.
                return drop(reservation.into_held());
            }
            inner.observe(&claim.route, id, Observation::GivenBack);
            let outcome = Outcome::Retryable("the caller left before it had begun".to_owned());
            if let Err(error) = reservation.settle(outcome).await {
                tracing::warn!(%id, %error, "a claim without a caller could not be given back and will lapse");
            }
        });
        answered.await.unwrap_or(Err(EngineError::Stopping))
    }

    /// Takes a lapsed operation over from its last recovery point, if its terms allow that.
    ///
    /// `None` where there is nothing to take over: it runs, is settled, or is unknown now.
    pub async fn resume(&self, id: RecordId) -> Result<Option<Reservation>, EngineError> {
        let inner = self.inner.clone();
        inner.accepting()?;
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            let Err(Ok(Some(reservation))) = answer.send(inner.take_over(id).await) else { return };
            // Nothing was done under this tenure, and the recovery point stays: the next one goes on from there.
            let outcome = Outcome::Retryable("whoever took it over left before it had begun".to_owned());
            if let Err(error) = reservation.settle(outcome).await {
                tracing::warn!(%id, %error, "a resumed operation could not be given back and will lapse");
            }
        });
        answered.await.unwrap_or(Err(EngineError::Stopping))
    }
}

impl Inner {
    async fn take_over(self: &Arc<Self>, id: RecordId) -> Result<Option<Reservation>, EngineError> {
        let watch = Stopwatch::start(&*self.local_clock);
        let owner = self.instance.next_owner();
        let patience = Patience::Claim(instant() + self.limits.claim_patience);
        let applied = match self.apply(id, Start::Load, &Event::Resume { owner }, patience).await {
            Ok(applied) => applied,
            Err(failed) => {
                if failed.ambiguous == Ambiguous::Maybe {
                    self.give_back(id, owner, Terms::default().lease);
                }
                return Err(failed.told());
            }
        };
        // After an ambiguous write the machine sees a running tenure; the owner token tells that it is this one.
        Ok(applied.stamped.filter(|stamped| is_held_by(&stamped.record, owner)).map(|stamped| {
            self.observe(&stamped.record.subject.route, id, Observation::Resumed);
            Reservation::new(Held::new(self.clone(), id, stamped, watch))
        }))
    }

    pub(super) fn id_of(&self, claim: &Claim) -> RecordId {
        self.identity.id_of(&claim.scope, &claim.key)
    }

    /// An answer that costs no read: a replay, or the refusal of another request under a completed key.
    pub(super) fn replay_from_cache(&self, id: RecordId, claim: &Claim) -> Option<Ran> {
        let moment = self.store_clock.estimate();
        let record = self.cache.get(id, moment)?;
        let owner = claim.owner.unwrap_or(record.owner);
        let step = (self.machine)(Some(&record), moment, &Event::Claim { claim, owner, label: "" });
        match (step.write, step.answer) {
            (Write::Keep, Answer::Decision(Decision::Replay(reply))) => {
                self.observe(&claim.route, id, Observation::ReplayedFromCache);
                Some(Ran::Replayed { reply, expires_at: promised(&record) })
            }
            (Write::Keep, Answer::Decision(Decision::Refuse(Refusal::Mismatch))) => {
                self.observe(&claim.route, id, Observation::Mismatch);
                Some(Ran::Refused(Refusal::Mismatch))
            }
            _ => None,
        }
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

    /// One claim. Whoever calls this must not be cancelled: see [`Engine::run`] and [`Engine::claim`].
    pub(super) async fn claim(
        self: &Arc<Self>,
        id: RecordId,
        claim: &Claim,
        start: Start,
    ) -> Result<Claimed, EngineError> {
        let watch = Stopwatch::start(&*self.local_clock);
        let owner = claim.owner.unwrap_or_else(|| self.instance.next_owner());
        let label = self.identity.label(id, &claim.key);
        let event = Event::Claim { claim, owner, label: &label };
        let patience = Patience::Claim(instant() + self.limits.claim_patience);
        let applied = match self.apply(id, start, &event, patience).await {
            Ok(applied) => applied,
            Err(failed) => {
                // A named owner asks again and is recognised; one that this engine named never does.
                if failed.ambiguous == Ambiguous::Maybe && claim.owner.is_none() {
                    self.give_back(id, owner, claim.terms.lease);
                }
                return Err(failed.told());
            }
        };
        if applied.wrote == Wrote::Record {
            self.observe_write(id, claim, &applied);
        }
        let (Answer::Decision(decision), Some(stamped)) = (applied.step.answer, applied.stamped) else {
            // The machine answers a claim with a decision about a record that is there.
            return Err(EngineError::Contended { id, conflicts: 0 });
        };
        match decision {
            Decision::Execute | Decision::Resume(_) => {
                Ok(Claimed::Reserved(Reservation::new(Held::new(self.clone(), id, stamped, watch))))
            }
            Decision::Replay(reply) => {
                self.observe(&claim.route, id, Observation::Replayed);
                Ok(Claimed::Replay { reply, expires_at: promised(&stamped.record) })
            }
            Decision::Refuse(refusal) => {
                match refusal {
                    Refusal::Mismatch => self.observe(&claim.route, id, Observation::Mismatch),
                    Refusal::Unknown { .. } => self.observe(&claim.route, id, Observation::Unknown),
                    // Told once by whoever gives up waiting, not on every poll.
                    Refusal::InProgress { .. } => {}
                }
                Ok(Claimed::Refused(refusal))
            }
        }
    }

    fn observe_write(&self, id: RecordId, claim: &Claim, applied: &Applied) {
        let state = applied.stamped.as_ref().map(|stamped| stamped.record.state.name());
        let what = match (applied.from, state) {
            (Some("failed_retryable"), Some("in_progress")) => Observation::Reclaimed,
            (Some("in_progress"), Some("in_progress")) => Observation::Resumed,
            (Some("in_progress"), _) => Observation::Lapsed,
            (_, _) => Observation::Created,
        };
        self.observe(&claim.route, id, what);
    }

    /// A claim whose answer was lost and could not be found out. If it is in the store, or arrives there late, nobody
    /// works on it: it is released under its owner token, so that the key is not wedged until the lease lapses.
    fn give_back(self: &Arc<Self>, id: RecordId, owner: OwnerToken, lease: Duration) {
        let inner = self.clone();
        tokio::spawn(async move {
            let deadline = instant() + lease;
            loop {
                if let Ok(seen) = inner.store.load(id).await {
                    inner.store_clock.saw(seen.now);
                    match seen.record {
                        Some(stamped) if is_held_by(&stamped.record, owner) => {
                            let outcome = Outcome::Retryable(
                                "the claim's answer was lost before it had begun".to_owned(),
                            );
                            let event = Event::Settle { fence: stamped.record.fence, outcome };
                            let start = Start::Held(Box::new(stamped));
                            if inner.apply(id, start, &event, Patience::Until(deadline)).await.is_ok() {
                                inner.observe("", id, Observation::GivenBack);
                                return;
                            }
                        }
                        // Somebody else's claim stands there: ours can no longer be written.
                        Some(_) => return,
                        None => {}
                    }
                }
                if instant() >= deadline {
                    return;
                }
                sleep(GIVE_BACK_EVERY.min(lease / 4)).await;
            }
        });
    }
}

fn is_held_by(record: &Record, owner: OwnerToken) -> bool {
    record.owner == owner && matches!(record.state, State::InProgress { .. })
}

/// Until when a completed answer is promised.
pub(super) fn promised(record: &Record) -> Timestamp {
    record.published_expiry().unwrap_or(record.created_at)
}
