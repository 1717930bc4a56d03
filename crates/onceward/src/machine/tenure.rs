//! What the owner of a tenure says: renew, checkpoint, settle.

use super::verdict::overruled;
use crate::event::{Answer, Moment, Notice, Step, keep, noticed, put};
use crate::outcome::{Evidence, Outcome};
use crate::record::{Fence, Letter, Record, State};

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
