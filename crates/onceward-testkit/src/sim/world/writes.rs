//! The rules about durable writes: what may follow what in the history of one record.

use onceward::{
    OnLapse, Record, RecordId, Timestamp,
    record::{Cause, State},
};

use super::super::plan::CACHE_REVALIDATE;
use super::super::rule::Rule;
use super::super::sometimes::Sometimes;
use super::{Answered, Tenure, TenureBegan, Work, World};

impl World {
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
            self.violate(
                at,
                Rule::NeverRemoved,
                format!("invariant 5: {id} was removed while {}", old.state.name()),
            );
        }
        self.swept.insert(id);
    }

    /// A tenure begins: with the first claim, or in place of another record.
    fn began(&mut self, at: Timestamp, id: RecordId, old: Option<&Record>, new: &Record) {
        if !matches!(new.state, State::InProgress { .. }) {
            return self.violate(at, Rule::States, format!("{id} began as {}", new.state.name()));
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
            self.violate(at, Rule::Fences, format!("{:?} of {id} came back", new.fence));
        }
    }

    fn changed(&mut self, at: Timestamp, id: RecordId, old: &Record, new: &Record) {
        let spent = match &old.state {
            State::Completed { expires_at, .. } | State::FailedRetryable { expires_at, .. } => {
                *expires_at <= at
            }
            State::Expired { .. } => true,
            State::InProgress { .. } | State::Unknown { .. } => false,
        };
        // A later window knows no void yet.
        if new.voided > old.voided {
            return self.voided(at, id, old, new);
        }
        if new.fence != old.fence {
            self.check_new_tenure(at, id, old, new, spent);
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
            (State::Completed { .. } | State::FailedRetryable { .. }, State::Expired { .. }) => spent,
            (State::Expired { .. }, State::Expired { .. }) => true,
            _ => false,
        };
        if !allowed {
            self.violate(
                at,
                Rule::States,
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
        if let (Some(number), State::Completed { expires_at, .. }) = (answer_of(old), &new.state)
            && let Some(answered) = self.completed.get_mut(&(id, number))
        {
            let cached = at.after(CACHE_REVALIDATE);
            answered.cached = if *expires_at < cached { cached } else { answered.cached };
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
        let executed = self.ledger.values().any(|done| {
            let same = done.id() == id && done.is_done() && self.origin(id, done.fence) == Some(new.origin);
            same && judged.is_none_or(|judged| done.fence > judged)
        });
        if executed {
            self.violate(
                at,
                Rule::Releases,
                format!("invariant 1: {id} was released although it had been executed"),
            );
        }
    }

    /// Two tenures are separated by a release, by the end of the window, or by a declared resume.
    fn check_new_tenure(&mut self, at: Timestamp, id: RecordId, old: &Record, new: &Record, spent: bool) {
        let resumed = new.origin == old.origin
            && old.recovery_point.is_some()
            && match &old.state {
                State::InProgress { lease_until } => {
                    self.has_lapsed(*lease_until) && matches!(old.terms.on_lapse, OnLapse::Resume { .. })
                }
                State::FailedRetryable { .. } => true,
                State::Completed { .. } | State::Unknown { .. } | State::Expired { .. } => false,
            };
        let released = matches!(old.state, State::FailedRetryable { .. });
        if !(resumed || released || spent) {
            self.violate(
                at,
                Rule::GivenOutOnce,
                format!("invariant 1: {id} was given out again while {}", old.state.name()),
            );
        }
        if new.opened != old.opened && (new.opened != new.fence || !spent) {
            self.violate(
                at,
                Rule::Windows,
                format!("{id} opened a window with {:?} while {}", new.opened, old.state.name()),
            );
        }
        if new.fence < old.fence {
            self.violate(
                at,
                Rule::Fences,
                format!("invariant 7: {:?} followed {:?} on {id}", new.fence, old.fence),
            );
        }
    }

    /// A lease lapses only where its owner was disturbed or really at work: otherwise a claim was abandoned.
    fn check_lapse(&mut self, at: Timestamp, id: RecordId, lease_until: Timestamp, new: &Record) {
        let begun = self.begun.contains(&(id, new.fence));
        let disturbed = self.was_disturbed(new) || !self.wedges_are_bugs;
        let lapsed = new.last_error.as_deref() == Some("the lease lapsed");
        if lapsed {
            self.saw(Sometimes::Lapse);
            if !self.has_lapsed(lease_until) {
                self.violate(
                    at,
                    Rule::LiveLeases,
                    format!("the lease of {id} was taken away while it lived"),
                );
            }
        }
        if lapsed && !begun && !disturbed {
            self.violate(
                at,
                Rule::NotWedged,
                format!("{id} was wedged: claimed, never begun, never given back"),
            );
        }
    }

    /// Whether a lease is over by the store's clock. Where that clock jumps, the decision may have used a time that was
    /// corrected since.
    fn has_lapsed(&self, lease_until: Timestamp) -> bool {
        lease_until <= self.store_now || self.clock_jumps
    }

    /// Whether the process that holds this tenure was killed or stopped.
    fn was_disturbed(&self, record: &Record) -> bool {
        let mut instance = [0; 8];
        instance.copy_from_slice(&record.owner.as_bytes()[..8]);
        self.disturbed.contains(&u64::from_le_bytes(instance))
    }

    /// When everything has come to rest: an outcome may be unknown where something was begun, or where the process that
    /// held the tenure was disturbed. Otherwise the store was only away or slow, which must not need an operator.
    pub fn check_unknown(&mut self, at: Timestamp, id: RecordId, record: &Record) {
        let unknown = matches!(record.state, State::Unknown { .. });
        let excused = record.doubt.is_some() || self.too_late.contains(&id) || self.was_disturbed(record);
        if unknown && !excused && !self.begun.contains(&(id, record.fence)) {
            self.violate(
                at,
                Rule::NotWedged,
                format!("{id} is unknown although nothing was begun under {:?}", record.fence),
            );
        }
    }

    /// What is completed must be an execution of this very tenure, or follow from a verdict or an event.
    fn check_completion(&mut self, at: Timestamp, id: RecordId, old: &Record, new: &Record, body: &[u8]) {
        let number = answer_of(new);
        let execution = number.and_then(|number| self.ledger.get(&number)).copied();
        let (Some(number), Some(execution)) = (number, execution) else {
            return self.violate(
                at,
                Rule::Completions,
                format!("{id} was completed with an answer that no execution made"),
            );
        };
        let evidence = old.evidence.as_ref().is_some_and(|evidence| evidence.reply.body == body);
        let judged = new.verdict != old.verdict;
        // Resumed work answers with what an earlier tenure of the same execution did, and a receipt row with what any tenure
        // of the window did.
        let own = match execution.work {
            Work::Completed => execution.name == new.operation(id),
            _ => self.origin(id, execution.fence) == Some(new.origin),
        };
        if execution.id() != id || !(own || evidence || judged) {
            self.violate(
                at,
                Rule::Completions,
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
                    Rule::OneAnswer,
                    format!("invariant 3: the answer {number} of {id} is kept for less than its retention"),
                );
            }
            self.completed.insert((id, number), Answered { promised, gone: None, cached: at });
        }
    }
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
