//! The idea of Onceward on one page: what may happen to a record, and what whoever asked is told.
//!
//! [`step`] is pure and total. It reads no clock, does no I/O and cannot fail; an engine applies what it returns with a
//! compare-and-swap and, when that meets a conflict, asks again about the record that won. `docs/state_machine.md` draws
//! the same transitions, and a test keeps the two equal.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::Claim;
use crate::event::{Answer, Decision, Event, Expiry, Moment, Notice, Refusal, Resolution, Step, Write};
use crate::event::{keep, noticed, put};
use crate::fingerprint::Comparison;
use crate::outcome::{Evidence, Outcome, RecoveryPoint, Reply};
use crate::record::{Fence, Letter, OnLapse, Record, State};
use crate::{OwnerToken, Timestamp};

/// Doubling stops here: a probe that failed ten times is asked again at a steady, bounded pace.
const BACKOFF_DOUBLINGS_MAX: u32 = 10;

/// One step of one record.
pub fn step(record: Option<&Record>, at: Moment, event: &Event<'_>) -> Step {
    match (record, event) {
        (_, Event::Claim { claim, owner, label }) => claimed(record, at, claim, *owner, label),
        (Some(record), Event::Resume { owner }) => resumed(record, at, *owner),
        (Some(record), Event::Renew { fence }) => held(record, *fence, |next| next.extend_lease(at)),
        (Some(record), Event::Checkpoint { fence, point }) => held(record, *fence, |next| {
            next.extend_lease(at);
            next.recovery_point = Some(point.clone());
        }),
        (Some(record), event) if event.is_about_another(record) => keep(Answer::Conflict),
        (Some(record), Event::Settle { fence, outcome }) => settled(record, at, *fence, outcome),
        (Some(record), Event::Evidence { reply, by, .. }) => testified(record, at, reply, by),
        (Some(record), Event::Inconclusive { backoff, limit, .. }) => {
            unanswered(record, at, *backoff, *limit)
        }
        (Some(record), Event::Resolve { verdict, by, reason, .. }) => {
            resolved(record, at, verdict, by, reason)
        }
        (Some(record), Event::Expire { after }) => expired(record, at, *after),
        (Some(record), Event::Sweep { expiry }) => swept(record, at, *expiry),
        // It was done, and its record was swept long since: whatever was decided meanwhile, somebody should know.
        (None, Event::Settle { outcome: Outcome::Completed(_), .. }) => {
            noticed(keep(Answer::Fenced), Notice::Contradiction)
        }
        (None, Event::Renew { .. } | Event::Checkpoint { .. } | Event::Settle { .. }) => keep(Answer::Fenced),
        (None, Event::Sweep { .. }) => keep(Answer::Left),
        (
            None,
            Event::Resume { .. }
            | Event::Evidence { .. }
            | Event::Inconclusive { .. }
            | Event::Resolve { .. }
            | Event::Expire { .. },
        ) => keep(Answer::Conflict),
    }
}

fn claimed(record: Option<&Record>, at: Moment, claim: &Claim, owner: OwnerToken, label: &str) -> Step {
    let Some(record) = record.filter(|record| !record.is_spent(at)) else {
        return execute(record, at, claim, owner, label);
    };
    let comparison = record.fingerprint.compare(&claim.fingerprint);
    if comparison == Comparison::Different {
        return refuse(Refusal::Mismatch);
    }
    let step = match &record.state {
        State::InProgress { .. } if record.is_held(at) => {
            if record.owner == owner {
                regained(record)
            } else {
                refuse(record.refusal(at))
            }
        }
        State::InProgress { lease_until } => lapsed(record, at, *lease_until, Some(owner)),
        State::Completed { reply, .. } => keep(Answer::Decision(Decision::Replay(reply.clone()))),
        State::FailedRetryable { .. } => match (&record.evidence, &record.recovery_point) {
            (Some(Evidence { reply, .. }), _) => {
                overruled(record, at, reply, Answer::Decision(Decision::Replay(reply.clone())))
            }
            // What was committed before the failure must not be done again: the work goes on from there.
            (None, Some(point)) => take_over(record, at, owner, point),
            (None, None) => execute(Some(record), at, claim, owner, label),
        },
        State::Unknown { .. } => refuse(record.refusal(at)),
        State::Expired { .. } => execute(Some(record), at, claim, owner, label),
    };
    let uncompared = (comparison == Comparison::Incomparable).then_some(Notice::Uncompared);
    Step { notice: step.notice.or(uncompared), ..step }
}

fn resumed(record: &Record, at: Moment, owner: OwnerToken) -> Step {
    match &record.state {
        State::InProgress { lease_until } if !record.is_held(at) => {
            lapsed(record, at, *lease_until, Some(owner))
        }
        State::InProgress { .. } if record.owner == owner => regained(record),
        State::InProgress { .. }
        | State::Completed { .. }
        | State::FailedRetryable { .. }
        | State::Unknown { .. }
        | State::Expired { .. } => keep(Answer::Conflict),
    }
}

/// A tenure that its own owner asks for again, because the answer was lost. What it committed is not to be done twice.
fn regained(record: &Record) -> Step {
    let decision = record.recovery_point.clone().map_or(Decision::Execute, Decision::Resume);
    keep(Answer::Decision(decision))
}

/// Renew and checkpoint: only the owner of a running tenure may.
fn held(record: &Record, fence: Fence, change: impl FnOnce(&mut Record)) -> Step {
    match &record.state {
        State::InProgress { .. } if record.fence == fence => put(record, Answer::Applied, change),
        State::InProgress { .. }
        | State::Completed { .. }
        | State::FailedRetryable { .. }
        | State::Unknown { .. }
        | State::Expired { .. } => keep(Answer::Fenced),
    }
}

fn settled(record: &Record, at: Moment, fence: Fence, outcome: &Outcome) -> Step {
    if record.fence != fence {
        return fenced(record, at, fence, outcome);
    }
    match (&record.state, outcome) {
        (State::InProgress { .. } | State::Unknown { .. }, Outcome::Completed(reply)) => {
            put(record, Answer::Applied, |next| next.complete(at, reply))
        }
        // A verdict said that it had not happened, and it had: the truth is kept, and somebody should know.
        (State::FailedRetryable { .. }, Outcome::Completed(reply)) => {
            overruled(record, at, reply, Answer::Applied)
        }
        (State::InProgress { .. } | State::Unknown { .. }, Outcome::Retryable(error)) => {
            match &record.evidence {
                Some(Evidence { reply, .. }) => {
                    overruled(record, at, reply, Answer::AlreadySettled(Some(reply.clone())))
                }
                None => put(record, Answer::Applied, |next| next.release(at, error)),
            }
        }
        (State::InProgress { .. }, Outcome::Unknown(error)) => match record.own_evidence() {
            Some(reply) => {
                put(record, Answer::AlreadySettled(Some(reply.clone())), |next| next.complete(at, &reply))
            }
            None => put(record, Answer::Applied, |next| next.lose(at, Letter::Live, error)),
        },
        (State::Unknown { .. }, Outcome::Unknown(_)) => keep(Answer::Applied),
        (State::Completed { reply, .. }, Outcome::Retryable(_)) => {
            noticed(keep(Answer::AlreadySettled(Some(reply.clone()))), Notice::Contradiction)
        }
        (State::Completed { reply, .. }, Outcome::Completed(_) | Outcome::Unknown(_)) => {
            keep(Answer::AlreadySettled(Some(reply.clone())))
        }
        (State::FailedRetryable { .. }, Outcome::Retryable(_) | Outcome::Unknown(_))
        | (State::Expired { .. }, _) => keep(Answer::AlreadySettled(None)),
    }
}

/// An owner whose tenure is over. A result is kept beside the state; it never becomes the state.
fn fenced(record: &Record, at: Moment, fence: Fence, outcome: &Outcome) -> Step {
    let Outcome::Completed(reply) = outcome else {
        return keep(Answer::Fenced);
    };
    let step = match (&record.evidence, &record.state) {
        (Some(_), _) | (_, State::Expired { .. }) => keep(Answer::Fenced),
        // An earlier window's operation may have been another request, and a fence from the future is nobody's: what
        // comes under them is no evidence here.
        (None, _) if fence < record.opened || fence > record.fence => keep(Answer::Fenced),
        (None, _) => put(record, Answer::Fenced, |next| next.testify(at, fence, reply)),
    };
    // Below the origin lies an execution that was declared not to have happened, as a release declares of the present one.
    let released = matches!(record.state, State::FailedRetryable { .. });
    if released || fence < record.origin { noticed(step, Notice::Contradiction) } else { step }
}

fn testified(record: &Record, at: Moment, reply: &Arc<Reply>, by: &str) -> Step {
    let complete = |next: &mut Record| {
        next.complete(at, reply);
        next.judge(at, by, "evidence of completion");
    };
    match &record.state {
        // Evidence of another tenure decides nothing about this one, so it makes room for evidence that does.
        State::InProgress { .. } if record.own_evidence().is_some() => keep(Answer::Applied),
        State::InProgress { .. } => put(record, Answer::Applied, |next| next.testify(at, next.fence, reply)),
        State::Unknown { .. } => put(record, Answer::Applied, complete),
        State::FailedRetryable { .. } => {
            noticed(put(record, Answer::Applied, complete), Notice::Contradiction)
        }
        State::Completed { reply, .. } => keep(Answer::AlreadySettled(Some(reply.clone()))),
        State::Expired { .. } => keep(Answer::Conflict),
    }
}

fn unanswered(record: &Record, at: Moment, backoff: Duration, limit: u32) -> Step {
    let State::Unknown { since, probes, letter: Letter::Live, .. } = record.state else {
        return keep(Answer::Conflict);
    };
    let wait = backoff.saturating_mul(1 << probes.min(BACKOFF_DOUBLINGS_MAX));
    let probes = probes.saturating_add(1);
    let letter = if probes >= limit { Letter::Dead } else { Letter::Live };
    let step = put(record, Answer::Applied, |next| {
        next.state = State::Unknown { since, due_at: at.now.after(wait), probes, letter };
    });
    if letter == Letter::Dead { noticed(step, Notice::DeadLettered) } else { step }
}

fn resolved(record: &Record, at: Moment, verdict: &Resolution, by: &str, reason: &str) -> Step {
    let State::Unknown { .. } = record.state else {
        return keep(Answer::Conflict);
    };
    if let (Resolution::Retryable, Some(Evidence { reply, .. })) = (verdict, &record.evidence) {
        return overruled(record, at, reply, Answer::AlreadySettled(Some(reply.clone())));
    }
    put(record, Answer::Applied, |next| {
        match verdict {
            Resolution::Completed(reply) => next.complete(at, reply),
            Resolution::Retryable => next.release(at, reason),
        }
        next.judge(at, by, reason);
    })
}

/// Somebody says that nothing happened, or would do it again, and a tenure is known to have done it: that is the truth.
fn overruled(record: &Record, at: Moment, reply: &Arc<Reply>, answer: Answer) -> Step {
    noticed(put(record, answer, |next| next.complete(at, reply)), Notice::Contradiction)
}

fn expired(record: &Record, at: Moment, after: Duration) -> Step {
    let sooner = |expires_at: Timestamp| expires_at.min(at.now.after(after));
    match record.state.clone() {
        State::Completed { reply, settled_at, expires_at } => put(record, Answer::Applied, |next| {
            next.state = State::Completed { reply, settled_at, expires_at: sooner(expires_at) };
        }),
        State::FailedRetryable { settled_at, expires_at } => put(record, Answer::Applied, |next| {
            next.state = State::FailedRetryable { settled_at, expires_at: sooner(expires_at) };
        }),
        State::InProgress { .. } | State::Unknown { .. } | State::Expired { .. } => keep(Answer::Conflict),
    }
}

fn swept(record: &Record, at: Moment, expiry: Expiry) -> Step {
    match (&record.state, expiry) {
        (State::InProgress { lease_until }, _) if !record.is_held(at) => {
            lapsed(record, at, *lease_until, None)
        }
        (State::InProgress { .. } | State::Unknown { .. }, _) => keep(Answer::Left),
        (State::Expired { .. }, Expiry::Soft) => keep(Answer::Left),
        _ if !record.is_spent(at) => keep(Answer::Left),
        (_, Expiry::Delete) => Step { write: Write::Remove, answer: Answer::Swept, notice: None },
        (_, Expiry::Soft) => put(record, Answer::Swept, Record::empty),
    }
}

/// A lease that nobody renewed: known from evidence, resumed where that was agreed, unknown otherwise.
fn lapsed(record: &Record, at: Moment, lease_until: Timestamp, successor: Option<OwnerToken>) -> Step {
    let answer = |decision: Decision| successor.map_or(Answer::Lapsed, |_| Answer::Decision(decision));
    if let Some(reply) = record.own_evidence() {
        return put(record, answer(Decision::Replay(reply.clone())), |next| next.complete(at, &reply));
    }
    let mut letter = Letter::Live;
    if let (OnLapse::Resume { attempts, within }, Some(point)) =
        (record.terms.on_lapse, &record.recovery_point)
    {
        // A lease from the future has lapsed for nobody who could tell: its owner may still be at work.
        let takeable = lease_until <= at.now && lease_until.after(within) > at.now;
        let open = record.attempt < attempts && takeable;
        match successor {
            Some(owner) if open => return take_over(record, at, owner, point),
            None if open => return keep(Answer::Left),
            Some(_) | None => letter = Letter::Dead,
        }
    }
    let mut next = Box::new(record.clone());
    next.lose(at, letter, "the lease lapsed");
    let answer = answer(Decision::Refuse(next.refusal(at)));
    Step { write: Write::Put(next), answer, notice: (letter == Letter::Dead).then_some(Notice::DeadLettered) }
}

fn take_over(record: &Record, at: Moment, owner: OwnerToken, point: &RecoveryPoint) -> Step {
    put(record, Answer::Decision(Decision::Resume(point.clone())), |next| {
        next.fence = Fence::next(Some(record.fence), at.now);
        next.owner = owner;
        next.attempt = next.attempt.saturating_add(1);
        next.extend_lease(at);
    })
}

fn execute(record: Option<&Record>, at: Moment, claim: &Claim, owner: OwnerToken, label: &str) -> Step {
    let next = Record::claimed(record, at, claim, owner, label);
    Step { write: Write::Put(Box::new(next)), answer: Answer::Decision(Decision::Execute), notice: None }
}

fn refuse(refusal: Refusal) -> Step {
    keep(Answer::Decision(Decision::Refuse(refusal)))
}
