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
//! - `find.rs`: an unknown outcome is asked about, and what was found out is applied;
//! - `absence.rs`: there is no trace of the work;
//! - `void.rs`: an owner can commit nothing more;
//! - `verdict.rs`: evidence and operators determine an outcome;
//! - `sweep.rs`: a lease lapses, a window ends.

mod absence;
mod claim;
mod find;
mod sweep;
mod tenure;
mod verdict;
mod void;

use self::claim::{Claimant, claimed, resumed};
use self::find::{find_begun, found, found_late, unfindable};
use self::sweep::{expired, swept};
use self::tenure::{checkpointed, renewed, settled};
use self::verdict::{resolved, testified};
use crate::event::{Answer, Event, Moment, Notice, Step, keep, noticed};
use crate::record::Record;

/// What an event does to a record at this moment.
pub fn step(record: Option<&Record>, at: Moment, event: &Event<'_>) -> Step {
    match (record, event) {
        (_, Event::Claim { claim, owner, label, format, namespace }) => {
            let (owner, format, namespace) = (*owner, *format, *namespace);
            claimed(record, at, &Claimant { claim, owner, label, format, namespace })
        }
        (Some(record), Event::Resume { owner }) => resumed(record, at, *owner),
        (Some(record), Event::Renew { fence }) => renewed(record, *fence, |next| next.extend_lease(at)),
        (Some(record), Event::Checkpoint { fence, point }) => checkpointed(record, at, *fence, point),
        (Some(record), event) if event.is_about_another(record) => keep(Answer::Conflict),
        (Some(record), Event::Settle { fence, outcome }) => settled(record, at, *fence, outcome),
        (Some(record), Event::Evidence { reply, by, .. }) => testified(record, at, reply, by),
        (Some(record), Event::Find { hold, start, .. }) => find_begun(record, at, *hold, *start),
        (Some(record), Event::Found { fence, finding, .. }) if *fence != record.fence => {
            found_late(record, at, *fence, finding)
        }
        (Some(record), Event::Found { finding, control, terms, by, .. }) => {
            found(record, at, finding, *control, terms, by)
        }
        (Some(record), Event::GiveUp { after }) => unfindable(record, at, *after),
        (Some(record), Event::Resolve { verdict, barrier, by, reason, .. }) => {
            resolved(record, at, verdict, barrier, (by, reason))
        }
        (Some(record), Event::Expire { after, .. }) => expired(record, at, *after),
        (Some(record), Event::Sweep { expiry }) => swept(record, at, *expiry),
        // The work was done, but its record was swept: decisions made since then may be wrong.
        (None, Event::Settle { outcome, .. }) if outcome.is_done() => {
            noticed(keep(Answer::Fenced), Notice::Contradiction)
        }
        (None, Event::Renew { .. } | Event::Checkpoint { .. } | Event::Settle { .. }) => keep(Answer::Fenced),
        (None, Event::Sweep { .. } | Event::GiveUp { .. }) => keep(Answer::Left),
        (
            None,
            Event::Resume { .. }
            | Event::Evidence { .. }
            | Event::Find { .. }
            | Event::Found { .. }
            | Event::Resolve { .. }
            | Event::Expire { .. },
        ) => keep(Answer::Conflict),
    }
}
