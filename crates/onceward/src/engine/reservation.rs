//! What whoever executes holds.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{Instrument as _, Span};

use super::apply::{Applied, Failed, Patience, Standing, Start};
use super::operate::{By, Settled, settled};
use super::running::Kept;
use super::{EngineError, Inner, log};
use crate::event::{Answer, Event, Moment, Refusal};
use crate::outcome::{Outcome, RecoveryPoint};
use crate::record::{Fence, Record};
use crate::time::Stopwatch;
use crate::{OperationId, RecordId};

/// A tenure, and the record as it was last written under it.
pub(super) struct Held {
    pub inner: Arc<Inner>,
    pub id: RecordId,
    pub fence: Fence,
    standing: Mutex<Standing>,
    watch: Stopwatch,
}

impl Held {
    pub(super) fn new(inner: Arc<Inner>, id: RecordId, standing: Standing, watch: Stopwatch) -> Arc<Self> {
        let fence = standing.record.fence;
        Arc::new(Self { inner, id, fence, standing: Mutex::new(standing), watch })
    }

    // A panic while the lock is held cannot leave a record half written: it is replaced whole.
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the record says, without a copy of all of it.
    pub(super) fn read<T>(&self, what: impl FnOnce(&Record) -> T) -> T {
        what(&self.standing().record)
    }

    /// What a retry is told of the record as it stands.
    pub(super) fn refusal(&self) -> Refusal {
        let now = self.inner.store_clock.estimate();
        self.read(|record| {
            let at = Moment { now: record.created_at, expiry_now: record.created_at };
            record.refusal(now.unwrap_or(at))
        })
    }

    /// How long this tenure lasts without being renewed.
    pub(super) fn lease(&self) -> Duration {
        self.read(|record| record.terms.lease)
    }

    /// How long ago the claim was sent.
    pub(super) fn age(&self) -> Duration {
        self.watch.elapsed(&*self.inner.local_clock)
    }

    async fn apply(
        &self,
        event: &Event<'_>,
        patience: Duration,
    ) -> Result<(Answer, Option<Standing>), Failed> {
        let now = self.inner.store_clock.read();
        let patience = Patience::until(now, now.at + patience);
        let start = Start::Held(self.standing().clone());
        let Applied { answer, standing, .. } = self.inner.apply(self.id, start, event, patience).await?;
        if let Some(standing) = standing.as_ref().filter(|standing| standing.record.fence == self.fence) {
            *self.standing() = standing.clone();
        }
        Ok((answer, standing))
    }

    /// Extends the lease, or tells that the tenure is over.
    pub(super) async fn renew(&self) -> Result<Tenure, EngineError> {
        let event = Event::Renew { fence: self.fence };
        let (answer, _) = self.apply(&event, self.lease() / 4).await.map_err(|failed| failed.error)?;
        Ok(Tenure::of(&answer))
    }

    pub(super) async fn checkpoint(&self, point: RecoveryPoint) -> Result<Tenure, EngineError> {
        let patience = self.inner.limits.settle_patience;
        let event = Event::Checkpoint { fence: self.fence, point };
        let (answer, _) = self.apply(&event, patience).await.map_err(|failed| failed.error)?;
        Ok(Tenure::of(&answer))
    }

    pub(super) async fn settle(&self, outcome: Outcome, patience: Duration) -> Result<Settled, EngineError> {
        let event = Event::Settle { fence: self.fence, outcome: outcome.clone() };
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
}

/// Whether whoever asked still holds the tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an owner whose tenure is over must not go on"]
pub enum Tenure {
    /// It goes on.
    Held,
    /// It is over: somebody else decides now.
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

/// The right, and the duty, to do the work once.
///
/// It must be settled. Dropping it releases nothing: nobody could tell whether the work was done, so the lease lapses
/// and the outcome becomes unknown.
#[derive(Debug)]
#[must_use = "a reservation that is not settled becomes an unknown outcome when its lease lapses"]
pub struct Reservation {
    operation: Operation,
    settled: Settlement,
}

#[derive(Debug, PartialEq, Eq)]
enum Settlement {
    Open,
    Done,
}

impl Reservation {
    pub(super) fn new(held: Arc<Held>) -> Self {
        Self { operation: Operation { held }, settled: Settlement::Open }
    }

    pub(super) fn inner(&self) -> Arc<Inner> {
        self.operation.held.inner.clone()
    }

    pub(super) fn into_held(mut self) -> Arc<Held> {
        self.settled = Settlement::Done;
        self.operation.held.clone()
    }

    /// Ends the tenure. A store that is away is asked again for as long as the engine's patience for it lasts; after that
    /// an error is returned, and it is tried on in the background: what was done must not be lost.
    ///
    /// Poll it to its end: a settlement whose future is dropped may not be stored, and the outcome is then unknown when the
    /// lease lapses.
    pub async fn settle(mut self, outcome: Outcome) -> Result<Settled, EngineError> {
        self.settled = Settlement::Done;
        let held = self.operation.held.clone();
        let outcome = held.inner.within_limits(outcome);
        let settled = held.settle(outcome.clone(), held.inner.limits.settle_patience).await;
        if let Err(error) = &settled {
            held.read(|record| log::not_stored(log::About::new(held.id, Some(record)), error));
            let late = async move {
                if held.inner.settle_late(&held, outcome).await == Kept::Yes {
                    held.read(|record| log::stored_late(log::About::new(held.id, Some(record))));
                }
            };
            tokio::spawn(late.instrument(Span::current()));
        }
        settled
    }
}

impl Reservation {
    /// Leaves the duty to somebody else, who settles by id and fence with [`Engine::settle`](super::Engine::settle).
    pub fn hand_over(mut self) -> Operation {
        self.settled = Settlement::Done;
        self.operation.clone()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.settled == Settlement::Open {
            let held = &self.operation.held;
            held.read(|record| log::dropped(log::About::new(held.id, Some(record))));
        }
    }
}

impl Deref for Reservation {
    type Target = Operation;

    fn deref(&self) -> &Operation {
        &self.operation
    }
}

/// What work that runs knows about itself, and may do under its tenure. Settling is not among it: work returns its outcome
/// to the engine, and a [`Reservation`] is settled once.
#[derive(Clone)]
pub struct Operation {
    pub(super) held: Arc<Held>,
}

impl Operation {
    /// Where the record lives. The same for every window of a key: for others, use [`Self::operation_id`].
    pub fn id(&self) -> RecordId {
        self.held.id
    }

    /// The operation's name for others: the record and the window, so that it means this operation alone.
    pub fn operation_id(&self) -> OperationId {
        self.held.read(|record| record.operation(self.held.id))
    }

    /// Names this tenure. Every write must present it.
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// Which tenure this is: 1, or more after a Resume.
    pub fn attempt(&self) -> u32 {
        self.held.read(|record| record.attempt)
    }

    /// How long ago the claim was sent. Work that waits before its first outside effect must not wait too long.
    pub fn age(&self) -> Duration {
        self.held.age()
    }

    /// How much longer the first outside effect may be put off; zero where it is too late. Half a lease after the claim was
    /// sent, somebody may soon think that this tenure is dead: then nothing is begun any more.
    pub fn begin_within(&self) -> Duration {
        (self.held.lease() / 2).saturating_sub(self.held.age())
    }

    /// The last phase that was committed. Work begins after it.
    pub fn recovery_point(&self) -> Option<RecoveryPoint> {
        self.held.read(|record| record.recovery_point.clone())
    }

    /// Logs that nothing of the work was sent.
    #[cfg(feature = "http")]
    pub(crate) fn tell_not_executed(&self, cause: &str) {
        self.held.read(|record| log::not_executed(log::About::new(self.held.id, Some(record)), cause));
    }

    /// Extends the lease. An engine that runs the work does so by itself.
    pub async fn renew(&self) -> Result<Tenure, EngineError> {
        self.held.renew().await
    }

    /// Notes that a phase was committed, and extends the lease.
    pub async fn checkpoint(&self, point: RecoveryPoint) -> Result<Tenure, EngineError> {
        self.held.checkpoint(point).await
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("id", &self.held.id).field("fence", &self.held.fence).finish()
    }
}
