//! The rules about receipts: what was committed in the user's database, held against what the engines made of it.

use std::collections::{BTreeMap, BTreeSet};

use onceward::event::{Event, Step, Write};
use onceward::reconcile::{Finding, UnknownOperation};
use onceward::record::{Letter, Receipts, State};
use onceward::{Fence, OperationId, Outcome, Record, RecordId, Timestamp};

use super::super::rule::Rule;
use super::super::sometimes::Sometimes;
use super::{Execution, Work, World};

/// Who resolves, by the ledger.
pub const OPERATOR: &str = "operator";

/// What handlers really did with receipt rows, and what stands in the notes.
#[derive(Default)]
pub struct ReceiptBook {
    /// What was committed under each operation, by the number of its execution.
    effects: BTreeMap<OperationId, Vec<u64>>,
    /// Below these fences a void has released the operation.
    floors: BTreeMap<OperationId, Fence>,
    /// Operations with an outside call that was begun and is not done.
    open_calls: BTreeSet<OperationId>,
    /// Operations whose outside call may begin anew, because a person has decided that it was not made.
    undone: BTreeSet<OperationId>,
    /// Operations whose answer says that nothing was done.
    refused: BTreeSet<OperationId>,
    /// Answers that open transactions have written.
    open_answers: BTreeMap<OperationId, u64>,
    /// Handlers at work.
    handlers: BTreeMap<OperationId, u32>,
    /// Finds under way.
    finds: BTreeMap<OperationId, u32>,
    routes: BTreeMap<String, RouteNotes>,
}

/// What is true of one route.
#[derive(Default)]
struct RouteNotes {
    /// The earliest window in which a handler has committed a row.
    first_row: Option<Fence>,
    suspended: bool,
    /// How often the voids were resumed, and when last.
    resumed: u32,
    resumed_at: Option<Timestamp>,
}

/// What was true when a find began.
#[derive(Debug, Clone, Copy)]
pub struct FindBegan {
    suspended: bool,
    resumed: u32,
}

/// What an operator who reads the ledger knows of an operation.
#[derive(Debug, Clone, Copy)]
pub struct Truth {
    /// Which execution was committed as complete.
    pub done: Option<u64>,
    /// Whether a handler is still at work on it.
    pub at_work: bool,
    /// Whether a find is under way.
    pub being_found: bool,
}

impl ReceiptBook {
    pub fn handler_began(&mut self, operation: OperationId) {
        *self.handlers.entry(operation).or_default() += 1;
    }

    pub fn handler_ended(&mut self, operation: OperationId) {
        self.handlers.entry(operation).and_modify(|count| *count -= 1);
    }

    /// A person has decided that the outside call that was begun was not made.
    pub fn person_decided(&mut self, operation: OperationId) {
        self.open_calls.remove(&operation);
        self.undone.insert(operation);
    }

    pub fn find_ended(&mut self, operation: OperationId) {
        self.finds.entry(operation).and_modify(|count| *count -= 1);
    }

    /// What an open transaction has written as the answer, until it ends.
    pub fn transaction_wrote(&mut self, operation: OperationId, answer: Option<u64>) {
        match answer {
            Some(number) => self.open_answers.insert(operation, number),
            None => self.open_answers.remove(&operation),
        };
    }

    pub fn written_in_open_transaction(&self, operation: OperationId) -> Option<u64> {
        self.open_answers.get(&operation).copied()
    }

    pub fn suspended_routes(&self) -> Vec<String> {
        let suspended = self.routes.iter().filter(|(_, notes)| notes.suspended);
        suspended.map(|(route, _)| route.clone()).collect()
    }

    fn route(&mut self, route: &str) -> &mut RouteNotes {
        self.routes.entry(route.to_owned()).or_default()
    }
}

impl World {
    /// The number of the next execution, which is its answer once it is committed.
    pub fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// A handler's effects became durable, or it answers that there are none.
    pub fn committed(&mut self, now: Timestamp, number: u64, execution: Execution) {
        let Execution { name, asked_for, fence, work } = execution;
        self.note(now, || format!("{number}: {work:?} of {name} under {fence:?}"));
        let window = self.check_claimed(now, &execution);
        if let Some(window) = window {
            self.dispatched(now, name, window);
        }
        if work.has_row() {
            let notes = self.receipts.route(&route_of(asked_for.target));
            notes.first_row = notes.first_row.into_iter().chain(name.opened()).min();
        }
        let floor = self.receipts.floors.get(&name).copied();
        if work.has_row() && floor.is_some_and(|floor| fence < floor) {
            let what = format!("{name} was committed under {fence:?} although it is voided below {floor:?}");
            self.violate(now, Rule::VoidsHold, what);
        }
        if work == Work::Completed && self.receipts.refused.contains(&name) {
            let what = format!("{name} was committed after it was answered that nothing was done");
            self.violate(now, Rule::AnswersCommitted, what);
        }
        let effects = self.receipts.effects.entry(name).or_default();
        let twice =
            effects.iter().any(|other| self.ledger.get(other).is_some_and(|other| other.work == work));
        effects.push(number);
        let anew = work == Work::Entered && self.receipts.undone.remove(&name);
        if twice && work.happens_once() && !anew {
            self.violate(now, Rule::CommittedOnce, format!("{work:?} of {name} was committed twice"));
        }
        match work {
            Work::Entered => drop(self.receipts.open_calls.insert(name)),
            Work::Completed => drop(self.receipts.open_calls.remove(&name)),
            Work::Done | Work::Begun | Work::Called | Work::Forgotten | Work::Refused => {}
        }
        self.ledger.insert(number, execution);
    }

    /// What the ledger shows of an operation.
    pub fn truth(&self, operation: OperationId) -> Truth {
        let positive =
            |counts: &BTreeMap<OperationId, u32>| counts.get(&operation).is_some_and(|count| *count > 0);
        Truth {
            done: [Work::Completed, Work::Forgotten, Work::Called]
                .into_iter()
                .find_map(|work| self.effect(operation, work)),
            at_work: positive(&self.receipts.handlers),
            being_found: positive(&self.receipts.finds),
        }
    }

    fn effect(&self, operation: OperationId, work: Work) -> Option<u64> {
        let effects = self.receipts.effects.get(&operation)?;
        effects.iter().copied().find(|number| self.ledger.get(number).is_some_and(|done| done.work == work))
    }

    pub fn voids_suspended(&mut self, route: &str) {
        self.receipts.route(route).suspended = true;
        self.saw(Sometimes::VoidsSuspended);
    }

    pub fn voids_resumed(&mut self, now: Timestamp, route: &str) {
        let notes = self.receipts.route(route);
        notes.suspended = false;
        notes.resumed += 1;
        notes.resumed_at = Some(now);
    }

    pub fn find_began(&mut self, operation: OperationId, route: &str) -> FindBegan {
        *self.receipts.finds.entry(operation).or_default() += 1;
        let RouteNotes { suspended, resumed, .. } = *self.receipts.route(route);
        FindBegan { suspended, resumed }
    }

    /// A find has ended. A missing answer proves something only where handlers are known to write rows.
    pub fn found(
        &mut self,
        now: Timestamp,
        unknown: &UnknownOperation,
        before: FindBegan,
        found: &Result<Finding, String>,
    ) {
        let (name, record) = (unknown.operation, &unknown.record);
        self.note(now, || format!("find of {name} under {:?}: {found:?}", unknown.fence));
        match found {
            Ok(Finding::Completed(_)) => self.saw(Sometimes::CompletionFound),
            Ok(Finding::Ambiguous(_)) if self.receipts.open_calls.contains(&name) => {
                self.saw(Sometimes::OpenCallLeftToAPerson);
            }
            Ok(Finding::Voided(_)) => {
                let RouteNotes { first_row, suspended, resumed, resumed_at } =
                    *self.receipts.route(&record.subject.route);
                let since_resumed = before.resumed == resumed;
                if before.suspended && suspended && since_resumed {
                    let what = format!("{name} was voided while the voids of its route were suspended");
                    self.violate(now, Rule::VoidsControlled, what);
                }
                // Fences of a clock that was set back do not tell the order.
                if first_row.is_none_or(|first| record.opened <= first && !self.clock_jumps) {
                    let what = format!("{name} was voided though no handler had written a row before");
                    self.violate(now, Rule::VoidsControlled, what);
                }
                let opened = Timestamp::from_micros(record.opened.as_number());
                if since_resumed && resumed_at.is_some_and(|at| opened <= at) && !self.clock_jumps {
                    let what =
                        format!("{name} was voided though it was opened before its handler was corrected");
                    self.violate(now, Rule::VoidsControlled, what);
                }
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// A void was written into a record: what is released now was not committed, and never will be.
    pub(super) fn voided(&mut self, at: Timestamp, id: RecordId, old: &Record, new: &Record) {
        let name = old.operation(id);
        self.saw(Sometimes::VoidReleased);
        let from = matches!(old.state, State::InProgress { .. } | State::Unknown { .. });
        let to = matches!(new.state, State::FailedRetryable { .. });
        if !(from && to) || new.voided != Some(new.fence) || new.fence != old.fence.above() {
            let what = format!(
                "{name} under {:?} was voided at {:?}, from {} to {}",
                old.fence,
                new.voided,
                old.state.name(),
                new.state.name()
            );
            self.violate(at, Rule::VoidsHold, what);
        }
        if let Some(number) = self.effect(name, Work::Completed) {
            let what = format!("{name} was released by a void although {number} was committed");
            self.violate(at, Rule::VoidsHold, what);
        }
        let begun = self.effect(name, Work::Begun).is_some();
        if begun != new.recovery_point.is_some() {
            let what =
                format!("{name} goes on from {:?} after a void, and begun is {begun}", new.recovery_point);
            self.violate(at, Rule::VoidsHold, what);
        }
        if new.verdict.as_ref().is_some_and(|verdict| verdict.by == OPERATOR) {
            self.receipts.person_decided(name);
        } else if self.receipts.open_calls.contains(&name) {
            let what = format!("{name} was released by a void while an outside call was open");
            self.violate(at, Rule::OpenCalls, what);
        }
        self.receipts.floors.insert(name, new.fence);
    }

    /// An answer was given to a client.
    pub(super) fn answered_by(&mut self, now: Timestamp, number: u64, execution: &Execution) {
        let Execution { name, work, .. } = *execution;
        if work != Work::Refused {
            return;
        }
        self.receipts.refused.insert(name);
        if let Some(done) = self.effect(name, Work::Completed) {
            let what = format!("{number} says that nothing was done under {name}, and {done} was committed");
            self.violate(now, Rule::AnswersCommitted, what);
        }
    }

    /// An owner below a void leaves no trace, and a finding about another tenure changes nothing but evidence.
    pub(super) fn check_fences_of_step(
        &mut self,
        at: Timestamp,
        record: &Record,
        event: &Event<'_>,
        step: &Step,
    ) {
        let (fence, finding) = match event {
            Event::Settle { fence, outcome } => (*fence, matches!(outcome, Outcome::Voided { .. })),
            Event::Found { fence, .. } => (*fence, true),
            Event::Evidence { fence: Some(fence), .. } => (*fence, false),
            _ => return,
        };
        if record.voided.is_some_and(|floor| fence < floor) && step.write != Write::Keep {
            let what = format!("{fence:?} is voided at {:?}, and left a trace: {event:?}", record.voided);
            self.violate(at, Rule::VoidedIsSilent, what);
        }
        if !finding || fence == record.fence {
            return;
        }
        let same = match &step.write {
            Write::Keep => true,
            Write::Put(next) => {
                let evidence = next.evidence.clone();
                record.opened <= fence && **next == Record { evidence, ..record.clone() }
            }
            Write::Remove => false,
        };
        if !same {
            let what =
                format!("a finding about {fence:?} changed the record of {:?}: {event:?}", record.fence);
            self.violate(at, Rule::OwnFinding, what);
        }
    }

    /// Invariant 10, at rest: what has receipts is found out, or waits for a person.
    pub fn check_found_out(&mut self, at: Timestamp, id: RecordId, record: &Record) {
        if let State::Unknown { letter: Letter::Live, .. } = record.state
            && record.receipts() == Receipts::Kept
        {
            let what = format!("invariant 10: {id} is still being found out: {:?}", record.finding);
            self.violate(at, Rule::NotWedged, what);
        }
    }
}

/// The name of the route that a target has.
pub fn route_of(target: u64) -> String {
    format!("POST /{target}")
}

impl Work {
    /// Whether it is committed together with a receipt row.
    const fn has_row(self) -> bool {
        match self {
            Self::Begun | Self::Entered | Self::Completed => true,
            Self::Done | Self::Called | Self::Forgotten | Self::Refused => false,
        }
    }

    /// Whether a row keeps it from happening twice.
    const fn happens_once(self) -> bool {
        match self {
            Self::Begun | Self::Entered | Self::Called | Self::Completed => true,
            Self::Done | Self::Forgotten | Self::Refused => false,
        }
    }
}
