//! Doing the work, in a task that outlives its caller.

use std::any::Any;
use std::future::Future;
use std::ops::ControlFlow;
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
use super::operation::{Operation, Tenure};
use super::{Claimed, EngineError, Inner, Ran, Stage, WorkValue, log};
use crate::RecordId;
use crate::claim::Claim;
use crate::event::Refusal;
use crate::outcome::{Outcome, Unsure};
use crate::store::StoreError;
use crate::time::{Instant, instant, sleep};

/// One try to claim and run: there is an answer, or another execution is in progress and the work is handed back.
pub(super) type Try<W, T> = ControlFlow<(Ran, WorkValue<T>), (Refusal, W)>;

type Answer<W, T> = oneshot::Sender<Result<Try<W, T>, EngineError>>;

impl Inner {
    /// Claims and, if it may, executes in a task of its own: a caller that goes away cancels neither.
    pub(super) async fn start<W, F, T>(
        self: &Arc<Self>,
        id: RecordId,
        claim: &Arc<Claim>,
        work: W,
        first: Start,
    ) -> Result<Try<W, T>, EngineError>
    where
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = (Outcome, T)> + Send + 'static,
        T: Send + 'static,
    {
        self.accepting()?;
        let permit = self.permit(&self.executions, "executions", self.limits.executions)?;
        let (answer, answered) = oneshot::channel();
        let (inner, claim) = (self.clone(), claim.clone());
        // Boxed here, because spawning moves what it is given several times, and this is some kilobytes.
        let work = Box::pin(async move {
            // Always a new owner, whatever name the claim has: the work is detached, so a caller that asks again under its
            // own name would get Execute while the work runs.
            let owner = inner.instance.next_owner();
            match inner.claim(id, &claim, owner, first).await {
                Ok(Claimed::Reserved(operation)) => {
                    let (tenancy, wake) = inner.running.begin(id);
                    inner.execute(&operation, &claim, work, (wake, answer)).await;
                    drop(tenancy);
                }
                Ok(Claimed::Replay { reply, expires_at }) => {
                    tell(answer, Ok(without_work(Ran::Replayed { reply, expires_at })));
                }
                Ok(Claimed::Refused(refusal @ Refusal::InProgress { .. })) => {
                    tell(answer, Ok(ControlFlow::Continue((refusal, work))));
                }
                Ok(Claimed::Refused(refusal)) => tell(answer, Ok(without_work(Ran::Refused(refusal)))),
                Err(error) => tell(answer, Err(error)),
            }
            drop(permit);
        });
        // Lines that are logged about the work name the request that it was begun for.
        tokio::spawn(work.instrument(Span::current()));
        answered.await.unwrap_or(Err(EngineError::Stopping))
    }

    async fn execute<W, F, T>(
        self: &Arc<Self>,
        operation: &Operation,
        claim: &Claim,
        work: W,
        (wake, answer): (Wake, Answer<W, T>),
    ) where
        W: FnOnce(Operation) -> F,
        F: Future<Output = (Outcome, T)>,
    {
        if let Some(why) = self.refuse_to_begin(operation) {
            self.observe(&claim.route, operation.id(), Observation::TooLate);
            operation.log(|about| log::not_executed(about, why));
            let outcome = Outcome::Retryable(why.to_owned());
            return self.finish(operation, claim, (outcome, WorkValue::NotRun), (wake, answer)).await;
        }
        let owner = operation.clone();
        // Panics are caught, so that the outcome is settled as unknown instead of waiting for the lease to lapse.
        let work = AssertUnwindSafe(async move { work(owner).await }).catch_unwind();
        let mut work = std::pin::pin!(work);
        let ended = match self.watch(operation, claim, work.as_mut()).await {
            Watched::Ended(Ok((outcome, value))) => (self.within_limits(outcome), WorkValue::Returned(value)),
            Watched::Ended(Err(_)) => {
                self.observe(&claim.route, operation.id(), Observation::Panicked);
                (Outcome::lost("the work panicked"), WorkValue::Panicked)
            }
            Watched::TimedOut => {
                let why = format!("there was no outcome within {:?}", claim.timing.timeout);
                return self.answer_early(operation, claim, why, (wake, answer), work).await;
            }
            Watched::Over => {
                let why = "the tenure was over before there was an outcome".to_owned();
                return self.answer_early(operation, claim, why, (wake, answer), work).await;
            }
            Watched::Stopped => {
                (Outcome::lost("the engine was shut down while the work ran"), WorkValue::Unfinished)
            }
        };
        self.finish(operation, claim, ended, (wake, answer)).await;
    }

    /// Settles, answers, and goes on trying to store what could not be stored in time: it must not be lost.
    async fn finish<W, T>(
        &self,
        operation: &Operation,
        claim: &Claim,
        (outcome, value): (Outcome, WorkValue<T>),
        (wake, answer): (Wake, Answer<W, T>),
    ) {
        let ran = self.settle(operation, claim, outcome.clone()).await;
        let unsettled =
            matches!((&ran, &outcome), (Ran::Unknown(_), Outcome::Completed(_) | Outcome::Retryable(_)));
        drop(wake);
        tell(answer, Ok(ControlFlow::Break((ran, value))));
        if unsettled && self.settle_late(operation, outcome).await == Kept::Yes {
            operation.log(log::stored_late);
        }
    }

    /// Whether the claim is too old, or the engine too far in shutting down, for the work to begin.
    fn refuse_to_begin(&self, operation: &Operation) -> Option<&'static str> {
        if operation.begin_within().is_zero() {
            return Some("too much time had passed since the claim, so the work was not begun");
        }
        if *self.stop.borrow() == Stage::Stopped {
            return Some("the engine was shut down before the work had begun");
        }
        None
    }

    /// Polls the work beside its timeout, its renewals and the engine's end.
    async fn watch<F, T>(&self, operation: &Operation, claim: &Claim, work: Pin<&mut F>) -> Watched<T>
    where
        F: Future<Output = Result<(Outcome, T), Box<dyn Any + Send>>>,
    {
        tokio::select! {
            biased;
            ended = work => Watched::Ended(ended),
            watched = renew_until_over(operation, claim.timing.timeout) => watched,
            () = self.stopped() => Watched::Stopped,
        }
    }

    /// The caller is answered that the outcome is unknown, and the work goes on: its late outcome settles the operation.
    async fn answer_early<W, F, T>(
        self: &Arc<Self>,
        operation: &Operation,
        claim: &Claim,
        why: String,
        (wake, answer): (Wake, Answer<W, T>),
        work: Pin<&mut F>,
    ) where
        F: Future<Output = Result<(Outcome, T), Box<dyn Any + Send>>>,
    {
        let ran = self.settle(operation, claim, Outcome::lost(why)).await;
        drop(wake);
        tell(answer, Ok(ControlFlow::Break((ran, WorkValue::Unfinished))));
        tokio::select! {
            biased;
            ended = work => if let Ok((outcome, _)) = ended {
                // Where it changes what was stored as unknown, applying it has logged that.
                self.settle_late(operation, self.within_limits(outcome)).await;
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
    async fn settle(&self, operation: &Operation, claim: &Claim, outcome: Outcome) -> Ran {
        let why = match &outcome {
            Outcome::Completed(_) => String::new(),
            Outcome::Retryable(why) | Outcome::Unknown(Unsure { why, .. }) => why.clone(),
        };
        let (done, released) = (outcome.is_done(), matches!(outcome, Outcome::Retryable(_)));
        let settled = operation.settle(outcome, self.limits.settle_patience).await;
        if let Ok(settled) = &settled {
            self.observe_settled(&claim.route, operation.id(), settled);
        }
        match settled {
            Ok(Settled::Completed { reply, expires_at, by: By::This }) => Ran::Executed { reply, expires_at },
            Ok(Settled::Completed { reply, expires_at, .. }) => Ran::Replayed { reply, expires_at },
            Ok(Settled::Retryable) => Ran::Retryable(why),
            // This attempt did nothing, but an earlier one may have: the caller gets what a retry would get.
            Ok(Settled::Unknown) if released => Ran::Refused(operation.refusal()),
            Ok(Settled::Unknown) => Ran::Unknown(why),
            Ok(Settled::Fenced) => self.answer_from_record(operation.id(), claim).await,
            // Trying again would be refused again, and a lapse would forget that the work was done.
            Err(EngineError::Store(StoreError::Refused { reason })) if done => {
                let why = format!("the work was done, but the store refused its reply: {reason}");
                match operation
                    .settle(Outcome::done_not_kept(why.as_str()), self.limits.settle_patience)
                    .await
                {
                    Ok(settled) => self.observe_settled(&claim.route, operation.id(), &settled),
                    Err(error) => operation.log(|about| log::not_stored(about, &error)),
                }
                Ran::Unknown(why)
            }
            Err(error) => {
                operation.log(|about| log::not_stored(about, &error));
                Ran::Unknown(format!("the outcome could not be stored: {error}"))
            }
        }
    }

    /// An owner whose tenure is over answers from the record, as a retry would be answered, never from its own bytes.
    async fn answer_from_record(self: &Inner, id: RecordId, claim: &Claim) -> Ran {
        match self.peek(id, claim).await {
            Ok(Some(ran)) => ran,
            Ok(None) => Ran::Unknown("the tenure was over before the outcome came".to_owned()),
            Err(error) => {
                Ran::Unknown(format!("the tenure was over, and the record could not be read: {error}"))
            }
        }
    }

    pub(super) async fn settle_late(&self, operation: &Operation, outcome: Outcome) -> Kept {
        let route = operation.read(|record| record.subject.route.clone());
        match operation.settle(outcome.clone(), self.limits.settle_give_up).await {
            Ok(settled @ (Settled::Completed { by: By::This, .. } | Settled::Retryable)) => {
                self.observe_settled(&route, operation.id(), &settled);
                Kept::Yes
            }
            Ok(Settled::Completed { .. } | Settled::Unknown | Settled::Fenced) => Kept::No,
            Err(error) => {
                operation.log(|about| log::never_stored(about, &outcome, &error));
                Kept::No
            }
        }
    }
}

/// Whether the record has the outcome that was to be stored late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    No,
}

enum Watched<T> {
    Ended(Result<(Outcome, T), Box<dyn Any + Send>>),
    TimedOut,
    Over,
    Stopped,
}

/// Renews for as long as the work may take, and returns when that is over, or the tenure. Work that ends within half a
/// lease from its claim never renews. It waits for one time only, because every request does.
async fn renew_until_over<T>(operation: &Operation, timeout: Duration) -> Watched<T> {
    let deadline: Instant = instant() + timeout;
    // The record's own lease: a resumed operation keeps the one that it was claimed with.
    let lease = operation.lease();
    // The lease has run since the claim was sent, and a slow store takes as long again to renew it.
    let (mut pause, mut left) = ((lease / 2).saturating_sub(operation.age()), timeout);
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
            renewed = operation.renew() => renewed,
        };
        left = deadline.saturating_duration_since(instant());
        match renewed {
            Ok(Tenure::Held) => (pause, failing) = (lease / 2, false),
            Ok(Tenure::Over) => return Watched::Over,
            // The store is away. It is asked again soon, because a quarter of the lease is left at most; if it lapses
            // meanwhile the work goes on, and its outcome is settled by its fence.
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    operation.log(|about| log::not_renewed(about, &error));
                }
                pause = lease / 16;
            }
        }
    }
}

/// An answer to a caller whose work did not run.
fn without_work<W, T>(ran: Ran) -> Try<W, T> {
    ControlFlow::Break((ran, WorkValue::NotRun))
}

fn tell<W, T>(answer: Answer<W, T>, what: Result<Try<W, T>, EngineError>) {
    // A caller that has gone away gets its answer by retrying.
    drop(answer.send(what));
}
