//! Claims: a request, or a completer, wants the work done.

use super::sweep::lapsed;
use super::verdict::overruled;
use crate::OwnerToken;
use crate::claim::Claim;
use crate::event::{Answer, Decision, Moment, Notice, Refusal, Step, Write, keep, put};
use crate::fingerprint::Comparison;
use crate::outcome::{Evidence, RecoveryPoint};
use crate::record::{Fence, Record, State};

pub(super) fn claimed(
    record: Option<&Record>,
    at: Moment,
    claim: &Claim,
    owner: OwnerToken,
    label: &str,
) -> Step {
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

pub(super) fn resumed(record: &Record, at: Moment, owner: OwnerToken) -> Step {
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

pub(super) fn take_over(record: &Record, at: Moment, owner: OwnerToken, point: &RecoveryPoint) -> Step {
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
