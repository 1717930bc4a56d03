//! What the owner of a tenure says: renew, checkpoint, settle.

use super::verdict::overruled;
use crate::event::{Answer, Moment, Notice, Step, keep, noticed, put};
use crate::outcome::{Evidence, Outcome};
use crate::record::{Cause, Fence, Letter, Record, State};

/// Renew and checkpoint: only the owner of a running tenure may.
pub(super) fn held(record: &Record, fence: Fence, change: impl FnOnce(&mut Record)) -> Step {
    match &record.state {
        State::InProgress { .. } if record.fence == fence => put(record, Answer::Applied, change),
        State::InProgress { .. }
        | State::Completed { .. }
        | State::FailedRetryable { .. }
        | State::Unknown { .. }
        | State::Expired { .. } => keep(Answer::Fenced),
    }
}

pub(super) fn settled(record: &Record, at: Moment, fence: Fence, outcome: &Outcome) -> Step {
    if record.fence != fence {
        return fenced(record, at, fence, outcome);
    }
    match (&record.state, outcome) {
        (State::InProgress { .. } | State::Unknown { .. }, Outcome::Completed(reply)) => {
            put(record, Answer::Applied, |next| next.complete(at, reply))
        }
        // A verdict said that it had not happened, and it had: the truth is kept, with an alarm.
        (State::FailedRetryable { .. }, Outcome::Completed(reply)) => {
            overruled(record, at, reply, Answer::Applied)
        }
        (State::FailedRetryable { .. }, Outcome::Unknown(unsure)) if outcome.is_done() => {
            let step = put(record, Answer::Applied, |next| next.lose(at, Letter::Live, unsure));
            noticed(step, Notice::Contradiction)
        }
        (State::InProgress { .. } | State::Unknown { .. }, Outcome::Retryable(error)) => {
            proven_not_done(record, at, error)
        }
        (State::InProgress { .. }, Outcome::Unknown(unsure)) => match record.own_evidence() {
            Some(reply) => {
                put(record, Answer::AlreadySettled(Some(reply.clone())), |next| next.complete(at, &reply))
            }
            None => put(record, Answer::Applied, |next| next.lose(at, Letter::Live, unsure)),
        },
        // That it was done is more than was known before.
        (State::Unknown { since, due_at, probes, letter, .. }, Outcome::Unknown(unsure))
            if outcome.is_done() =>
        {
            put(record, Answer::Applied, |next| {
                next.lose(at, *letter, unsure);
                let (since, due_at, probes, letter) = (*since, *due_at, *probes, *letter);
                next.state = State::Unknown { since, due_at, probes, letter, cause: unsure.cause };
            })
        }
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

/// The owner proves that its own tenure did nothing. That releases the operation only where nothing else may have done it.
fn proven_not_done(record: &Record, at: Moment, error: &str) -> Step {
    let state = &record.state;
    match (&record.evidence, record.doubt, state) {
        (Some(Evidence { reply, .. }), _, _) => {
            overruled(record, at, reply, Answer::AlreadySettled(Some(reply.clone())))
        }
        (None, _, State::Unknown { cause: Cause::DoneNotKept, .. }) => {
            noticed(keep(Answer::AlreadySettled(None)), Notice::Contradiction)
        }
        (None, Some(_), State::Unknown { .. }) => keep(Answer::Applied),
        (None, Some(doubt), _) => put(record, Answer::Applied, |next| next.lose_again(at, doubt, error)),
        (None, None, _) => put(record, Answer::Applied, |next| next.release(at, error)),
    }
}

/// An owner whose tenure is over. A result is kept beside the state; it never becomes the state.
fn fenced(record: &Record, at: Moment, fence: Fence, outcome: &Outcome) -> Step {
    let step = match (outcome, &record.evidence, &record.state) {
        (Outcome::Retryable(_) | Outcome::Unknown(_), _, _)
        | (_, Some(_), _)
        | (_, _, State::Expired { .. }) => keep(Answer::Fenced),
        // An earlier window's operation may have been another request, and no tenure has a fence from the future: what
        // comes under them is no evidence here.
        (Outcome::Completed(_), None, _) if fence < record.opened || fence > record.fence => {
            keep(Answer::Fenced)
        }
        (Outcome::Completed(reply), None, _) => {
            put(record, Answer::Fenced, |next| next.testify(at, fence, reply))
        }
    };
    // Below the origin lies an execution that was declared not to have happened, as a release declares of the present one.
    let released = matches!(record.state, State::FailedRetryable { .. });
    let contradicts = outcome.is_done() && (released || fence < record.origin);
    if contradicts { noticed(step, Notice::Contradiction) } else { step }
}
