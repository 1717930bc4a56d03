//! What really happened: the ledger that the workers keep, the history of every durable write, and the rules that both
//! are held against. Nothing here asks the engine or the machine what it thinks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onceward::event::{Answer, Decision, Event, Moment, Refusal, Step, Write};
use onceward::fingerprint::Comparison;
use onceward::store::Version;
use onceward::{
    Cause, Fence, Observation, OnLapse, OperationId, Outcome, Record, RecordId, State, Timestamp,
};

use super::plan::{CLAIM_PATIENCE, Chances};
use super::sometimes::Sometimes;
use crate::Random;

/// One real execution, written down by the worker itself.
#[derive(Debug, Clone)]
pub struct Execution {
    pub id: RecordId,
    pub asked_for: AskedFor,
    pub fence: Fence,
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
    pub ledger: Vec<Execution>,
    pub violations: Vec<String>,
    pub seen: BTreeMap<Sometimes, u64>,
    pub trace: Option<Vec<String>>,
    pub answers: Answers,
    /// Engine instances that crashed or stalled: what they held may be left behind.
    pub disturbed: BTreeSet<u64>,
    /// What was begun, whether or not it came to an execution.
    begun: BTreeSet<(RecordId, Fence)>,
    /// Operations whose claim came back too late to be begun: they are settled as any other, and that may fail for good.
    too_late: BTreeSet<RecordId>,
    /// Whether nothing but an engine can leave a claim lying about in this history.
    wedges_are_bugs: bool,
    store_now: Timestamp,
    fences: BTreeMap<RecordId, BTreeMap<Fence, Tenure>>,
    completed: BTreeMap<(RecordId, u64), Answered>,
    swept: BTreeSet<RecordId>,
    /// The last fence of each operation that an operator released.
    judged: BTreeMap<RecordId, Fence>,
    /// The window that each operation's id was dispatched in, by the fence that opened it.
    windows: BTreeMap<OperationId, Fence>,
}

/// What clients were told.
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
        let wedges_are_bugs = chances.store_always_answers();
        Self {
            random,
            chances,
            ledger: Vec::new(),
            violations: Vec::new(),
            seen: BTreeMap::new(),
            trace,
            answers: Answers::default(),
            disturbed: BTreeSet::new(),
            begun: BTreeSet::new(),
            too_late: BTreeSet::new(),
            wedges_are_bugs,
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

    pub fn violate(&mut self, now: Timestamp, what: String) {
        self.note(now, || format!("VIOLATION {what}"));
        self.violations.push(what);
    }

    /// A worker really does the work. The number it gets is the answer that clients must see.
    pub fn execute(&mut self, now: Timestamp, name: OperationId, asked_for: AskedFor, fence: Fence) -> u64 {
        let (id, number) = (name.record(), self.ledger.len() as u64);
        self.note(now, || format!("execution {number} of {id} under {fence:?}"));
        let tenure = self.fences.get(&id).and_then(|fences| fences.get(&fence)).cloned();
        match tenure {
            None => self
                .violate(now, format!("{id} was executed under {fence:?}, which no durable claim gave out")),
            Some(tenure) => {
                let twice = self.ledger.iter().any(|other| {
                    other.id == id
                        && self.fences[&id]
                            .get(&other.fence)
                            .is_some_and(|earlier| earlier.origin == tenure.origin)
                });
                if twice {
                    self.violate(now, format!("invariant 1: {id} was executed twice under one claim"));
                }
                if tenure.began == TenureBegan::AfterRelease {
                    self.saw(Sometimes::VerdictThenSecondExecution);
                }
                self.dispatched(now, name, tenure.window);
            }
        }
        self.ledger.push(Execution { id, asked_for, fence });
        number
    }

    /// The service is told the operation's id. One that deduplicates by it must not take one window for another.
    fn dispatched(&mut self, now: Timestamp, name: OperationId, window: Fence) {
        if self.windows.keys().any(|other| other.record() == name.record() && *other != name) {
            self.saw(Sometimes::SecondWindow);
        }
        let known = *self.windows.entry(name).or_insert(window);
        if known != window {
            self.violate(now, format!("{name} names the windows {known:?} and {window:?}"));
        }
    }

    /// Work begins. A claim that is older than half its lease may have been declared lost meanwhile.
    pub fn begin(&mut self, now: Timestamp, id: RecordId, fence: Fence, lease: Duration) {
        self.begun.insert((id, fence));
        let claimed_at = Timestamp::from_micros(fence.as_number());
        if self.chances.clock_jump == 0 && now.since(claimed_at) > lease / 2 {
            self.violate(now, format!("{id} was begun {:?} after its claim", now.since(claimed_at)));
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
                format!("invariant 2: answer {number} of {id} was given before it was durable"),
            ),
            Some(Answered { gone: Some(gone), .. }) if gone < asked => {
                self.violate(now, format!("invariant 3: answer {number} of {id} outlived its window"));
            }
            Some(Answered { promised, .. }) if expires_at > promised => {
                self.violate(now, format!("answer {number} of {id} was promised for longer than it is kept"));
            }
            Some(_) => {}
        }
        match self.ledger.get(usize::try_from(number).unwrap_or(usize::MAX)) {
            Some(execution) if execution.id == id && execution.asked_for == asked_for => {}
            other => self.violate(
                now,
                format!(
                    "invariants 4 and 8: the answer {number} to {asked_for:?} of {id} belongs to {other:?}"
                ),
            ),
        }
    }

    /// A write became durable. This is the history that the rules are about. Leases go by the store's clock, and expiry
    /// by `at`, which is that clock without its jumps.
    pub fn wrote(
        &mut self,
        at: Timestamp,
        store_now: Timestamp,
        id: RecordId,
        old: Option<&Record>,
        new: Option<&Record>,
    ) {
        self.store_now = store_now;
        self.note(at, || {
            let show = |record: Option<&Record>| {
                record.map_or("none".to_owned(), |r| format!("{} {:?}", r.state.name(), r.fence))
            };
            format!("{id}: {} -> {}", show(old), show(new))
        });
        if let Some(number) = old.and_then(answer_of)
            && new.and_then(answer_of) != Some(number)
            && let Some(answered) = self.completed.get_mut(&(id, number))
        {
            answered.gone = Some(at);
        }
        match (old, new) {
            (None, None) => {}
            (None, Some(new)) => self.began(at, id, None, new),
            (Some(old), None) => self.removed(at, id, old),
            (Some(old), Some(new)) => self.changed(at, id, old, new),
        }
    }

    fn removed(&mut self, at: Timestamp, id: RecordId, old: &Record) {
        let allowed = match &old.state {
            State::Completed { expires_at, .. } | State::FailedRetryable { expires_at, .. } => {
                *expires_at <= at
            }
            State::Expired { .. } => true,
            State::InProgress { .. } | State::Unknown { .. } => false,
        };
        if !allowed {
            self.violate(at, format!("invariant 5: {id} was removed while {}", old.state.name()));
        }
        self.swept.insert(id);
    }

    /// A tenure begins: with the first claim, or in place of another record.
    fn began(&mut self, at: Timestamp, id: RecordId, old: Option<&Record>, new: &Record) {
        if !matches!(new.state, State::InProgress { .. }) {
            return self.violate(at, format!("{id} began as {}", new.state.name()));
        }
        if old.is_none() && self.swept.contains(&id) {
            self.saw(Sometimes::KeyUsedAgainAfterSweep);
        }
        let began = match old.map(|old| &old.state) {
            _ if old.is_some_and(|old| old.origin == new.origin) => TenureBegan::Resumed,
            Some(State::FailedRetryable { .. }) => TenureBegan::AfterRelease,
            _ => TenureBegan::Fresh,
        };
        let fences = self.fences.entry(id).or_default();
        if fences.insert(new.fence, Tenure { origin: new.origin, window: new.opened, began }).is_some() {
            self.violate(at, format!("{:?} of {id} came back", new.fence));
        }
    }

    fn changed(&mut self, at: Timestamp, id: RecordId, old: &Record, new: &Record) {
        let spent_at = |time: Timestamp| match &old.state {
            State::Completed { expires_at, .. } | State::FailedRetryable { expires_at, .. } => {
                *expires_at <= time
            }
            State::Expired { .. } => true,
            State::InProgress { .. } | State::Unknown { .. } => false,
        };
        if new.fence != old.fence {
            self.check_new_tenure(at, id, old, new, spent_at(at.after(CLAIM_PATIENCE)));
            return self.began(at, id, Some(old), new);
        }
        let allowed = match (&old.state, &new.state) {
            (State::InProgress { .. } | State::Unknown { .. }, State::Expired { .. }) => false,
            (State::InProgress { .. }, _) => true,
            (State::Unknown { .. }, State::InProgress { .. }) => false,
            (State::Unknown { .. }, _) => true,
            (State::FailedRetryable { .. }, State::Completed { .. } | State::FailedRetryable { .. }) => true,
            (State::FailedRetryable { .. }, State::Unknown { cause, .. }) => *cause == Cause::DoneNotKept,
            (State::Completed { reply: before, .. }, State::Completed { reply: after, .. }) => {
                before == after
            }
            (State::Completed { .. } | State::FailedRetryable { .. }, State::Expired { .. }) => spent_at(at),
            (State::Expired { .. }, State::Expired { .. }) => true,
            _ => false,
        };
        if !allowed {
            self.violate(
                at,
                format!("invariants 3, 5 and 7: {id} went from {} to {}", old.state.name(), new.state.name()),
            );
        }
        if let (State::InProgress { lease_until }, State::Unknown { .. }) = (&old.state, &new.state) {
            self.check_lapse(at, id, *lease_until, new);
        }
        if let (State::FailedRetryable { .. }, false) =
            (&new.state, matches!(old.state, State::FailedRetryable { .. }))
        {
            self.check_release(at, id, old, new);
        }
        if matches!((&old.state, &new.state), (State::Unknown { .. }, State::FailedRetryable { .. }))
            && new.last_error.as_deref().is_some_and(|words| words.starts_with("the claim's answer was lost"))
        {
            self.saw(Sometimes::LapsedClaimGivenBack);
        }
        if matches!((&old.state, &new.state), (State::InProgress { .. }, State::Unknown { .. }))
            && new.last_error.as_deref().is_some_and(|words| words.starts_with("an earlier attempt"))
        {
            self.saw(Sometimes::DoubtKept);
        }
        if let State::Completed { reply, .. } = &new.state
            && !matches!(old.state, State::Completed { .. })
        {
            self.check_completion(at, id, old, new, &reply.body);
        }
    }

    /// Nothing but a verdict releases an execution that a worker really carried out, in whichever of its tenures.
    fn check_release(&mut self, at: Timestamp, id: RecordId, old: &Record, new: &Record) {
        if new.verdict != old.verdict {
            // The operator answers for all tenures so far; what comes later is judged anew.
            self.judged.insert(id, new.fence);
            return;
        }
        let judged = self.judged.get(&id).copied();
        let executed = self.ledger.iter().any(|done| {
            let tenure = self.fences.get(&id).and_then(|fences| fences.get(&done.fence));
            let same = done.id == id && tenure.is_some_and(|tenure| tenure.origin == new.origin);
            same && judged.is_none_or(|judged| done.fence > judged)
        });
        if executed {
            self.violate(at, format!("invariant 1: {id} was released although it had been executed"));
        }
    }

    /// Two tenures are separated by a release, by the end of the window, or by a declared resume.
    fn check_new_tenure(&mut self, at: Timestamp, id: RecordId, old: &Record, new: &Record, spent: bool) {
        let resumed = new.origin == old.origin
            && old.recovery_point.is_some()
            && match &old.state {
                State::InProgress { lease_until } => {
                    *lease_until <= self.store_now && matches!(old.terms.on_lapse, OnLapse::Resume { .. })
                }
                State::FailedRetryable { .. } => true,
                State::Completed { .. } | State::Unknown { .. } | State::Expired { .. } => false,
            };
        let released = matches!(old.state, State::FailedRetryable { .. });
        if !(resumed || released || spent) {
            self.violate(at, format!("invariant 1: {id} was given out again while {}", old.state.name()));
        }
        if new.opened != old.opened && (new.opened != new.fence || !spent) {
            self.violate(
                at,
                format!("{id} opened a window with {:?} while {}", new.opened, old.state.name()),
            );
        }
        if new.fence < old.fence {
            self.violate(at, format!("invariant 7: {:?} followed {:?} on {id}", new.fence, old.fence));
        }
    }

    /// A lease lapses only where its owner was disturbed or really at work: else a claim was left lying about.
    fn check_lapse(&mut self, at: Timestamp, id: RecordId, lease_until: Timestamp, new: &Record) {
        let begun = self.begun.contains(&(id, new.fence));
        let disturbed = self.was_disturbed(new) || !self.wedges_are_bugs;
        let lapsed = new.last_error.as_deref() == Some("the lease lapsed");
        if lapsed {
            self.saw(Sometimes::Lapse);
            let from_the_future = lease_until.since(self.store_now) > new.terms.lease * 2;
            // Where the store's clock jumps, the decision may have been made by a time that is gone again.
            let clock_is_steady = self.chances.clock_jump == 0;
            if lease_until > self.store_now && !from_the_future && clock_is_steady {
                self.violate(at, format!("the lease of {id} was taken away while it lived"));
            }
        }
        if lapsed && !begun && !disturbed {
            self.violate(at, format!("{id} was wedged: claimed, never begun, never given back"));
        }
    }

    /// Whether the process that holds this tenure was killed or stopped.
    fn was_disturbed(&self, record: &Record) -> bool {
        let mut instance = [0; 8];
        instance.copy_from_slice(&record.owner.as_bytes()[..8]);
        self.disturbed.contains(&u64::from_le_bytes(instance))
    }

    /// When everything has come to rest: an outcome may be unknown where something was begun, or where the process that
    /// knows better was disturbed. Else the store was away or slow, and that costs nobody an operator.
    pub fn check_unknown(&mut self, at: Timestamp, id: RecordId, record: &Record) {
        let unknown = matches!(record.state, State::Unknown { .. });
        let excused = record.doubt.is_some() || self.too_late.contains(&id) || self.was_disturbed(record);
        if unknown && !excused && !self.begun.contains(&(id, record.fence)) {
            self.violate(at, format!("{id} is unknown although nothing was begun under {:?}", record.fence));
        }
    }

    /// What is completed must be an execution of this very tenure, or somebody must have said so.
    fn check_completion(&mut self, at: Timestamp, id: RecordId, old: &Record, new: &Record, body: &[u8]) {
        let number = answer_of(new);
        let execution = number.and_then(|number| self.ledger.get(usize::try_from(number).ok()?)).cloned();
        let (Some(number), Some(execution)) = (number, execution) else {
            return self.violate(at, format!("{id} was completed with an answer that nobody made"));
        };
        let evidence = old.evidence.as_ref().is_some_and(|evidence| evidence.reply.body == body);
        let judged = new.verdict != old.verdict;
        // Resumed work answers with what an earlier tenure of the same execution did.
        let origin =
            self.fences.get(&id).and_then(|fences| fences.get(&execution.fence)).map(|tenure| tenure.origin);
        if execution.id != id || (origin != Some(new.origin) && !evidence && !judged) {
            self.violate(
                at,
                format!(
                    "invariant 7: {id} under {:?} was completed with the answer of {execution:?}",
                    new.fence
                ),
            );
        }
        if matches!(old.state, State::Unknown { .. }) && !judged {
            self.saw(Sometimes::LateSettleAccepted);
        }
        if matches!(old.state, State::InProgress { .. }) && evidence {
            self.saw(Sometimes::EvidenceUsedOnLapse);
        }
        if let State::Completed { settled_at, expires_at, .. } = &new.state {
            let promised = settled_at.after(new.terms.retention);
            if *expires_at < promised {
                self.violate(
                    at,
                    format!("invariant 3: the answer {number} of {id} is kept for less than its retention"),
                );
            }
            self.completed.insert((id, number), Answered { promised, gone: None });
        }
    }

    /// Rules about single steps, restated here in other words than the machine's.
    pub fn stepped(&mut self, record: Option<&Record>, at: Moment, event: &Event<'_>, step: &Step) {
        let Some(record) = record else { return };
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
                    self.violate(at.now, format!("a claim was refused because of itself: {:?}", step.answer));
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

    /// A durable write is gone, though whoever made it was told that it was durable.
    pub fn lost(&mut self, at: Timestamp, id: RecordId, version: Version) {
        self.violate(at, format!("version {version} of {id} was acknowledged and is gone"));
    }
}

/// Whether a tenure runs, by a lease that has not lapsed and is not from the future.
fn is_held(record: &Record, now: Timestamp) -> bool {
    matches!(record.state, State::InProgress { lease_until }
        if lease_until > now && lease_until.since(now) <= record.terms.lease * 2)
}

/// Which execution's answer a completed record holds.
fn answer_of(record: &Record) -> Option<u64> {
    match &record.state {
        State::Completed { reply, .. } => std::str::from_utf8(&reply.body).ok()?.parse().ok(),
        State::InProgress { .. }
        | State::FailedRetryable { .. }
        | State::Unknown { .. }
        | State::Expired { .. } => None,
    }
}
