//! Claims: a request, or a completer, wants the work done.

use super::sweep::lapsed;
use super::verdict::overruled;
use crate::claim::Claim;
use crate::event::{Answer, Decision, Moment, Notice, Refusal, Step, Write, keep, noticed, put};
use crate::fingerprint::Comparison;
use crate::id::NamespaceHash;
use crate::outcome::{Evidence, RecoveryPoint, Unsure};
use crate::record::{Cause, Doubt, Fence, LAPSED, Letter, Record, RecordFormat, State};
use crate::{Timestamp, entropy::OwnerToken};

/// Who claims, and how a new record is made for them.
pub(super) struct Claimant<'a> {
    pub claim: &'a Claim,
    pub owner: OwnerToken,
    pub label: &'a str,
    pub format: RecordFormat,
    pub namespace: NamespaceHash,
}

pub(super) fn claimed(record: Option<&Record>, at: Moment, claimant: &Claimant<'_>) -> Step {
    let Some(record) = record.filter(|record| !record.is_spent(at)) else {
        return execute(record, at, claimant);
    };
    let comparison = record.compare(claimant.claim);
    if comparison == Comparison::Different {
        return refuse(Refusal::Mismatch(record.fingerprint.difference(&claimant.claim.fingerprint)));
    }
    let step = decided(record, at, claimant);
    // An owner that claims its own tenure again began with the content of its first claim.
    let again = step.write == Write::Keep && step.answer == Answer::Decision(Decision::Execute);
    let continues = again || matches!(step.answer, Answer::Decision(Decision::Resume(_)));
    let replays = matches!(step.answer, Answer::Decision(Decision::Replay(_)));
    let other_target = replays && record.may_be_of_another_target(claimant.claim);
    match comparison {
        // Work must be finished with the content that it began with, and an answer must not go to another target's request.
        Comparison::Incomparable if continues || other_target => {
            noticed(refuse(Refusal::Incomparable), Notice::Uncompared)
        }
        Comparison::Incomparable => Step { notice: step.notice.or(Some(Notice::Uncompared)), ..step },
        Comparison::Same | Comparison::Different => step,
    }
}

/// Decides a claim that is not known to be for another request.
fn decided(record: &Record, at: Moment, claimant: &Claimant<'_>) -> Step {
    match &record.state {
        State::InProgress { .. } if record.is_held(at) => {
            if record.owner == claimant.owner {
                regained(record)
            } else {
                refuse(record.refusal(at))
            }
        }
        State::InProgress { lease_until } => lapsed(record, at, *lease_until, Some(claimant.owner)),
        State::Completed { reply, .. } => keep(Answer::Decision(Decision::Replay(reply.clone()))),
        State::FailedRetryable { .. } => released(record, at, claimant),
        State::Unknown { .. } => match record.own_evidence() {
            Some(reply) => {
                let replay = Answer::Decision(Decision::Replay(reply.clone()));
                put(record, replay, |next| next.complete(at, &reply))
            }
            None => refuse(record.refusal(at)),
        },
        State::Expired { .. } => execute(Some(record), at, claimant),
    }
}

/// Decides a claim after a release: the work begins, or continues after its recovery point, unless it is known by now to have
/// been done.
fn released(record: &Record, at: Moment, claimant: &Claimant<'_>) -> Step {
    match (&record.evidence, record.doubt, &record.recovery_point) {
        (Some(Evidence { reply, .. }), _, _) => {
            overruled(record, at, reply, Answer::Decision(Decision::Replay(reply.clone())))
        }
        // A shadow's release only stands for an unknown outcome, so it contradicts nothing.
        (None, Some(_), _) if record.subject.is_shadow() => refuse(record.refusal(at)),
        (None, Some(Doubt { cause, .. }), _) => {
            let why = "it was released, and an earlier attempt says that the work was done".to_owned();
            let mut next = Box::new(record.clone());
            next.lose(at, Letter::Live, &Unsure::new(cause, why));
            let answer = Answer::Decision(Decision::Refuse(next.refusal(at)));
            Step { write: Write::Put(next), answer, notice: Some(Notice::Contradiction) }
        }
        // What was committed before the failure must not be done again.
        (None, None, Some(point)) => take_over(record, at, claimant.owner, point),
        (None, None, None) => execute(Some(record), at, claimant),
    }
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

/// An owner claims its own tenure again, because the answer was lost. It resumes after what it committed.
fn regained(record: &Record) -> Step {
    let decision = record.recovery_point.clone().map_or(Decision::Execute, Decision::Resume);
    keep(Answer::Decision(decision))
}

/// The next tenure of the same execution, after its recovery point.
fn take_over(record: &Record, at: Moment, owner: OwnerToken, point: &RecoveryPoint) -> Step {
    put(record, Answer::Decision(Decision::Resume(point.clone())), |next| {
        next.fence = Fence::next(Some(record.fence), at.now);
        next.owner = owner;
        next.attempt = next.attempt.saturating_add(1);
        // The connection that was closed was the former tenure's.
        next.closed_at = None;
        next.extend_lease(at);
    })
}

/// The same after a lapse: the former tenure may have done more than it committed, so the next one inherits the doubt.
pub(super) fn take_over_lapsed(
    record: &Record,
    at: Moment,
    lease_until: Timestamp,
    (owner, point): (OwnerToken, &RecoveryPoint),
) -> Step {
    let mut step = take_over(record, at, owner, point);
    if let Write::Put(next) = &mut step.write {
        next.doubt = record.doubt.or(Some(Doubt { since: lease_until, cause: Cause::Lost }));
        next.last_error = Some(LAPSED.to_owned());
    }
    step
}

fn execute(record: Option<&Record>, at: Moment, claimant: &Claimant<'_>) -> Step {
    let Claimant { claim, owner, label, format, namespace } = *claimant;
    let next = Record::claimed(record, at, claim, owner, label, format, namespace);
    Step { write: Write::Put(Box::new(next)), answer: Answer::Decision(Decision::Execute), notice: None }
}

fn refuse(refusal: Refusal) -> Step {
    keep(Answer::Decision(Decision::Refuse(refusal)))
}
