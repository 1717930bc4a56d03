//! Doing the work, detached from whoever asked for it.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span};

use super::apply::Start;
use super::attach::Wake;
use super::observe::Observation;
use super::operate::{By, Settled};
use super::reservation::{Held, Operation, Tenure};
use super::{Claimed, EngineError, Inner, Ran, Stage, log};
use crate::RecordId;
use crate::claim::Claim;
use crate::event::Refusal;
use crate::outcome::{Outcome, Unsure};
use crate::store::StoreError;
use crate::time::{Instant, instant, sleep};

/// What came of one try to claim and run.
pub(super) enum Round<W> {
    /// There is an answer.
    Done(Ran),
    /// Somebody else executes; the work is handed back for another try.
    InProgress { refusal: Refusal, work: W },
}

type Answer<W> = oneshot::Sender<Result<Round<W>, EngineError>>;

impl Inner {
    /// Claims and, if it may, executes in a task of its own: a caller that goes away cancels neither.
    pub(super) async fn start<W, F>(
        self: &Arc<Self>,
        id: RecordId,
        claim: &Arc<Claim>,
        work: W,
        first: Start,
    ) -> Result<Round<W>, EngineError>
    where
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        self.accepting()?;
        let permit = self.permit(&self.executions, "executions", self.limits.executions)?;
        let (answer, answered) = oneshot::channel();
        let (inner, claim) = (self.clone(), claim.clone());
        // Boxed here, because spawning moves what it is given several times, and this is some kilobytes.
        let work = Box::pin(async move {
            // Always a new owner, whatever name the claim has: the work is detached, so whoever asks again under its own
            // name would be told to execute beside it.
            let owner = inner.instance.next_owner();
            match inner.claim(id, &claim, owner, first).await {
                Ok(Claimed::Reserved(reservation)) => {
                    let held = reservation.into_held();
                    let (tenancy, wake) = inner.running.begin(id);
                    inner.execute(&held, &claim, work, (wake, answer)).await;
                    drop(tenancy);
                }
                Ok(Claimed::Replay { reply, expires_at }) => {
                    tell(answer, Ok(Round::Done(Ran::Replayed { reply, expires_at })));
                }
                Ok(Claimed::Refused(refusal @ Refusal::InProgress { .. })) => {
                    tell(answer, Ok(Round::InProgress { refusal, work }));
                }
                Ok(Claimed::Refused(refusal)) => tell(answer, Ok(Round::Done(Ran::Refused(refusal)))),
                Err(error) => tell(answer, Err(error)),
            }
            drop(permit);
        });
        // Lines that are logged about the work name the request that it was begun for.
        tokio::spawn(work.instrument(Span::current()));
        answered.await.unwrap_or(Err(EngineError::Stopping))
    }

    async fn execute<W, F>(
        self: &Arc<Self>,
        held: &Arc<Held>,
        claim: &Claim,
        work: W,
        (wake, answer): (Wake, Answer<W>),
    ) where
        W: FnOnce(Operation) -> F,
        F: Future<Output = Outcome>,
    {
        if let Some(why) = self.refuse_to_begin(held) {
            self.observe(&claim.route, held.id, Observation::TooLate);
            held.read(|record| log::not_executed(log::About::new(held.id, Some(record)), why));
            return self.finish(held, claim, Outcome::Retryable(why.to_owned()), (wake, answer)).await;
        }
        let operation = Operation { held: held.clone() };
        // Panics are caught, so that the outcome is settled as unknown instead of waiting for the lease to lapse.
        let work = AssertUnwindSafe(async move { work(operation).await }).catch_unwind();
        let mut work = std::pin::pin!(work);
        let outcome = match self.watch(held, claim, work.as_mut()).await {
            Watched::Ended(Ok(outcome)) => self.within_limits(outcome),
            Watched::Ended(Err(_)) => {
                self.observe(&claim.route, held.id, Observation::Panicked);
                Outcome::lost("the work panicked")
            }
            Watched::TimedOut => {
                let why = format!("there was no outcome within {:?}", claim.timing.timeout);
                return self.answer_early(held, claim, why, (wake, answer), work).await;
            }
            Watched::Over => {
                let why = "the tenure was over before there was an outcome".to_owned();
                return self.answer_early(held, claim, why, (wake, answer), work).await;
            }
            Watched::Stopped => Outcome::lost("the engine was shut down while the work ran"),
        };
        self.finish(held, claim, outcome, (wake, answer)).await;
    }

    /// Settles, answers, and goes on trying to store what could not be stored in time: it must not be lost.
    async fn finish<W>(
        &self,
        held: &Arc<Held>,
        claim: &Claim,
        outcome: Outcome,
        (wake, answer): (Wake, Answer<W>),
    ) {
        let ran = self.settle(held, claim, outcome.clone()).await;
        let unsettled =
            matches!((&ran, &outcome), (Ran::Unknown(_), Outcome::Completed(_) | Outcome::Retryable(_)));
        drop(wake);
        tell(answer, Ok(Round::Done(ran)));
        if unsettled && self.settle_late(held, outcome).await == Kept::Yes {
            held.read(|record| log::stored_late(log::About::new(held.id, Some(record))));
        }
    }

    /// Whether the claim is too old, or the engine too far in shutting down, for the work to begin.
    fn refuse_to_begin(&self, held: &Held) -> Option<&'static str> {
        // Half a lease leaves the other half for the work's first byte to travel. A process that slept longer than that
        // may already have been declared lost.
        if held.age() >= held.lease() / 2 {
            return Some("too much time had passed since the claim, so the work was not begun");
        }
        if *self.stop.borrow() == Stage::Stopped {
            return Some("the engine was shut down before the work had begun");
        }
        None
    }

    /// Polls the work beside its timeout, its renewals and the engine's end.
    async fn watch<F>(&self, held: &Arc<Held>, claim: &Claim, work: Pin<&mut F>) -> Watched
    where
        F: Future<Output = Result<Outcome, Box<dyn Any + Send>>>,
    {
        tokio::select! {
            biased;
            ended = work => Watched::Ended(ended),
            watched = renew_until_over(held, claim.timing.timeout) => watched,
            () = self.stopped() => Watched::Stopped,
        }
    }

    /// The caller is told that nobody knows, and the work goes on: what it still brings is the truth about it.
    async fn answer_early<W, F>(
        self: &Arc<Self>,
        held: &Arc<Held>,
        claim: &Claim,
        why: String,
        (wake, answer): (Wake, Answer<W>),
        work: Pin<&mut F>,
    ) where
        F: Future<Output = Result<Outcome, Box<dyn Any + Send>>>,
    {
        let ran = self.settle(held, claim, Outcome::lost(why)).await;
        drop(wake);
        tell(answer, Ok(Round::Done(ran)));
        tokio::select! {
            biased;
            ended = work => if let Ok(outcome) = ended {
                // Where it changes what was stored as unknown, that is told already.
                self.settle_late(held, self.within_limits(outcome)).await;
            },
            () = sleep(self.limits.linger) => {}
            () = self.stopped() => {}
        }
    }

    async fn stopped(&self) {
        // The sender lives in the engine itself, so this ends only when the engine is stopped.
        let stopped = self.stop.subscribe().wait_for(|stage| *stage == Stage::Stopped).await.is_ok();
        debug_assert!(stopped, "the engine outlives its own channel");
    }

    pub(super) fn within_limits(&self, outcome: Outcome) -> Outcome {
        match &outcome {
            Outcome::Completed(reply) if reply.bytes() > self.limits.reply_bytes => {
                Outcome::done_not_kept(format!(
                    "the work was done, but its reply of {} bytes is over the limit of {} and could not be kept",
                    reply.bytes(),
                    self.limits.reply_bytes
                ))
            }
            Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Unknown(_) => outcome,
        }
    }

    /// Settles and turns what stands in the store into the caller's answer.
    async fn settle(&self, held: &Arc<Held>, claim: &Claim, outcome: Outcome) -> Ran {
        let why = match &outcome {
            Outcome::Completed(_) => String::new(),
            Outcome::Retryable(why) | Outcome::Unknown(Unsure { why, .. }) => why.clone(),
        };
        let (done, released) = (outcome.is_done(), matches!(outcome, Outcome::Retryable(_)));
        match held.settle(outcome, self.limits.settle_patience).await {
            Ok(Settled::Completed { reply, expires_at, by: By::This }) => {
                self.observe(&claim.route, held.id, Observation::Completed);
                Ran::Executed { reply, expires_at }
            }
            Ok(Settled::Completed { reply, expires_at, .. }) => Ran::Replayed { reply, expires_at },
            Ok(Settled::Retryable) => {
                self.observe(&claim.route, held.id, Observation::Released);
                Ran::Retryable(why)
            }
            Ok(Settled::Unknown) => {
                self.observe(&claim.route, held.id, Observation::Lost);
                // This attempt did nothing, but an earlier one may have: the caller is told what any retry would be.
                if released { Ran::Refused(held.refusal()) } else { Ran::Unknown(why) }
            }
            Ok(Settled::Fenced) => self.answer_from_record(held.id, claim).await,
            // Trying again would be refused again, and a lapse would forget that the work was done.
            Err(EngineError::Store(StoreError::Refused { reason })) if done => {
                let why = format!("the work was done, but the store refused its reply: {reason}");
                match held.settle(Outcome::done_not_kept(why.as_str()), self.limits.settle_patience).await {
                    Ok(_) => self.observe(&claim.route, held.id, Observation::Lost),
                    Err(error) => {
                        held.read(|record| log::not_stored(log::About::new(held.id, Some(record)), &error));
                    }
                }
                Ran::Unknown(why)
            }
            Err(error) => {
                held.read(|record| log::not_stored(log::About::new(held.id, Some(record)), &error));
                Ran::Unknown(format!("the outcome could not be stored: {error}"))
            }
        }
    }

    /// An owner whose tenure is over answers what any retry would be told, never from its own bytes.
    async fn answer_from_record(self: &Inner, id: RecordId, claim: &Claim) -> Ran {
        match self.peek(id, claim).await {
            Ok(Some(ran)) => ran,
            Ok(None) => Ran::Unknown("the tenure was over before the outcome came".to_owned()),
            Err(error) => {
                Ran::Unknown(format!("the tenure was over, and the record could not be read: {error}"))
            }
        }
    }

    pub(super) async fn settle_late(&self, held: &Held, outcome: Outcome) -> Kept {
        let route = held.read(|record| record.subject.route.clone());
        match held.settle(outcome.clone(), self.limits.settle_give_up).await {
            Ok(Settled::Completed { by: By::This, .. }) => {
                self.observe(&route, held.id, Observation::Completed);
            }
            Ok(Settled::Retryable) => self.observe(&route, held.id, Observation::Released),
            Ok(Settled::Completed { .. } | Settled::Unknown | Settled::Fenced) => return Kept::No,
            Err(error) => {
                held.read(|record| {
                    log::never_stored(log::About::new(held.id, Some(record)), &outcome, &error);
                });
                return Kept::No;
            }
        }
        Kept::Yes
    }
}

/// Whether the record has the outcome that was to be stored late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    No,
}

enum Watched {
    Ended(Result<Outcome, Box<dyn Any + Send>>),
    TimedOut,
    Over,
    Stopped,
}

/// Renews for as long as the work may take, and returns when that is over, or the tenure. Work that ends within half a
/// lease from its claim never renews. It waits for one time only, because every request does.
async fn renew_until_over(held: &Held, timeout: Duration) -> Watched {
    let deadline: Instant = instant() + timeout;
    // The record's own lease: a resumed operation keeps the one that it was claimed with.
    let lease = held.lease();
    // The lease has run since the claim was sent, and a slow store takes as long again to renew it.
    let (mut pause, mut left) = ((lease / 2).saturating_sub(held.age()), timeout);
    let mut failing = false;
    loop {
        sleep(pause.min(left)).await;
        left = deadline.saturating_duration_since(instant());
        if left.is_zero() {
            return Watched::TimedOut;
        }
        let renewed = tokio::select! {
            biased;
            () = sleep(left) => return Watched::TimedOut,
            renewed = held.renew() => renewed,
        };
        left = deadline.saturating_duration_since(instant());
        match renewed {
            Ok(Tenure::Held) => (pause, failing) = (lease / 2, false),
            Ok(Tenure::Over) => return Watched::Over,
            // The store is away. It is asked again soon, because a quarter of the lease is left at most; if it lapses
            // meanwhile the work goes on, and its outcome is settled by its fence.
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    held.read(|record| log::not_renewed(log::About::new(held.id, Some(record)), &error));
                }
                pause = lease / 16;
            }
        }
    }
}

fn tell<W>(answer: Answer<W>, what: Result<Round<W>, EngineError>) {
    // A caller that has gone away gets its answer by retrying.
    drop(answer.send(what));
}
