//! What an engine counts, for metrics and tests. Observations never have keys or bodies. The log lines for operators are in
//! `log.rs`, and do not depend on the observer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Inner;
use super::apply::{Report, Wrote};
use super::operate::{By, Settled};
use crate::RecordId;
use crate::event::{Answer, Decision, Event, Finding, Notice, Refusal};
use crate::record::{State, StateKind};

/// Receives every observation of an engine. It must not block. The engine itself logs what an operator must know.
pub trait Observer: Send + Sync + 'static {
    /// Called for each observation. The id is all zeros where there is no operation.
    fn observe(&self, route: &str, id: RecordId, what: Observation);
}

/// What an engine reports to its observer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Observation {
    /// A new operation was claimed.
    Created,
    /// An operation that had failed without being executed was claimed again.
    Reclaimed,
    /// An operation was taken over from its last recovery point.
    Resumed,
    /// A stored answer was given, from the store.
    Replayed,
    /// A stored answer was given, from memory.
    ReplayedFromCache,
    /// Refused: the key names another request.
    Mismatch,
    /// Refused: it is being executed.
    InProgress,
    /// Refused: the outcome is unknown.
    Unknown,
    /// A fingerprint made under other settings could not be compared.
    Uncompared,
    /// A result contradicts an earlier decision: the operation may have been executed twice.
    Contradiction,
    /// An unknown outcome was given up and waits for an operator.
    DeadLettered,
    /// An owner whose tenure is over tried to write.
    Fenced,
    /// A find ended.
    Found(FindResult),
    /// A lease had lapsed.
    Lapsed,
    /// A record past its window was swept.
    Swept,
    /// An operation was completed.
    Completed,
    /// An operation was released: proven not executed.
    Released,
    /// An operation's outcome became unknown.
    Lost,
    /// An unknown outcome was stored, and is to be reconciled.
    ReconcileScheduled,
    /// An unknown outcome became known: from its late owner, a webhook, a find or an operator.
    Reconciled,
    /// Work panicked.
    Panicked,
    /// Too much time had passed between the claim and its work, so the work was not begun.
    TooLate,
    /// A claim's answer from the store was lost.
    AmbiguousClaim,
    /// Another write's answer from the store was lost.
    AmbiguousWrite,
    /// A claim whose work was not begun was released.
    GivenBack,
    /// A claim's answer was lost, and the list of lost claims is full. If it was written, its lease lapses.
    LostClaimDropped,
    /// A caller that waited for another execution was woken by its end.
    AttachWoken,
    /// The store failed.
    StoreError,
    /// The store's clock runs ahead of elapsed time: expiry is suspended.
    ExpirySuspended,
    /// A request lacks the key that its route requires.
    KeyMissing,
    /// A request's key cannot be used.
    KeyInvalid,
    /// The scope of a request cannot be determined.
    ScopeMissing,
    /// An execution began under a key that is short, or looks like an e-mail address or a telephone number.
    SuspiciousKey,
}

/// What a find brought, for counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindResult {
    /// It had happened.
    Completed,
    /// It had happened, and its answer is not known or cannot be kept.
    DoneNotKept,
    /// There was no trace of it.
    Absent,
    /// Its owner had not committed it, and cannot any more.
    Voided,
    /// It could not be told yet.
    Inconclusive,
    /// What was found contradicts itself.
    Ambiguous,
    /// The work is still going on where the effect would be.
    StillOpen,
    /// An absence proved nothing, because no operation that is known to be there was found in the same way. It is counted beside
    /// the result of the find.
    Uncontrolled,
    /// The service or the database could not be asked.
    NotAsked,
}

impl FindResult {
    /// Every result.
    pub const ALL: [Self; 9] = [
        Self::Completed,
        Self::DoneNotKept,
        Self::Absent,
        Self::Voided,
        Self::Inconclusive,
        Self::Ambiguous,
        Self::StillOpen,
        Self::Uncontrolled,
        Self::NotAsked,
    ];

    pub(super) const fn of(found: &Result<Finding, String>) -> Self {
        match found {
            Ok(Finding::Completed(_)) => Self::Completed,
            Ok(Finding::DoneNotKept(_)) => Self::DoneNotKept,
            Ok(Finding::Absent | Finding::AbsentAndVoided(_)) => Self::Absent,
            Ok(Finding::Voided(_)) => Self::Voided,
            Ok(Finding::Inconclusive(_) | Finding::Unproven { .. }) => Self::Inconclusive,
            Ok(Finding::Ambiguous(_)) => Self::Ambiguous,
            Ok(Finding::StillOpen(_)) => Self::StillOpen,
            Err(_) => Self::NotAsked,
        }
    }

    /// The name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::DoneNotKept => "done_not_kept",
            Self::Absent => "absent",
            Self::Voided => "voided",
            Self::Inconclusive => "inconclusive",
            Self::Ambiguous => "ambiguous",
            Self::StillOpen => "still_open",
            Self::Uncontrolled => "uncontrolled",
            Self::NotAsked => "not_asked",
        }
    }

    /// What it means, for logs.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Completed => "it had happened, and the find brought its answer",
            Self::DoneNotKept => "it had happened, and its answer is not known or cannot be kept",
            Self::Absent => "there was no trace of it",
            Self::Voided => "its execution had committed nothing, and cannot commit any more",
            Self::Inconclusive => "it could not be told yet",
            Self::Ambiguous => "what was found contradicts itself",
            Self::StillOpen => "its work is still going on",
            Self::Uncontrolled => "there was no trace of it, and of nothing else either",
            Self::NotAsked => "the service or the database could not be asked",
        }
    }
}

/// Ignores every observation.
impl Observer for () {
    fn observe(&self, _: &str, _: RecordId, _: Observation) {}
}

impl Inner {
    /// Counts what follows from a step, except outcomes of executions: see [`Self::observe_settled`].
    pub(super) fn observe_step(&self, step: &Report<'_>) {
        let of_record = step.record.map_or("", |record| &*record.subject.route);
        let of_event = if let Event::Claim { claim, .. } = step.event { &*claim.route } else { of_record };
        for what in [of_notice(step), of_reconciliation(step)].into_iter().flatten() {
            self.observe(of_record, step.id, what);
        }
        for what in [of_write(step), of_answer(step)].into_iter().flatten() {
            self.observe(of_event, step.id, what);
        }
    }

    /// Counts the outcome of an execution by this engine.
    pub(super) fn observe_settled(&self, route: &str, id: RecordId, settled: &Settled) {
        let what = match settled {
            Settled::Completed { by: By::This, .. } => Observation::Completed,
            Settled::Retryable => Observation::Released,
            Settled::Unknown => Observation::Lost,
            Settled::Completed { by: By::Other, .. } | Settled::Fenced => return,
        };
        self.observe(route, id, what);
    }

    pub(super) fn observe_ambiguous(&self, id: RecordId, event: &Event<'_>) {
        let what = match event {
            Event::Claim { .. } | Event::Resume { .. } => Observation::AmbiguousClaim,
            Event::Renew { .. }
            | Event::Checkpoint { .. }
            | Event::Settle { .. }
            | Event::Evidence { .. }
            | Event::Find { .. }
            | Event::Found { .. }
            | Event::GiveUp { .. }
            | Event::Resolve { .. }
            | Event::Expire { .. }
            | Event::Sweep { .. } => Observation::AmbiguousWrite,
        };
        self.observe("", id, what);
    }

    /// A caller waited for another execution, or for a find, for as long as it may. An unknown outcome was counted already.
    pub(super) fn observe_gave_up_waiting(&self, route: &str, id: RecordId, refusal: &Refusal) {
        if let Refusal::InProgress { .. } = refusal {
            self.observe(route, id, Observation::InProgress);
        }
    }

    /// Calls the observer. A panic of it must not lose an answer that is already durable.
    pub(super) fn observe(&self, route: &str, id: RecordId, what: Observation) {
        tracing::trace!(route, %id, ?what, "counted");
        let called = catch_unwind(AssertUnwindSafe(|| self.observer.observe(route, id, what)));
        if called.is_err() {
            tracing::error!(
                ?what,
                "the engine's observer panicked: the request goes on, and what it counts may be wrong"
            );
        }
    }
}

fn of_notice(step: &Report<'_>) -> Option<Observation> {
    match step.notice? {
        // A shadow holds nothing back: its requests all go through, and it needs no operator.
        Notice::Contradiction | Notice::DeadLettered if step.shadow => None,
        Notice::Contradiction => Some(Observation::Contradiction),
        Notice::DeadLettered => Some(Observation::DeadLettered),
        Notice::Uncompared => Some(Observation::Uncompared),
    }
}

/// An outcome became unknown or known, by whichever event.
fn of_reconciliation(step: &Report<'_>) -> Option<Observation> {
    if step.shadow || step.wrote != Wrote::Record {
        return None;
    }
    match (step.from, &step.record?.state) {
        (Some(StateKind::Unknown), State::Completed { .. } | State::FailedRetryable { .. }) => {
            Some(Observation::Reconciled)
        }
        (Some(StateKind::Unknown), State::Unknown { .. }) => None,
        (_, State::Unknown { .. }) => Some(Observation::ReconcileScheduled),
        (
            _,
            State::InProgress { .. }
            | State::Completed { .. }
            | State::FailedRetryable { .. }
            | State::Expired { .. },
        ) => None,
    }
}

/// A claim changed the record.
fn of_write(step: &Report<'_>) -> Option<Observation> {
    let (Event::Claim { .. }, Wrote::Record) = (step.event, step.wrote) else { return None };
    match (step.answer, step.from) {
        (Answer::Decision(Decision::Execute), Some(StateKind::FailedRetryable)) => {
            Some(Observation::Reclaimed)
        }
        (Answer::Decision(Decision::Execute), _) => Some(Observation::Created),
        (Answer::Decision(Decision::Resume(_)), _) => Some(Observation::Resumed),
        (_, Some(StateKind::InProgress)) => Some(Observation::Lapsed),
        // Such as a released operation that evidence shows to be done. Its contradiction is counted as a notice.
        _ => None,
    }
}

fn of_answer(step: &Report<'_>) -> Option<Observation> {
    match (step.event, step.answer) {
        (Event::Claim { .. }, Answer::Decision(Decision::Replay(_))) => Some(Observation::Replayed),
        (Event::Claim { .. }, Answer::Decision(Decision::Refuse(refusal))) => match refusal {
            Refusal::Mismatch(_) => Some(Observation::Mismatch),
            Refusal::Unknown { .. } | Refusal::Incomparable => Some(Observation::Unknown),
            // Counted once by a caller that gives up waiting, not on every poll.
            Refusal::InProgress { .. } => None,
        },
        // After a lost answer the machine finds the tenure that this very event has begun.
        (Event::Resume { owner }, _) => {
            step.record.filter(|record| record.is_owned_by(*owner)).map(|_| Observation::Resumed)
        }
        (_, Answer::Fenced) => Some(Observation::Fenced),
        (_, Answer::Lapsed) => Some(Observation::Lapsed),
        (_, Answer::Swept) => Some(Observation::Swept),
        (
            _,
            Answer::Decision(_)
            | Answer::Applied
            | Answer::AlreadySettled(_)
            | Answer::Conflict
            | Answer::Left,
        ) => None,
    }
}
