//! One tenure of an operation: what its owner knows, and may write.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::apply::{Applied, Failed, Patience, Standing, Start};
use super::operate::{By, Settled, settled};
use super::{EngineError, Inner, log};
use crate::event::{Answer, Event, Moment, Refusal};
use crate::outcome::{Outcome, RecoveryPoint};
use crate::record::{Fence, Record};
use crate::time::Stopwatch;
use crate::{OperationId, RecordId};

/// What running work knows about itself, and may do under its tenure.
///
/// Settling is not among it: work returns its outcome to the engine, and a [`Reservation`](super::Reservation) is settled once.
/// Clones share one tenure.
#[derive(Clone)]
pub struct Operation(Arc<OperationState>);

struct OperationState {
    engine: Arc<Inner>,
    id: RecordId,
    fence: Fence,
    /// The record as it was last written under this tenure.
    standing: Mutex<Standing>,
    /// Runs since the claim was sent.
    since_claim: Stopwatch,
}

impl Operation {
    pub(super) fn new(engine: Arc<Inner>, id: RecordId, standing: Standing, since_claim: Stopwatch) -> Self {
        let fence = standing.record.fence;
        Self(Arc::new(OperationState { engine, id, fence, standing: Mutex::new(standing), since_claim }))
    }

    /// Where the record lives. It is the same for every window of a key; [`Self::operation_id`] names one window.
    pub fn id(&self) -> RecordId {
        self.0.id
    }

    /// The operation's name for others: the record and the window.
    pub fn operation_id(&self) -> OperationId {
        self.read(|record| record.operation(self.0.id))
    }

    /// Names this tenure. Every write must present it.
    pub fn fence(&self) -> Fence {
        self.0.fence
    }

    /// Which tenure this is: 1, or more after a Resume.
    pub fn attempt(&self) -> u32 {
        self.read(|record| record.attempt)
    }

    /// How long ago the claim was sent. Work that waits before its first outside effect must not wait too long.
    pub fn age(&self) -> Duration {
        self.0.since_claim.elapsed(&*self.0.engine.local_clock)
    }

    /// How much longer the first outside effect may be put off; zero where it is too late.
    ///
    /// Work begins within half a lease after its claim, so that its first byte can still travel before another owner may take
    /// this tenure for dead.
    pub fn begin_within(&self) -> Duration {
        (self.lease() / 2).saturating_sub(self.age())
    }

    /// The last phase that was committed. Work begins after it.
    pub fn recovery_point(&self) -> Option<RecoveryPoint> {
        self.read(|record| record.recovery_point.clone())
    }

    /// Extends the lease. An engine that runs the work does so by itself.
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
        Ok(Tenure::of(&answer))
    }

    pub(super) async fn settle(&self, outcome: Outcome, patience: Duration) -> Result<Settled, EngineError> {
        let event = Event::Settle { fence: self.0.fence, outcome: outcome.clone() };
        let (answer, standing) = self.apply(&event, patience).await.map_err(|failed| failed.error)?;
        Ok(match (settled(&answer, standing.as_ref()), outcome) {
            // The first try was written and its answer lost: the second finds its own work.
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
    ) -> Result<(Answer, Option<Standing>), Failed> {
        let OperationState { engine, id, fence, .. } = &*self.0;
        let now = engine.store_clock.read();
        let patience = Patience::until(now, now.at + patience);
        let start = Start::Held(self.standing().clone());
        let Applied { answer, standing, .. } = engine.apply(*id, start, event, patience).await?;
        if let Some(standing) = standing.as_ref().filter(|standing| standing.record.fence == *fence) {
            *self.standing() = standing.clone();
        }
        Ok((answer, standing))
    }

    /// Logs that nothing of the work was sent.
    #[cfg(feature = "http")]
    pub(crate) fn log_not_executed(&self, cause: &str) {
        self.log(|about| log::not_executed(about, cause));
    }

    pub(super) fn log(&self, line: impl FnOnce(log::About<'_>)) {
        self.read(|record| line(log::About::new(self.0.id, Some(record))));
    }

    /// Reads the record without a copy of all of it.
    pub(super) fn read<T>(&self, what: impl FnOnce(&Record) -> T) -> T {
        what(&self.standing().record)
    }

    /// The refusal that a retry gets while the record stands so.
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

    // A panic while the lock is held cannot leave a record half written: it is replaced whole.
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.0.standing.lock().unwrap_or_else(PoisonError::into_inner)
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
