//! What really happened: the ledger that the workers keep, the history of every durable write, and the rules that both
//! are held against. Nothing here depends on the engine's or the machine's own view.

mod receipts;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onceward::event::{Answer, Decision, Event, Moment, Refusal, Step, Write};
use onceward::fingerprint::Comparison;
use onceward::store::Version;
use onceward::{
    Fence, OperationId, Outcome, Record, RecordId, Timestamp, engine::Observation, record::State,
};

use super::plan::Chances;
use super::rule::{Rule, Violation};
use super::sometimes::Sometimes;
use crate::Random;

use self::receipts::ReceiptBook;
pub use self::receipts::{OPERATOR, route_of};

/// One real execution, written down by the worker itself.
#[derive(Debug, Clone, Copy)]
pub struct Execution {
    pub name: OperationId,
    pub asked_for: AskedFor,
    pub fence: Fence,
    pub work: Work,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// All of it, on a route without receipts.
    Done,
    /// The first of two phases was committed.
    Begun,
    /// It was committed that an outside call begins.
    Entered,
    /// The outside call happened.
    Called,
    /// The rest was committed, with the answer.
    Completed,
    /// All of it was committed without a receipt row.
    Forgotten,
    /// Nothing, and the answer says so.
    Refused,
}

impl Execution {
    pub const fn id(&self) -> RecordId {
        self.name.record()
    }

    /// Whether the work was done as a whole.
    pub const fn is_done(&self) -> bool {
        matches!(self.work, Work::Done | Work::Completed | Work::Forgotten)
    }
}

/// What a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedFor {
    pub body: u64,
    pub target: u64,
}

/// Everything that one history shares.
pub struct World {
    pub random: Random,
    pub chances: Chances,
    pub ledger: BTreeMap<u64, Execution>,
    next_number: u64,
    pub receipts: ReceiptBook,
    pub violations: Vec<Violation>,
    pub seen: BTreeMap<Sometimes, u64>,
    pub trace: Option<Vec<String>>,
    pub answers: Answers,
    /// Engine instances that crashed or stalled: what they held may be left behind.
    pub disturbed: BTreeSet<u64>,
    /// What was begun, whether or not it came to an execution.
    begun: BTreeSet<(RecordId, Fence)>,
    /// Operations whose claim was answered too late to be begun. They are settled like any other, and that may fail for
    /// good.
    too_late: BTreeSet<RecordId>,
    /// Whether only a bug of an engine can leave a claim unsettled in this history.
    wedges_are_bugs: bool,
    /// Whether the store's clock jumps in this history.
    clock_jumps: bool,
    store_now: Timestamp,
    fences: BTreeMap<RecordId, BTreeMap<Fence, Tenure>>,
    completed: BTreeMap<(RecordId, u64), Answered>,
    swept: BTreeSet<RecordId>,
    /// The last fence of each operation that an operator released.
    judged: BTreeMap<RecordId, Fence>,
    /// The window that each operation's id was dispatched in, by the fence that opened it.
    windows: BTreeMap<OperationId, Fence>,
}

/// Counts of the answers that clients got.
#[derive(Debug, Clone, Copy, Default)]
pub struct Answers {
    pub asked: u64,
    pub replies: u64,
    pub refused: u64,
    pub failed: u64,
}

/// An answer that was durable for a while.
#[derive(Debug, Clone, Copy)]
struct Answered {
    /// Until when it was promised: what its terms say, counted from its settlement.
    promised: Timestamp,
    /// When its record was replaced or removed, by the clock without jumps.
    gone: Option<Timestamp>,
    /// Until when caches may give it although its record is gone. An operator's request to end the window may arrive after
    /// the operator gave it up, and the window then ends before caches have checked again.
    cached: Timestamp,
}

#[derive(Debug, Clone)]
struct Tenure {
    origin: Fence,
    /// The fence that opened the window.
    window: Fence,
    began: TenureBegan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TenureBegan {
    Fresh,
    AfterRelease,
    Resumed,
}

impl World {
    pub fn new(random: Random, chances: Chances, trace: Option<Vec<String>>) -> Self {
        let (wedges_are_bugs, clock_jumps) = (chances.store_always_answers(), chances.clock_jump > 0);
        Self {
            random,
            chances,
            ledger: BTreeMap::new(),
            next_number: 0,
            receipts: ReceiptBook::default(),
            violations: Vec::new(),
            seen: BTreeMap::new(),
            trace,
            answers: Answers::default(),
            disturbed: BTreeSet::new(),
            begun: BTreeSet::new(),
            too_late: BTreeSet::new(),
            wedges_are_bugs,
            clock_jumps,
            store_now: Timestamp::from_micros(0),
            fences: BTreeMap::new(),
            completed: BTreeMap::new(),
            swept: BTreeSet::new(),
            judged: BTreeMap::new(),
            windows: BTreeMap::new(),
        }
    }

    pub fn saw(&mut self, what: Sometimes) {
        *self.seen.entry(what).or_default() += 1;
    }

    pub fn note(&mut self, now: Timestamp, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let micros = now.as_micros().saturating_sub(super::EPOCH_SECS * 1_000_000);
            trace.push(format!("{:>6}.{:06} {}", micros / 1_000_000, micros % 1_000_000, line()));
        }
    }

    pub fn violate(&mut self, now: Timestamp, rule: Rule, what: String) {
        self.note(now, || format!("VIOLATION {what}"));
        self.violations.push(Violation { rule, what });
    }

    /// Records that a worker has done the work. The number that it returns is the answer that clients must see.
    pub fn execute(&mut self, now: Timestamp, name: OperationId, asked_for: AskedFor, fence: Fence) -> u64 {
        let execution = Execution { name, asked_for, fence, work: Work::Done };
        let (id, number) = (name.record(), self.number());
        self.note(now, || format!("execution {number} of {id} under {fence:?}"));
        if let Some(window) = self.check_claimed(now, &execution) {
            let origin = self.origin(id, fence);
            let twice =
                self.ledger.values().any(|other| other.id() == id && self.origin(id, other.fence) == origin);
            if twice {
                self.violate(
                    now,
                    Rule::ExecutedOnce,
                    format!("invariant 1: {id} was executed twice under one claim"),
                );
            }
            self.dispatched(now, name, window);
        }
        self.ledger.insert(number, execution);
        number
    }

    /// Which execution a tenure belongs to, by the fence that began it.
    fn origin(&self, id: RecordId, fence: Fence) -> Option<Fence> {
        Some(self.fences.get(&id)?.get(&fence)?.origin)
    }

    /// The window of the tenure that this execution happens under, which a durable claim must have given out.
    fn check_claimed(&mut self, now: Timestamp, execution: &Execution) -> Option<Fence> {
        let (id, fence) = (execution.id(), execution.fence);
        let Some(tenure) = self.fences.get(&id).and_then(|fences| fences.get(&fence)).cloned() else {
            self.violate(
                now,
                Rule::Claimed,
                format!("{id} was executed under {fence:?}, which no durable claim gave out"),
            );
            return None;
        };
        if tenure.began == TenureBegan::AfterRelease {
            self.saw(Sometimes::VerdictThenSecondExecution);
        }
        Some(tenure.window)
    }

    /// Records that the service gets the operation's id. One that deduplicates by it must not take one window for another.
    fn dispatched(&mut self, now: Timestamp, name: OperationId, window: Fence) {
        if self.windows.keys().any(|other| other.record() == name.record() && *other != name) {
            self.saw(Sometimes::SecondWindow);
        }
        let known = *self.windows.entry(name).or_insert(window);
        if known != window {
            self.violate(now, Rule::Windows, format!("{name} names the windows {known:?} and {window:?}"));
        }
    }

    /// Work begins. A claim that is older than half its lease may have been declared lost meanwhile.
    pub fn begin(&mut self, now: Timestamp, id: RecordId, fence: Fence, lease: Duration) {
        self.begun.insert((id, fence));
        let claimed_at = Timestamp::from_micros(fence.as_number());
        if !self.clock_jumps && now.since(claimed_at) > lease / 2 {
            self.violate(
                now,
                Rule::BegunInTime,
                format!("{id} was begun {:?} after its claim", now.since(claimed_at)),
            );
        }
    }

    /// A client that asked at `asked` was given an answer.
    pub fn answered(
        &mut self,
        now: Timestamp,
        asked: Timestamp,
        request: (RecordId, AskedFor),
        answer: (u64, Timestamp),
    ) {
        let ((id, asked_for), (number, expires_at)) = (request, answer);
        self.answers.replies += 1;
        match self.completed.get(&(id, number)).copied() {
            None => self.violate(
                now,
                Rule::DurableFirst,
                format!("invariant 2: answer {number} of {id} was given before it was durable"),
            ),
            Some(Answered { gone: Some(gone), cached, .. }) if gone.max(cached) < asked => {
                self.violate(
                    now,
                    Rule::OneAnswer,
                    format!("invariant 3: answer {number} of {id} outlived its window"),
                );
            }
            Some(Answered { promised, .. }) if expires_at > promised => {
                self.violate(
                    now,
                    Rule::OneAnswer,
                    format!("answer {number} of {id} was promised for longer than it is kept"),
                );
            }
            Some(_) => {}
        }
        match self.ledger.get(&number).copied() {
            Some(execution) if execution.id() == id && execution.asked_for == asked_for => {
                self.answered_by(now, number, &execution);
            }
            None if number < self.next_number => self.violate(
                now,
                Rule::AnswersCommitted,
                format!("the answer {number} of {id} was never committed"),
            ),
            other => self.violate(
                now,
                Rule::OwnAnswer,
                format!(
                    "invariants 4 and 8: the answer {number} to {asked_for:?} of {id} belongs to {other:?}"
                ),
            ),
        }
    }

    /// Checks the rules about single steps, which are written here independently of the machine.
    pub fn stepped(&mut self, record: Option<&Record>, at: Moment, event: &Event<'_>, step: &Step) {
        let Some(record) = record else { return };
        self.check_fences_of_step(at.now, record, event, step);
        let over = match &record.state {
            State::Completed { expires_at, .. } | State::FailedRetryable { expires_at, .. } => {
                *expires_at <= at.expiry_now
            }
            State::Expired { .. } => true,
            State::InProgress { .. } | State::Unknown { .. } => false,
        };
        match event {
            Event::Claim { claim, owner, .. } => {
                let refused = matches!(step.answer, Answer::Decision(Decision::Refuse(_)));
                if refused && record.owner == *owner && is_held(record, at.now) {
                    self.violate(
                        at.now,
                        Rule::OwnClaim,
                        format!("a claim was refused because of itself: {:?}", step.answer),
                    );
                }
                let different = record.fingerprint.compare(claim.fingerprint()) == Comparison::Different;
                if !over && record.fingerprint.target() != claim.fingerprint().target() {
                    self.saw(Sometimes::OtherTarget);
                }
                let mismatch =
                    matches!(step.answer, Answer::Decision(Decision::Refuse(Refusal::Mismatch(_))));
                if different && !over && !(mismatch && step.write == Write::Keep) {
                    self.violate(
                        at.now,
                        Rule::OwnAnswer,
                        format!(
                            "invariant 4: another request met {} and got {:?}",
                            record.state.name(),
                            step.answer
                        ),
                    );
                }
            }
            Event::Settle { fence, outcome: Outcome::Completed(reply) } if *fence == record.fence => {
                let kept = match (&record.state, &step.write) {
                    (State::Completed { .. } | State::Expired { .. }, write) => *write == Write::Keep,
                    (_, Write::Put(next)) => {
                        matches!(&next.state, State::Completed { reply: stored, .. } if stored == reply)
                    }
                    (_, Write::Keep | Write::Remove) => false,
                };
                if !kept {
                    self.violate(
                        at.now,
                        Rule::Completions,
                        format!(
                            "a completion under the right fence was thrown away while {}",
                            record.state.name()
                        ),
                    );
                }
            }
            _ => {}
        }
    }

    pub fn observed(&mut self, id: RecordId, what: Observation) {
        if what == Observation::TooLate {
            self.too_late.insert(id);
        }
        let what = match what {
            Observation::Fenced => Sometimes::LateFencedSettle,
            Observation::AttachWoken => Sometimes::AttachWoken,
            Observation::Resumed => Sometimes::Resumed,
            Observation::Contradiction => Sometimes::Contradiction,
            Observation::DeadLettered => Sometimes::DeadLetter,
            Observation::TooLate => Sometimes::TooLateToBegin,
            Observation::GivenBack => Sometimes::ClaimGivenBack,
            Observation::ReplayedFromCache => Sometimes::ReplayFromCache,
            Observation::Mismatch => Sometimes::Mismatch,
            Observation::Panicked => Sometimes::WorkPanicked,
            Observation::ExpirySuspended => Sometimes::ExpirySuspended,
            _ => return,
        };
        self.saw(what);
    }

    /// A durable write is gone, though it was confirmed as durable.
    pub fn lost(&mut self, at: Timestamp, id: RecordId, version: Version) {
        self.violate(at, Rule::Durable, format!("version {version} of {id} was acknowledged and is gone"));
    }
}

/// Whether a tenure runs, by a lease that has not lapsed and is not from the future.
fn is_held(record: &Record, now: Timestamp) -> bool {
    matches!(record.state, State::InProgress { lease_until }
        if lease_until > now && lease_until.since(now) <= record.terms.lease * 2)
}
