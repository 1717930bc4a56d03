//! A void: the fence was raised in the database of the effect, so that its owner can commit nothing more.

use super::verdict::overruled;
use crate::event::{Answer, Moment, Step, keep, put};
use crate::outcome::{Evidence, Unsure, Void};
use crate::record::{Cause, Letter, Receipts, Record, State};

const NOT_COMMITTED: &str = "nothing was committed, and nothing can be any more";

/// The engine that executed has seen the execution end, and has raised the fence above it.
pub(super) fn voided_by_owner(record: &Record, at: Moment, void: &Void, why: &str) -> Step {
    match (voided(record, at, void, Some(why), "receipt row"), &record.state) {
        (Ok(step), _) => step,
        (Err(doubtful), State::InProgress { .. }) => {
            let unsure = Unsure::new(Cause::Lost, format!("{why}; {doubtful}"));
            put(record, Answer::Applied, |next| next.lose(at, Letter::Live, &unsure))
        }
        (Err(_), _) => keep(Answer::Applied),
    }
}

/// Why nothing but a person may release a record: the work was done, or what was begun cannot be found out.
pub(super) fn denied(record: &Record) -> Option<&'static str> {
    if record.knows_it_was_done() {
        Some("the work was done according to its owner, and its trace is not there")
    } else if !record.entered.is_empty() {
        Some("an outside call was begun, and nothing tells whether it was made")
    } else {
        None
    }
}

/// What the owner has not committed under its fence it never will: the operation is released, or goes on after the row's
/// phase. The error says in words why the void decides nothing.
pub(super) fn voided(
    record: &Record,
    at: Moment,
    Void { fence, point }: &Void,
    why: Option<&str>,
    by: &str,
) -> Result<Step, &'static str> {
    if record.receipts() == Receipts::None {
        return Err("it was claimed before its route had receipts, so a missing receipt proves nothing");
    }
    if let Some(why) = denied(record) {
        return Err(why);
    }
    if *fence != record.fence.above() {
        return Err("the fence in the database is not the one that was raised for this execution");
    }
    if point.is_none() && record.recovery_point.is_some() {
        return Err("a phase was committed before, and the database does not have it");
    }
    if let Some(Evidence { reply, .. }) = &record.evidence {
        return Ok(overruled(record, at, reply, Answer::AlreadySettled(Some(reply.clone()))));
    }
    Ok(put(record, Answer::Applied, |next| {
        next.void(*fence, point.clone());
        // What went wrong stays on record where a find only adds that nothing was committed.
        let (cause, reason) = match (why, &record.last_error) {
            (Some(why), _) => (why, why),
            (None, Some(cause)) => (cause.as_str(), NOT_COMMITTED),
            (None, None) => (NOT_COMMITTED, NOT_COMMITTED),
        };
        next.release(at, cause);
        next.judge(at, by, reason);
    }))
}
