//! Events of a tenure's owner: renew, checkpoint, settle.

use super::verdict::overruled;
use super::void::voided_by_owner;
use crate::event::{Answer, Moment, Notice, Step, keep, noticed, put};
use crate::outcome::{Evidence, Outcome, RecoveryPoint};
use crate::record::{Cause, Fence, Letter, Receipts, Record, State};

/// A phase was committed. Where the work commits receipts, the receipt row has the phase, and a second place would contradict it.
pub(super) fn checkpointed(record: &Record, at: Moment, fence: Fence, point: &RecoveryPoint) -> Step {
    match record.receipts() {
        Receipts::Kept if record.fence == fence => keep(Answer::Conflict),
        Receipts::Kept | Receipts::None => renewed(record, fence, |next| {
            next.extend_lease(at);
            next.recovery_point = Some(point.clone());
        }),
    }
}

/// Renew and checkpoint: only the owner of a running tenure may.
pub(super) fn renewed(record: &Record, fence: Fence, change: impl FnOnce(&mut Record)) -> Step {
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
    // Below the void no owner can have committed, so its outcome is ignored. One that says that it has contradicts the void.
    if record.is_voided(fence) {
        let step = keep(Answer::Fenced);
        return if outcome.is_done() { noticed(step, Notice::Contradiction) } else { step };
    }
    if record.fence != fence {
        return fenced(record, at, fence, outcome);
    }
    match (&record.state, outcome) {
        (State::InProgress { .. } | State::Unknown { .. }, Outcome::Completed(reply)) => {
            put(record, Answer::Applied, |next| next.complete(at, reply))
        }
        // A verdict declared that it had not happened: the owner's result wins, with an alarm.
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
        (State::InProgress { .. } | State::Unknown { .. }, Outcome::Voided { void, why }) => {
            voided_by_owner(record, at, void, why)
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
                // A shadow, which an earlier version left unknown, is not unknown any more.
                if let State::Unknown { .. } = next.state {
                    let (since, due_at, probes, letter) = (*since, *due_at, *probes, *letter);
                    next.state = State::Unknown { since, due_at, probes, letter, cause: unsure.cause };
                }
            })
        }
        (State::Unknown { .. }, Outcome::Unknown(_)) => keep(Answer::Applied),
        (State::Completed { reply, .. }, Outcome::Retryable(_) | Outcome::Voided { .. }) => {
            noticed(keep(Answer::AlreadySettled(Some(reply.clone()))), Notice::Contradiction)
        }
        (State::Completed { reply, .. }, Outcome::Completed(_) | Outcome::Unknown(_)) => {
            keep(Answer::AlreadySettled(Some(reply.clone())))
        }
        (
            State::FailedRetryable { .. },
            Outcome::Retryable(_) | Outcome::Voided { .. } | Outcome::Unknown(_),
        )
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

/// An owner whose tenure is over. If it did the work, that is recorded in addition to the state, and never becomes the
/// state.
pub(super) fn fenced(record: &Record, at: Moment, fence: Fence, outcome: &Outcome) -> Step {
    // An earlier window may have been another request, and no tenure has a fence from the future: outcomes under such fences
    // are not about this window.
    let in_window = record.opened <= fence && fence < record.fence;
    let step = match (outcome, &record.evidence, &record.state) {
        (_, _, State::Expired { .. }) | (_, Some(_), _) => keep(Answer::Fenced),
        (Outcome::Completed(reply), None, _) if in_window => {
            put(record, Answer::Fenced, |next| next.testify(at, fence, reply))
        }
        (Outcome::Unknown(_), None, State::Completed { .. }) => keep(Answer::Fenced),
        (Outcome::Unknown(_), None, _) if in_window && outcome.is_done() => {
            put(record, Answer::Fenced, |next| next.doubt_done(at))
        }
        (
            Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Voided { .. } | Outcome::Unknown(_),
            None,
            _,
        ) => keep(Answer::Fenced),
    };
    // Whether a release declared that the work had not happened: of this execution, of an earlier one (below the origin), or of
    // an earlier tenure (which otherwise would have left doubt).
    let released = match &record.state {
        State::FailedRetryable { .. } => true,
        State::InProgress { .. } | State::Unknown { .. } => in_window && record.doubt.is_none(),
        State::Completed { .. } | State::Expired { .. } => false,
    };
    let contradicts = outcome.is_done() && (released || fence < record.origin);
    if contradicts { noticed(step, Notice::Contradiction) } else { step }
}
