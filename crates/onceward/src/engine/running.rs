//! Runs the work, in a task that outlives its caller.

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
use super::attach::WakeOnDrop;
use super::observe::Observation;
use super::operate::{By, Settled};
use super::operation::{Operation, Tenure};
use super::{Claimed, EngineError, Inner, Ran, SeenOperation, Stage, WorkValue, log};
use crate::RecordId;
use crate::claim::Claim;
use crate::event::Refusal;
use crate::outcome::{Outcome, Unsure};
use crate::record::{Cause, Letter, Receipts};
use crate::store::StoreError;
use crate::time::{Instant, instant, sleep};

/// The result of one try to claim and run: an answer, or a refusal because another execution is in progress, with the work.
pub(super) type Try<W, T> = ControlFlow<(Ran, WorkValue<T>), (Refusal, W)>;

/// The caller of a try, who may be gone by now.
struct Caller<W, T> {
    answer: oneshot::Sender<Result<Try<W, T>, EngineError>>,
    seen: SeenOperation,
}

impl<W, T> Caller<W, T> {
    fn answer(self, result: Result<Try<W, T>, EngineError>) {
        // A caller that is gone gets its answer when it retries.
        drop(self.answer.send(result));
    }
}

impl Inner {
    /// Claims and, if it may, executes in a task of its own: a caller that goes away cancels neither.
    pub(super) async fn start<W, F, T>(
        self: &Arc<Self>,
        id: RecordId,
        claim: &Arc<Claim>,
        (work, seen): (W, &SeenOperation),
        first: Start,
    ) -> Result<Try<W, T>, EngineError>
    where
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = (Outcome, T)> + Send + 'static,
        T: Send + 'static,
    {
        self.check_accepting()?;
        let permit = self.permit(&self.executions, "executions", self.limits.executions)?;
        let (answer, answered) = oneshot::channel();
        let (inner, claim) = (self.clone(), claim.clone());
        let caller = Caller { answer, seen: seen.clone() };
        // Boxed, because spawning moves the future several times, and it has some kilobytes.
        let work = Box::pin(async move {
            // A new owner, even if the claim names one: a named owner that claims again gets Execute, and the work is detached, so
            // it could run twice at once.
            let owner = inner.instance.next_owner();
            match inner.claim(id, &claim, owner, first, &caller.seen).await {
                Ok(Claimed::Reserved(operation)) => {
                    let (local_tenure, wake) = inner.running.begin(id);
                    let next = inner.execute(&operation, &claim, work, (wake, caller)).await;
                    drop(local_tenure);
                    // The work has been dropped by now, and its connection with it.
                    if next == AfterWork::FindNow {
                        inner.find_soon(id, operation.stored_record()).await;
                    }
                }
                Ok(Claimed::Replay { reply, expires_at }) => {
                    caller.answer(Ok(without_work(Ran::Replayed { reply, expires_at })));
                }
                Ok(Claimed::Refused(refusal)) if inner.may_end_soon(id, &refusal) => {
                    caller.answer(Ok(ControlFlow::Continue((refusal, work))));
                }
                Ok(Claimed::Refused(refusal)) => caller.answer(Ok(without_work(Ran::Refused(refusal)))),
                Err(error) => caller.answer(Err(error)),
            }
            drop(permit);
        });
        // In the caller's span, so that log lines about the work name its request.
        tokio::spawn(work.instrument(Span::current()));
        answered.await.unwrap_or(Err(EngineError::Stopping))
    }

    async fn execute<W, F, T>(
        self: &Arc<Self>,
        operation: &Operation,
        claim: &Claim,
        work: W,
        (wake, caller): (WakeOnDrop, Caller<W, T>),
    ) -> AfterWork
    where
        W: FnOnce(Operation) -> F,
        F: Future<Output = (Outcome, T)>,
    {
        if let Some(why) = self.refuse_to_begin(operation) {
            self.observe(&claim.route, operation.id(), Observation::TooLate);
            operation.log(|about| log::not_executed(about, why));
            let outcome = Outcome::Retryable(why.to_owned());
            self.finish(operation, claim, (outcome, WorkValue::NotRun), (wake, caller)).await;
            return AfterWork::Settled;
        }
        let owner = operation.clone();
        // A panic is caught, so that the outcome becomes unknown at once, and not when the lease lapses.
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
                return self.answer_early(operation, claim, why, (wake, caller), work).await;
            }
            Watched::Over => {
                let why = "the tenure was over before there was an outcome".to_owned();
                return self.answer_early(operation, claim, why, (wake, caller), work).await;
            }
            Watched::Stopped => {
                (Outcome::lost("the engine was shut down while the work ran"), WorkValue::Unfinished)
            }
        };
        self.finish(operation, claim, ended, (wake, caller)).await;
        AfterWork::Settled
    }

    /// Settles and answers. An outcome that could not be stored in time is tried again after the answer, because it must not be
    /// lost.
    async fn finish<W, T>(
        self: &Arc<Self>,
        operation: &Operation,
        claim: &Claim,
        (outcome, value): (Outcome, WorkValue<T>),
        (wake, caller): (WakeOnDrop, Caller<W, T>),
    ) {
        let (outcome, finder) = self.hold_for_finder(operation, outcome);
        let ran = self.settle(operation, claim, outcome.clone(), &caller.seen).await;
        let unsettled = match (&ran, &outcome) {
            (Ran::Unknown(_), Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Voided { .. }) => true,
            (_, Outcome::Unknown(_)) => false,
            (
                Ran::Executed { .. } | Ran::Replayed { .. } | Ran::Refused(_) | Ran::Retryable(_),
                Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Voided { .. },
            ) => false,
        };
        // Begun before attached callers are woken, so that they wait for it too.
        if let Some(finder) = finder {
            self.find_held(finder, operation.id(), operation.stored_record());
        }
        drop(wake);
        caller.answer(Ok(ControlFlow::Break((ran, value))));
        if unsettled && self.settle_late(operation, outcome).await == StoredLate::Yes {
            operation.log(log::stored_late);
        }
    }

    /// Whether a caller that may wait does so: for another execution, or for a find of this process.
    fn may_end_soon(&self, id: RecordId, refusal: &Refusal) -> bool {
        match refusal {
            Refusal::InProgress { .. } => true,
            Refusal::Unknown { letter: Letter::Live, .. } => self.finding.attach(id).is_some(),
            Refusal::Unknown { letter: Letter::Dead, .. } | Refusal::Mismatch(_) | Refusal::Incomparable => {
                false
            }
        }
    }

    /// Why the work must not begin: its claim is too old, or the engine was shut down.
    fn refuse_to_begin(&self, operation: &Operation) -> Option<&'static str> {
        if operation.begin_within().is_zero() {
            return Some("too much time had passed since the claim, so the work was not begun");
        }
        if *self.stop.borrow() == Stage::Stopped {
            return Some("the engine was shut down before the work had begun");
        }
        None
    }

    /// Polls the work, its timeout, its renewals and the engine's shutdown.
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

    /// Answers the caller that the outcome is unknown, and lets the work go on. Its late outcome settles the operation.
    async fn answer_early<W, F, T>(
        self: &Arc<Self>,
        operation: &Operation,
        claim: &Claim,
        why: String,
        (wake, caller): (WakeOnDrop, Caller<W, T>),
        work: Pin<&mut F>,
    ) -> AfterWork
    where
        F: Future<Output = Result<(Outcome, T), Box<dyn Any + Send>>>,
    {
        let mut unsure = Unsure::new(Cause::Lost, why);
        if claim.receipts == Receipts::Kept {
            // A void would keep the work from committing, and it may still be going on.
            unsure.find_after = claim.timing.resume_after;
        }
        let ran = self.settle(operation, claim, Outcome::Unknown(unsure), &caller.seen).await;
        drop(wake);
        caller.answer(Ok(ControlFlow::Break((ran, WorkValue::Unfinished))));
        tokio::select! {
            biased;
            ended = work => if let Ok((outcome, _)) = ended {
                // If this changes the unknown outcome, `apply` has logged it.
                self.settle_late(operation, self.within_limits(outcome)).await;
            },
            () = sleep(self.limits.linger) => {}
            () = self.stopped() => return AfterWork::Settled,
        }
        AfterWork::FindNow
    }

    pub(super) async fn stopped(&self) {
        // The sender is a field of `self`, so the channel is not closed here.
        let stopped = self.stop.subscribe().wait_for(|stage| *stage == Stage::Stopped).await.is_ok();
        debug_assert!(stopped, "the channel was closed before the engine");
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
            Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Voided { .. } | Outcome::Unknown(_) => {
                outcome
            }
        }
    }

    /// Settles, and makes the caller's answer from the record in the store.
    async fn settle(
        self: &Arc<Self>,
        operation: &Operation,
        claim: &Claim,
        outcome: Outcome,
        seen: &SeenOperation,
    ) -> Ran {
        let why = match &outcome {
            Outcome::Completed(_) => String::new(),
            Outcome::Retryable(why) | Outcome::Voided { why, .. } | Outcome::Unknown(Unsure { why, .. }) => {
                why.clone()
            }
        };
        let released = matches!(outcome, Outcome::Retryable(_) | Outcome::Voided { .. });
        let done = outcome.is_done();
        let settled = operation.settle(outcome, self.limits.settle_patience).await;
        if let Ok(settled) = &settled {
            self.observe_settled(&claim.route, operation.id(), settled);
        }
        match settled {
            Ok(Settled::Completed { reply, expires_at, by: By::This }) => Ran::Executed { reply, expires_at },
            Ok(Settled::Completed { reply, expires_at, .. }) => Ran::Replayed { reply, expires_at },
            Ok(Settled::Retryable) => Ran::Retryable(why),
            // This attempt did nothing, but an earlier one may have. The caller gets what a retry would get.
            Ok(Settled::Unknown) if released => Ran::Refused(operation.refusal()),
            Ok(Settled::Unknown) => Ran::Unknown(why),
            Ok(Settled::Fenced) => self.answer_from_record(operation.id(), claim, seen).await,
            // Another try would be refused again, and if the lease lapsed, it would be forgotten that the work was done.
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

    /// The answer of an owner whose tenure is over: what a retry would get from the record, and never its own outcome.
    async fn answer_from_record(&self, id: RecordId, claim: &Claim, seen: &SeenOperation) -> Ran {
        match self.peek(id, claim, seen).await {
            Ok(Some(ran)) => ran,
            Ok(None) => Ran::Unknown("the tenure was over before the outcome came".to_owned()),
            Err(error) => {
                Ran::Unknown(format!("the tenure was over, and the record could not be read: {error}"))
            }
        }
    }

    pub(super) async fn settle_late(self: &Arc<Self>, operation: &Operation, outcome: Outcome) -> StoredLate {
        let route = operation.read(|record| record.subject.route.clone());
        match operation.settle(outcome.clone(), self.limits.settle_give_up).await {
            Ok(settled @ (Settled::Completed { by: By::This, .. } | Settled::Retryable)) => {
                self.observe_settled(&route, operation.id(), &settled);
                StoredLate::Yes
            }
            Ok(Settled::Completed { .. } | Settled::Unknown | Settled::Fenced) => StoredLate::No,
            Err(error) => {
                operation.log(|about| log::never_stored(about, &outcome, &error));
                StoredLate::No
            }
        }
    }
}

/// What is done when the work has been dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterWork {
    /// Nothing: its outcome was settled as it came, and an unknown one says itself when it is to be found out.
    Settled,
    /// It went on after its caller was answered, and has ended: now its outcome can be found out.
    FindNow,
}

/// Whether a late settlement is in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredLate {
    Yes,
    No,
}

enum Watched<T> {
    Ended(Result<(Outcome, T), Box<dyn Any + Send>>),
    TimedOut,
    Over,
    Stopped,
}

/// Renews the lease until the timeout or the end of the tenure. Work that ends within half a lease from its claim never
/// renews. A single timer serves the next renewal and the timeout, because every request pays for it.
///
/// The pause is measured in this call, before the work begins: it must not depend on how long the work's first step takes.
fn renew_until_over<T>(operation: &Operation, timeout: Duration) -> impl Future<Output = Watched<T>> {
    let deadline: Instant = instant() + timeout;
    // The record's own lease: a resumed operation keeps the one that it was claimed with.
    let lease = operation.lease();
    // The lease began when the claim was sent. The other half of it is for a renewal by a slow store.
    let pause = (lease / 2).saturating_sub(operation.age());
    renew_each(operation, lease, (pause, timeout), deadline)
}

async fn renew_each<T>(
    operation: &Operation,
    lease: Duration,
    (mut pause, mut left): (Duration, Duration),
    deadline: Instant,
) -> Watched<T> {
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
            // The store failed. It is tried again soon, because at most a quarter of the lease is left. If the lease lapses, the
            // work goes on, and its outcome is settled with its fence.
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    operation.log(|about| log::not_renewed(about, &error));
                }
                pause = lease / 16;
            }
        }
    }
}

/// The answer for a caller whose work did not run.
fn without_work<W, T>(ran: Ran) -> Try<W, T> {
    ControlFlow::Break((ran, WorkValue::NotRun))
}
