//! What owners in other processes, reconciliation and operators can do to an operation by its id.

use std::sync::Arc;
use std::time::Duration;

use super::apply::{Applied, Patience, Start, StoredRecord};
use super::claiming::promised;
use super::operation::{Tenure, checkpointed};
use super::outage::Call;
use super::reconcile::{Execution, Plan, UnknownOperation, claims_receipt};
use super::{Engine, EngineError, Inner, Ran, SeenOperation, log};
use crate::claim::Claim;
use crate::codec::Unreadable;
use crate::event::{
    Answer, Barrier, Control, Decision, Event, FindTerms, Finding, Moment, Resolution, Write,
};
use crate::outcome::{Outcome, RecoveryPoint, Reply};
use crate::record::{Fence, Receipts, Record, State};
use crate::store::{Page, Scan, Seen, Stamped, StoreError, Swapped, Version};
use crate::time::{Instant, instant};
use crate::{Key, RecordId, Scope, Timestamp, entropy::OwnerToken};

/// How far the bounds of the store's time may be apart where it is only noted.
const CLOSE_ENOUGH: Duration = Duration::from_secs(1);

/// The state of an operation after an owner settled it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The work was done, and every caller gets this answer.
    Completed {
        /// The answer in the record.
        reply: Arc<Reply>,
        /// Until when it is promised.
        expires_at: Timestamp,
        /// Whose answer it is.
        by: By,
    },
    /// The work was not done, and the key is released.
    Retryable,
    /// The outcome is unknown.
    Unknown,
    /// The tenure was over, and the state was not changed.
    Fenced,
}

/// Whose answer a completed operation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// This settlement's.
    This,
    /// An earlier one's.
    Other,
}

/// The result of a change by an operator or reconciliation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operated {
    /// It was applied. Holds the record as it is now.
    Applied(Stamped),
    /// It cannot be applied to this record, or there is none.
    Conflict(Option<Stamped>),
}

/// An operator's decision about an unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolve<'a> {
    /// What the outcome was.
    pub verdict: Resolution,
    /// The name of the operator.
    pub by: &'a str,
    /// Why, in the operator's words.
    pub reason: &'a str,
    /// The version of the record that the decision is about; another one in the store is a conflict. `None` decides about the
    /// current execution.
    pub seen: Option<Version>,
}

impl Engine {
    /// How many of the store's pages one call of [`Self::list`] reads to find a record. A page covers some ten thousand records,
    /// so a call covers about a million, which takes seconds.
    pub const LIST_PAGES_MAX: usize = 100;

    /// The record with this id, and its version.
    pub async fn load(&self, id: RecordId) -> Result<Option<Stamped>, EngineError> {
        let (seen, sent) = self.inner.load(id).await?;
        self.inner.store_clock.saw(seen.now, sent);
        Ok(seen.record)
    }

    /// The record of a key in a scope. `None` where its window is over as well, because the key is free then.
    pub async fn look_up(&self, scope: &Scope, key: &Key) -> Result<Option<Record>, EngineError> {
        let id = self.inner.identity.id_of(scope, key);
        Ok(self.look_up_now(id).await?.map(|(record, _)| record))
    }

    /// The record with this id, unless its window is over, and the present moment.
    pub(crate) async fn look_up_now(&self, id: RecordId) -> Result<Option<(Record, Moment)>, EngineError> {
        let (seen, sent) = self.inner.load(id).await?;
        let moment = self.inner.store_clock.saw(seen.now, sent);
        let record = seen.record.map(|stamped| stamped.record).filter(|record| !record.is_spent(moment));
        Ok(record.map(|record| (record, moment)))
    }

    /// Lists records of every namespace in the store. The store's identity, which is kept as a record, is left out.
    ///
    /// A page of the store may be empty and still have a next one: where the identity was its only record, or where none of the
    /// records that it covers matched. Then the search goes on, for at most [`Self::LIST_PAGES_MAX`] pages. So an empty page is
    /// the end only where it has no next one.
    pub async fn list(&self, mut scan: Scan) -> Result<Page, EngineError> {
        let mut pages = 0;
        loop {
            let mut page = self.inner.scan(scan.clone()).await?;
            page.entries.retain(|entry| entry.id != RecordId::IDENTITY);
            pages += 1;
            // A cursor that does not move would make this loop endless.
            let goes_on = page.next.is_some() && page.next != scan.after;
            if !page.entries.is_empty() || !goes_on || pages == Self::LIST_PAGES_MAX {
                return Ok(page);
            }
            scan.after = page.next;
        }
    }

    /// Extends the lease of an owner in another process.
    pub async fn renew(&self, id: RecordId, fence: Fence) -> Result<Tenure, EngineError> {
        Ok(Tenure::of(&self.inner.operate(id, &Event::Renew { fence }).await?.answer))
    }

    /// Records a recovery point for an owner in another process, and extends the lease.
    pub async fn checkpoint(
        &self,
        id: RecordId,
        fence: Fence,
        point: RecoveryPoint,
    ) -> Result<Tenure, EngineError> {
        checkpointed(&self.inner.operate(id, &Event::Checkpoint { fence, point }).await?.answer)
    }

    /// Stores the outcome for an owner in another process, and ends its tenure.
    pub async fn settle(&self, id: RecordId, fence: Fence, outcome: Outcome) -> Result<Settled, EngineError> {
        let outcome = self.inner.within_limits(outcome);
        let claims_receipt = claims_receipt(&outcome);
        let applied = self.inner.operate(id, &Event::Settle { fence, outcome }).await?;
        if let Some(stored) = applied.stored.as_ref().filter(|_| claims_receipt) {
            self.inner.check_receipt(id, fence, &stored.record);
        }
        Ok(settled(&applied.answer, applied.stored.as_ref()))
    }

    /// Records evidence from a webhook or a find that the work was done.
    ///
    /// With a fence, the evidence is about that execution only: a record with another one is a conflict.
    pub async fn testify(
        &self,
        id: RecordId,
        fence: Option<Fence>,
        reply: Arc<Reply>,
        by: &str,
    ) -> Result<Operated, EngineError> {
        self.inner.check_size(&reply)?;
        self.inner.operate(id, &Event::Evidence { fence, reply, by: by.to_owned() }).await.map(Operated::of)
    }

    /// Records that a find by other means than this engine's [`Reconciler`](super::reconcile::Reconciler) could not tell what
    /// happened. The next find is due after a pause. After `terms.attempts` of them there is none, and the outcome waits for a
    /// person.
    pub async fn inconclusive(
        &self,
        id: RecordId,
        fence: Fence,
        terms: FindTerms,
        why: &str,
    ) -> Result<Operated, EngineError> {
        let finding = Ok(Finding::Inconclusive(why.to_owned()));
        let event = Event::Found { fence, finding, control: Control::None, terms, by: "a find" };
        self.inner.operate(id, &event).await.map(Operated::of)
    }

    /// Decides an unknown outcome. A damaged record is replaced by the verdict, so that its key is answered again.
    pub async fn resolve(&self, id: RecordId, resolve: Resolve<'_>) -> Result<Operated, EngineError> {
        if let Resolution::Completed(reply) = &resolve.verdict {
            self.inner.check_size(reply)?;
        }
        self.inner.refuse_identity(id)?;
        let patience = self.inner.patience();
        let found = match self.inner.load_stored(id, patience).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Operated::Conflict(None)),
            // A record of a newer format is not damaged: the version that wrote it can read it.
            Err(StoreError::Unreadable { version, why: Unreadable::Damaged { .. }, .. }) => {
                return self.inner.replace(id, version, &resolve).await;
            }
            Err(error) => return Err(error.into()),
        };
        if resolve.seen.is_some_and(|seen| seen != found.version) {
            return Ok(Operated::Conflict(Some(found.into())));
        }
        let Resolve { verdict, by, reason, seen } = resolve;
        let mut unknown = None;
        let mut barrier = Barrier::None;
        if let (Resolution::Retryable, State::Unknown { .. }) = (&verdict, &found.record.state) {
            unknown = self.inner.with_receipts(id, &found.record).await?;
        }
        if let Some(unknown) = &unknown {
            barrier = match self.inner.before_release(unknown).await? {
                Finding::Voided(void) => Barrier::Proven(void),
                Finding::Unproven { void, .. } => Barrier::Raised(void),
                Finding::Absent | Finding::AbsentAndVoided(_) => Barrier::None,
                done @ (Finding::Completed(_) | Finding::DoneNotKept(_)) => {
                    return self.inner.overrule(id, found, done).await;
                }
                Finding::Ambiguous(reason) | Finding::Inconclusive(reason) | Finding::StillOpen(reason) => {
                    return Err(EngineError::NotVoided { reason });
                }
            };
        }
        let (fence, by, reason) = (Some(found.record.fence), by.to_owned(), reason.to_owned());
        let event = Event::Resolve { fence, verdict, barrier, by, reason };
        let start = if seen.is_some() { Start::Pinned(found) } else { Start::LastWritten(found) };
        // The void may have taken a while.
        let applied = self.inner.apply(id, start, &event, self.inner.patience()).await;
        let operated = applied.map(Operated::of).map_err(|failed| failed.error)?;
        if let (Operated::Applied(_), Some(unknown)) = (&operated, &unknown) {
            self.inner.released(unknown).await;
        }
        Ok(operated)
    }

    /// Ends the window of a settled operation early. It ends after the revalidation time of caches, because they may replay
    /// the answer until then.
    ///
    /// With a fence, only the window that it opened is ended: a record with another one is a conflict.
    pub async fn expire(&self, id: RecordId, opened: Option<Fence>) -> Result<Operated, EngineError> {
        // Until the write is done, which takes the claim's patience at most, other engines may cache the old record.
        let after = self.inner.limits.cache_revalidate.saturating_add(self.inner.limits.claim_patience);
        self.inner.operate(id, &Event::Expire { opened, after }).await.map(Operated::of)
    }
}

impl Operated {
    fn of(applied: Applied) -> Self {
        match (applied.answer, applied.stored.map(Stamped::from)) {
            (Answer::Applied, Some(stamped)) => Self::Applied(stamped),
            (_, stamped) => Self::Conflict(stamped),
        }
    }
}

impl Inner {
    /// Reads a record. Also returns when the call was sent.
    async fn load(&self, id: RecordId) -> Result<(Seen, Instant), StoreError> {
        let sent = instant();
        let seen = self.store.load(id).await;
        self.outages.observe_call(Call::Read, seen.as_ref().err());
        Ok((seen?, sent))
    }

    /// Reads a page of a list.
    pub(super) async fn scan(&self, scan: Scan) -> Result<Page, StoreError> {
        let page = self.store.scan(scan).await;
        self.outages.observe_call(Call::Read, page.as_ref().err());
        page
    }

    /// An unknown operation whose receipt this engine's reconciler knows. One of another namespace, or of a route without receipts by
    /// now, is left to the person alone.
    async fn with_receipts(
        &self,
        id: RecordId,
        record: &Arc<Record>,
    ) -> Result<Option<UnknownOperation>, EngineError> {
        let is_known = self.finders.reconciler().is_some()
            && record.receipts() == Receipts::Kept
            && matches!(self.plan_of(record), Plan::Find(_));
        if !is_known {
            return Ok(None);
        }
        let asked_at = self.asked_at().await.map_err(|reason| EngineError::NotVoided { reason })?;
        let (operation, fence, record) = (record.operation(id), record.fence, record.clone());
        let execution = Execution::MayGoOn;
        Ok(Some(UnknownOperation { operation, fence, record, execution, asked_at }))
    }

    /// Keeps the owner of work with receipts from committing, before a person releases it.
    async fn before_release(&self, unknown: &UnknownOperation) -> Result<Finding, EngineError> {
        let Some(reconciler) = self.finders.reconciler() else { return Ok(Finding::Absent) };
        let found = self.limited(async { reconciler.before_release(unknown).await }).await;
        self.sized(found).map_err(|reason| EngineError::NotVoided { reason })
    }

    /// Lets the next execution begin.
    async fn released(&self, unknown: &UnknownOperation) {
        let Some(reconciler) = self.finders.reconciler() else { return };
        if let Err(error) = self.limited(async { reconciler.released(unknown).await }).await {
            tracing::warn!(
                operation = %unknown.operation,
                error,
                next = "if the next execution fails with OW003, resolve the operation again",
                "an operation was released, and the outside call in its receipt row was not removed"
            );
        }
    }

    /// A person wanted to release what was done. It is completed where its answer is known, and otherwise stays unknown.
    async fn overrule(
        &self,
        id: RecordId,
        found: StoredRecord,
        done: Finding,
    ) -> Result<Operated, EngineError> {
        let fence = found.record.fence;
        let (terms, control) = (FindTerms::default(), Control::None);
        let event = Event::Found { fence, finding: Ok(done), control, terms, by: "receipt row" };
        let applied = self.apply(id, Start::Pinned(found), &event, self.patience()).await;
        let applied = applied.map_err(|failed| failed.error)?;
        Ok(Operated::Conflict(applied.stored.map(Stamped::from)))
    }

    /// The time by the store's clock, or up to a second earlier. Never later, so that every claim from now on has a higher fence.
    pub(super) async fn store_time(&self) -> Result<Timestamp, StoreError> {
        let estimate = self.store_clock.estimate();
        let close = estimate.filter(|at| at.now.since(at.expiry_now) < CLOSE_ENOUGH);
        if let Some(moment) = close {
            return Ok(moment.expiry_now);
        }
        let (seen, sent) = self.load(RecordId::IDENTITY).await?;
        self.store_clock.saw(seen.now, sent);
        Ok(seen.now)
    }

    async fn operate(&self, id: RecordId, event: &Event<'_>) -> Result<Applied, EngineError> {
        self.refuse_identity(id)?;
        self.apply(id, Start::Load, event, self.patience()).await.map_err(|failed| failed.error)
    }

    /// The patience for a change by id.
    fn patience(&self) -> Patience {
        let now = self.store_clock.read();
        Patience::until(now, now.at + self.limits.claim_patience)
    }

    fn refuse_identity(&self, id: RecordId) -> Result<(), StoreError> {
        if id != RecordId::IDENTITY {
            return Ok(());
        }
        let reason = format!("{id} is where the store remembers its identity, and no operation");
        Err(StoreError::Refused { reason })
    }

    pub(super) fn check_size(&self, reply: &Reply) -> Result<(), EngineError> {
        let (found, limit) = (reply.bytes(), self.limits.reply_bytes);
        if found > limit { Err(EngineError::ReplyTooLarge { found, limit }) } else { Ok(()) }
    }

    /// The answer that a claim would get now. It writes nothing.
    pub(super) async fn peek(
        &self,
        id: RecordId,
        claim: &Claim,
        seen: &SeenOperation,
    ) -> Result<Option<Ran>, EngineError> {
        let sent = instant();
        let found = self.store.load(id).await?;
        let moment = self.store_clock.saw(found.now, sent);
        let Some(stamped) = found.record else { return Ok(None) };
        let event = self.read_only_claim(claim, OwnerToken::named("peek"));
        let step = (self.machine)(Some(&stamped.record), moment, &event);
        let ran = match (step.write, step.answer) {
            (Write::Keep, Answer::Decision(Decision::Replay(reply))) => {
                Some(Ran::Replayed { reply, expires_at: promised(&stamped.record) })
            }
            (Write::Keep, Answer::Decision(Decision::Refuse(refusal))) => Some(Ran::Refused(refusal)),
            _ => None,
        };
        Ok(ran.inspect(|_| seen.note(stamped.record.operation(id))))
    }

    /// Replaces a damaged record by a verdict. The store's time comes with the identity's record. The new record has no
    /// fingerprint, because the request is lost.
    async fn replace(
        &self,
        id: RecordId,
        version: Version,
        Resolve { verdict, by, reason, seen }: &Resolve<'_>,
    ) -> Result<Operated, EngineError> {
        if seen.is_some_and(|seen| seen != version) {
            return Ok(Operated::Conflict(None));
        }
        let sent = instant();
        let seen = self.store.load(RecordId::IDENTITY).await?;
        let moment = self.store_clock.saw(seen.now, sent);
        let next = Record::replaced(moment, verdict, by, reason, self.record_format);
        match self.store.swap(id, Some(version), next.clone()).await? {
            Swapped::Applied { version, .. } => {
                log::replaced(log::About::new(id, Some(&next)), by, reason);
                Ok(Operated::Applied(Stamped { record: next, version }))
            }
            Swapped::Conflict(seen) => Ok(Operated::Conflict(seen.record)),
        }
    }
}

/// The state of an operation after a settlement, from its record.
pub(super) fn settled(answer: &Answer, stored: Option<&StoredRecord>) -> Settled {
    let by = if *answer == Answer::Applied { By::This } else { By::Other };
    match (answer, stored.map(|stored| &*stored.record)) {
        (Answer::Applied | Answer::AlreadySettled(_), Some(record)) => match &record.state {
            State::Completed { reply, .. } => {
                Settled::Completed { reply: reply.clone(), expires_at: promised(record), by }
            }
            // Released while in doubt: the next claim is refused as unknown.
            State::FailedRetryable { .. } if record.doubt.is_some() => Settled::Unknown,
            State::FailedRetryable { .. } => Settled::Retryable,
            State::Unknown { .. } => Settled::Unknown,
            State::InProgress { .. } | State::Expired { .. } => Settled::Fenced,
        },
        _ => Settled::Fenced,
    }
}
