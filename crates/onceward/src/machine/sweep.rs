//! Events of time alone: leases that lapse, and windows that end.

use std::time::Duration;

use super::claim::take_over_lapsed;
use crate::event::{Answer, Decision, Expiry, Moment, Notice, Step, Write, keep, put};
use crate::outcome::Unsure;
use crate::record::{Cause, LAPSED, Letter, OnLapse, Receipts, Record, State};
use crate::{Timestamp, entropy::OwnerToken};

pub(super) fn expired(record: &Record, at: Moment, after: Duration) -> Step {
    let sooner = |expires_at: Timestamp| expires_at.min(at.now.after(after));
    match record.state.clone() {
        State::Completed { reply, settled_at, expires_at } => put(record, Answer::Applied, |next| {
            next.state = State::Completed { reply, settled_at, expires_at: sooner(expires_at) };
        }),
        State::FailedRetryable { settled_at, expires_at } => put(record, Answer::Applied, |next| {
            next.state = State::FailedRetryable { settled_at, expires_at: sooner(expires_at) };
            // Otherwise a last find that is still to come would keep the record.
            next.absence = None;
        }),
        State::InProgress { .. } | State::Unknown { .. } | State::Expired { .. } => keep(Answer::Conflict),
    }
}

pub(super) fn swept(record: &Record, at: Moment, expiry: Expiry) -> Step {
    match (&record.state, expiry) {
        (State::InProgress { lease_until }, _) if !record.is_held(at) => {
            lapsed(record, at, *lease_until, None)
        }
        // Earlier versions stored shadows in this state.
        (State::Unknown { since, cause, .. }, _) if record.subject.is_shadow() => {
            put(record, Answer::Lapsed, |next| next.lose_shadow(*since, *cause))
        }
        (State::InProgress { .. } | State::Unknown { .. }, _) => keep(Answer::Left),
        (State::Expired { .. }, Expiry::Soft) => keep(Answer::Left),
        _ if !record.is_spent(at) => keep(Answer::Left),
        (_, Expiry::Delete) => Step { write: Write::Remove, answer: Answer::Swept, notice: None },
        (_, Expiry::Soft) => put(record, Answer::Swept, Record::empty),
    }
}

/// A lease that was not renewed: known from evidence, resumed where that was agreed, unknown otherwise.
pub(super) fn lapsed(
    record: &Record,
    at: Moment,
    lease_until: Timestamp,
    successor: Option<OwnerToken>,
) -> Step {
    let answer = |decision: Decision| successor.map_or(Answer::Lapsed, |_| Answer::Decision(decision));
    if let Some(reply) = record.own_evidence() {
        return put(record, answer(Decision::Replay(reply.clone())), |next| next.complete(at, &reply));
    }
    let mut letter = Letter::Live;
    // Where the work commits receipts, nothing goes on before a void.
    if let (OnLapse::Resume { attempts, within }, Some(point), Receipts::None) =
        (record.terms.on_lapse, &record.recovery_point, record.receipts())
    {
        // A lease that ends in the future only looks lapsed: its owner may still be at work.
        let takeable = lease_until <= at.now && lease_until.after(within) > at.now;
        let open = record.attempt < attempts && takeable;
        match successor {
            // The outcome can still be determined, but the work must not be continued.
            _ if open && !record.may_be_continued(at) => {}
            Some(owner) if open => return take_over_lapsed(record, at, lease_until, (owner, point)),
            None if open => return keep(Answer::Left),
            Some(_) | None => letter = Letter::Dead,
        }
    }
    let mut next = Box::new(record.clone());
    next.lose(at, letter, &Unsure::new(Cause::Lost, LAPSED));
    let answer = answer(Decision::Refuse(next.refusal(at)));
    Step { write: Write::Put(next), answer, notice: (letter == Letter::Dead).then_some(Notice::DeadLettered) }
}
