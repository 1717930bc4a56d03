//! Outcomes from outside the owner: evidence and verdicts.

use std::sync::Arc;

use crate::event::{Answer, Barrier, Moment, Notice, Resolution, Step, keep, noticed, put};
use crate::outcome::{Evidence, Reply};
use crate::record::{Record, State};

pub(super) fn testified(record: &Record, at: Moment, reply: &Arc<Reply>, by: &str) -> Step {
    let complete = |next: &mut Record| {
        next.complete(at, reply);
        next.judge(at, by, "evidence of completion");
    };
    match &record.state {
        // Evidence of an earlier execution is replaced: only evidence of this one can settle it.
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

pub(super) fn resolved(
    record: &Record,
    at: Moment,
    verdict: &Resolution,
    barrier: &Barrier,
    (by, reason): (&str, &str),
) -> Step {
    let State::Unknown { .. } = record.state else {
        return keep(Answer::Conflict);
    };
    if let (Resolution::Retryable, Some(Evidence { reply, .. })) = (verdict, &record.evidence) {
        return overruled(record, at, reply, Answer::AlreadySettled(Some(reply.clone())));
    }
    put(record, Answer::Applied, |next| {
        match verdict {
            Resolution::Completed(reply) => next.complete(at, reply),
            Resolution::Retryable => {
                match barrier {
                    Barrier::Proven(void) if void.fence == record.fence.above() => {
                        next.void(void.fence, void.point.clone());
                    }
                    Barrier::Raised(void) if void.fence == record.fence.above() => {
                        next.recovery_point.clone_from(&void.point);
                    }
                    // Any other fence was raised for another tenure.
                    Barrier::Proven(_) | Barrier::Raised(_) | Barrier::None => {}
                }
                next.release(at, reason);
            }
        }
        next.judge(at, by, reason);
    })
}

/// A release, a retry or a verdict contradicts evidence that a tenure did the work: the evidence wins, with an alarm.
pub(super) fn overruled(record: &Record, at: Moment, reply: &Arc<Reply>, answer: Answer) -> Step {
    noticed(put(record, answer, |next| next.complete(at, reply)), Notice::Contradiction)
}
