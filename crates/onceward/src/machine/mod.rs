//! The idea of Onceward: what may happen to a record, and what the caller is answered.
//!
//! [`step`] is pure and total. It reads no clock, does no I/O and cannot fail. An engine applies what it returns with a
//! compare-and-swap and, on a conflict, asks again about the record that won. `docs/state_machine.md` draws the same
//! transitions, and a test keeps the two equal.
//!
//! This file dispatches; each family of events has a file of its own:
//!
//! - `claim.rs`: a request, or a completer, wants the work done;
//! - `tenure.rs`: the owner renews, checkpoints or settles;
//! - `verdict.rs`: evidence, probes and operators determine an outcome;
//! - `sweep.rs`: a lease lapses, a window ends.

mod claim;
mod sweep;
mod tenure;
mod verdict;

use self::claim::{Claimant, claimed, resumed};
use self::sweep::{expired, swept};
use self::tenure::{renewed, settled};
use self::verdict::{resolved, testified, unanswered};
use crate::event::{Answer, Event, Moment, Notice, Step, keep, noticed};
use crate::record::Record;

/// What an event does to a record at this moment.
pub fn step(record: Option<&Record>, at: Moment, event: &Event<'_>) -> Step {
    match (record, event) {
        (_, Event::Claim { claim, owner, label, format }) => {
            claimed(record, at, &Claimant { claim, owner: *owner, label, format: *format })
        }
        (Some(record), Event::Resume { owner }) => resumed(record, at, *owner),
        (Some(record), Event::Renew { fence }) => renewed(record, *fence, |next| next.extend_lease(at)),
        (Some(record), Event::Checkpoint { fence, point }) => renewed(record, *fence, |next| {
            next.extend_lease(at);
            next.recovery_point = Some(point.clone());
        }),
        (Some(record), event) if event.is_about_another(record) => keep(Answer::Conflict),
        (Some(record), Event::Settle { fence, outcome }) => settled(record, at, *fence, outcome),
        (Some(record), Event::Evidence { reply, by, .. }) => testified(record, at, reply, by),
        (Some(record), Event::Inconclusive { backoff, limit, .. }) => {
            unanswered(record, at, *backoff, *limit)
        }
        (Some(record), Event::Resolve { verdict, by, reason, .. }) => {
            resolved(record, at, verdict, by, reason)
        }
        (Some(record), Event::Expire { after, .. }) => expired(record, at, *after),
        (Some(record), Event::Sweep { expiry }) => swept(record, at, *expiry),
        // The work was done, but its record was swept: decisions made since then may be wrong.
        (None, Event::Settle { outcome, .. }) if outcome.is_done() => {
            noticed(keep(Answer::Fenced), Notice::Contradiction)
        }
        (None, Event::Renew { .. } | Event::Checkpoint { .. } | Event::Settle { .. }) => keep(Answer::Fenced),
        (None, Event::Sweep { .. }) => keep(Answer::Left),
        (
            None,
            Event::Resume { .. }
            | Event::Evidence { .. }
            | Event::Inconclusive { .. }
            | Event::Resolve { .. }
            | Event::Expire { .. },
        ) => keep(Answer::Conflict),
    }
}
