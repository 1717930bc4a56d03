//! Finds: an unknown outcome is asked about, and what was found out is applied.

use std::time::Duration;

use super::absence::{absent, last_find_begun, last_found};
use super::tenure::fenced;
use super::verdict::testified;
use super::void::voided;
use crate::event::{
    Answer, Control, FindStart, FindTerms, Finding, Moment, Notice, Step, keep, noticed, put,
};
use crate::outcome::{Outcome, Unsure};
use crate::record::{Cause, Fence, Letter, Record, State};

/// Doubling stops here. The pause is limited anyway.
const DOUBLINGS_MAX: u32 = 20;
/// A database that does not answer is asked again after a part of the time for which the outcome has been unknown.
const UNASKED_AGE_DIVISOR: u32 = 8;

/// One finder asks at a time: the next find is due when the hold is over. What an owner has reported needs no find.
pub(super) fn find_begun(record: &Record, at: Moment, hold: Duration, start: FindStart) -> Step {
    let State::Unknown { due_at, letter: Letter::Live, .. } = record.state else {
        return last_find_begun(record, at, hold);
    };
    if let Some(reply) = record.own_evidence() {
        let answer = Answer::AlreadySettled(Some(reply.clone()));
        return put(record, answer, |next| next.complete(at, &reply));
    }
    match start {
        FindStart::WhenDue if due_at > at.now => keep(Answer::Conflict),
        FindStart::WhenDue | FindStart::Now => {
            put(record, Answer::Applied, |next| next.find_again(at.now.after(hold)))
        }
    }
}

/// Applies what was found out about the present tenure.
pub(super) fn found(
    record: &Record,
    at: Moment,
    finding: &Result<Finding, String>,
    control: Control,
    terms: &FindTerms,
    by: &str,
) -> Step {
    // That it happened is true whatever became of the record meanwhile.
    if let Ok(Finding::Completed(reply)) = finding {
        return testified(record, at, reply, by);
    }
    let State::Unknown { letter: Letter::Live, .. } = record.state else {
        return last_found(record, at, finding, terms);
    };
    match finding {
        Ok(Finding::Completed(_)) => keep(Answer::Conflict),
        Ok(Finding::DoneNotKept(why)) => {
            let unsure = Unsure::new(Cause::DoneNotKept, why.as_str());
            let step = put(record, Answer::Applied, |next| next.lose_for_good(at, &unsure));
            noticed(step, Notice::DeadLettered)
        }
        Ok(Finding::Voided(void)) => match voided(record, at, void, None, by) {
            Ok(step) => step,
            Err(why) => given_up(record, at, why),
        },
        Ok(Finding::Absent) => absent(record, at, None, control, terms, by),
        Ok(Finding::AbsentAndVoided(void)) => absent(record, at, Some(void), control, terms, by),
        Ok(Finding::Inconclusive(why)) => undecided(record, at, terms, why),
        Ok(Finding::Ambiguous(why) | Finding::Unproven { why, .. }) => given_up(record, at, why),
        Ok(Finding::StillOpen(why)) | Err(why) => not_asked(record, at, terms, why),
    }
}

/// Applies what was found out about an earlier tenure: that it did the work is kept beside the state, as its own word would be.
pub(super) fn found_late(
    record: &Record,
    at: Moment,
    fence: Fence,
    finding: &Result<Finding, String>,
) -> Step {
    match finding {
        // An earlier window's may be true, and is about another operation.
        Ok(Finding::Completed(reply)) if record.opened <= fence && !record.is_voided(fence) => {
            fenced(record, at, fence, &Outcome::Completed(reply.clone()))
        }
        Ok(_) | Err(_) => keep(Answer::Conflict),
    }
}

pub(super) fn undecided(record: &Record, at: Moment, terms: &FindTerms, why: &str) -> Step {
    let State::Unknown { since, probes, cause, .. } = record.state else {
        return keep(Answer::Conflict);
    };
    let pause = terms.backoff.saturating_mul(1 << probes.min(DOUBLINGS_MAX)).min(terms.max_backoff);
    let probes = probes.saturating_add(1);
    let letter = if probes >= terms.attempts { Letter::Dead } else { Letter::Live };
    let step = put(record, Answer::Applied, |next| {
        let due_at = at.now.after(next.jittered(pause));
        next.state = State::Unknown { since, due_at, probes, letter, cause };
        next.note_finding(at, why);
    });
    if letter == Letter::Dead { noticed(step, Notice::DeadLettered) } else { step }
}

/// A service that could not be asked says nothing about the operation. It is asked less often the longer that lasts.
fn not_asked(record: &Record, at: Moment, terms: &FindTerms, why: &str) -> Step {
    let State::Unknown { since, .. } = record.state else {
        return keep(Answer::Conflict);
    };
    let age = at.now.since(since) / UNASKED_AGE_DIVISOR;
    put(record, Answer::Applied, |next| {
        next.find_again(at.now.after(next.jittered(age.max(terms.backoff).min(terms.max_backoff))));
        next.note_finding(at, why);
    })
}

/// No further find would help: a person must decide.
pub(super) fn given_up(record: &Record, at: Moment, why: &str) -> Step {
    let State::Unknown { since, due_at, probes, letter: Letter::Live, cause } = record.state else {
        return keep(Answer::Conflict);
    };
    let step = put(record, Answer::Applied, |next| {
        next.state = State::Unknown { since, due_at, probes, letter: Letter::Dead, cause };
        next.note_finding(at, why);
    });
    noticed(step, Notice::DeadLettered)
}

/// Nothing is configured that could find it out, for so long.
pub(super) fn unfindable(record: &Record, at: Moment, after: Duration) -> Step {
    match record.state {
        State::Unknown { since, .. } if since.after(after) <= at.expiry_now => {
            given_up(record, at, "nothing is configured that could find out what happened")
        }
        State::Unknown { .. }
        | State::InProgress { .. }
        | State::Completed { .. }
        | State::FailedRetryable { .. }
        | State::Expired { .. } => keep(Answer::Left),
    }
}
