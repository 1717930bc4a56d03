//! A controlled absence: the find that saw no trace of the operation would have seen one, had there been one. A trace can be late,
//! so an absence counts after a while, releases at the second time, and is looked at once more after the release.

use std::time::Duration;

use super::find::{given_up, undecided};
use super::verdict::overruled;
use super::void::{denied, voided};
use crate::Timestamp;
use crate::event::{Answer, Control, FindTerms, Finding, Moment, Notice, Step, Write, keep, noticed, put};
use crate::outcome::{Evidence, Unsure, Void};
use crate::record::{Absence, Cause, Letter, RELEASING_ABSENCES, Receipts, Record, State};

const WHY: &str = "it was asked for twice, and there is no trace of it";

/// No trace was found. `void` is there where the fence was raised in the effect's own database as well.
pub(super) fn absent(
    record: &Record,
    at: Moment,
    void: Option<&Void>,
    control: Control,
    terms: &FindTerms,
    by: &str,
) -> Step {
    let Some(after) = terms.absent_after else {
        return undecided(record, at, terms, "there is no trace of it, which proves nothing");
    };
    if let Some(why) = denied(record) {
        return given_up(record, at, why);
    }
    if record.receipts() == Receipts::Kept && void.is_none() {
        return undecided(record, at, terms, "there is no trace of it, and its receipt row was not voided");
    }
    let (seen, first_at) = match record.absence.filter(|absence| absence.fence == record.fence) {
        Some(absence) => (absence.count, absence.first_at),
        // When it was lost is not on record, so the time begins now.
        None => (0, at.now),
    };
    let is_due = record.absence_counts_from(after).is_some_and(|from| from <= at.expiry_now);
    match control {
        Control::Made if is_due && seen + 1 >= RELEASING_ABSENCES => released(record, at, void, after, by),
        Control::Made if is_due => not_counted(record, at, (seen + 1, at.now), (after, terms.backoff)),
        Control::Made | Control::None => not_counted(record, at, (seen, first_at), (after, terms.backoff)),
    }
}

/// An absence that does not release: it came too early, or was the first. It is no attempt.
fn not_counted(
    record: &Record,
    at: Moment,
    (count, first_at): (u32, Timestamp),
    (after, pause): (Duration, Duration),
) -> Step {
    put(record, Answer::Applied, |next| {
        next.absence = Some(Absence { count, first_at, fence: next.fence });
        // Where expiry is held back, its time can have come by the later bound only.
        let soonest = at.now.after(next.jittered(pause));
        next.find_again(next.absence_counts_from(after).map_or(soonest, |from| from.max(soonest)));
        let text = match count {
            0 => "there is no trace of it yet, which counts only some time after it became unknown",
            _ => "there is no trace of it, and it is asked for once more before it is released",
        };
        next.note_finding(at, text);
    })
}

fn released(record: &Record, at: Moment, void: Option<&Void>, after: Duration, by: &str) -> Step {
    if let Some(void) = void {
        let mut step = match voided(record, at, void, Some(WHY), by) {
            Ok(step) => step,
            Err(why) => return given_up(record, at, why),
        };
        if let Write::Put(next) = &mut step.write {
            next.plan_last_find(at, after);
        }
        return step;
    }
    if let Some(Evidence { reply, .. }) = &record.evidence {
        return overruled(record, at, reply, Answer::AlreadySettled(Some(reply.clone())));
    }
    put(record, Answer::Applied, |next| {
        next.release(at, WHY);
        next.plan_last_find(at, after);
        next.note_finding(at, WHY);
        next.judge(at, by, WHY);
    })
}

/// The find after a release by absence, unless it found that the work was done.
pub(super) fn last_found(
    record: &Record,
    at: Moment,
    finding: &Result<Finding, String>,
    terms: &FindTerms,
) -> Step {
    if !record.has_last_find_to_come() {
        return keep(Answer::Conflict);
    }
    let contradicted = |cause, why: &str| {
        let step = put(record, Answer::Applied, |next| {
            // The next find makes it a dead letter, with an alarm of its own.
            next.lose(at, Letter::Live, &Unsure::new(cause, why));
            next.note_finding(at, why);
        });
        noticed(step, Notice::Contradiction)
    };
    match finding {
        Ok(Finding::DoneNotKept(why)) => contradicted(Cause::DoneNotKept, why),
        Ok(Finding::Ambiguous(why)) => contradicted(Cause::Said, why),
        Ok(Finding::Completed(_)) => keep(Answer::Conflict),
        Ok(
            Finding::Absent
            | Finding::AbsentAndVoided(_)
            | Finding::Voided(_)
            | Finding::Unproven { .. }
            | Finding::Inconclusive(_),
        ) => put(record, Answer::Applied, |next| next.end_last_find()),
        Ok(Finding::StillOpen(why)) | Err(why) => put(record, Answer::Applied, |next| {
            next.find_again(at.now.after(next.jittered(terms.max_backoff)));
            next.note_finding(at, why);
        }),
    }
}

/// Whether the state of a record is one that a find after a release is about, and it is due.
pub(super) fn last_find_begun(record: &Record, at: Moment, hold: Duration) -> Step {
    match record.state {
        State::FailedRetryable { expires_at, .. }
            if record.has_last_find_to_come() && expires_at <= at.now =>
        {
            put(record, Answer::Applied, |next| next.find_again(at.now.after(hold)))
        }
        State::FailedRetryable { .. }
        | State::InProgress { .. }
        | State::Completed { .. }
        | State::Unknown { .. }
        | State::Expired { .. } => keep(Answer::Conflict),
    }
}
