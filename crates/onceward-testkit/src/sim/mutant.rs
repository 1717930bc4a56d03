//! Bugs, put in on purpose: a simulator that does not find them proves nothing.

use std::time::Duration;

use onceward::event::{Answer, Decision, Event, Moment, Step, Write};
use onceward::{
    Claim, Fence, Outcome, Record,
    claim::OwnerToken,
    machine,
    outcome::Void,
    record::{Cause, Letter, Naming, State},
};

use super::rule::Rule;

/// A bug in the machine, in the store or in the receipt table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// None: the real thing.
    None,
    /// A lapsed lease is treated as if nothing had been done.
    LapseReexecutes,
    /// Any owner may settle, whatever its fence.
    SettleWithoutFenceCheck,
    /// The store compares the fence, which does not rise with every write.
    SwapComparesFence,
    /// The store deletes what was listed, even if the record has changed since.
    UnconditionalForget,
    /// The sweeper removes whatever it finds.
    SweepIgnoresState,
    /// An unknown outcome is forgotten after its retention.
    UnknownMayExpire,
    /// A key that is claimed anew begins again with the first fence.
    FencesRestartAfterSweep,
    /// Another request under a running key is answered as in progress.
    MismatchCheckedAfterInProgress,
    /// A claim whose answer was lost does not recognise itself.
    AmbiguousClaimTreatedAsRefused,
    /// A completion that comes after a verdict is dropped.
    LateCompletionThrownAway,
    /// The store answers before the write is on the disk.
    AcknowledgedBeforeDurable,
    /// An answer is kept for a moment only.
    AnswerKeptTooShort,
    /// A retry declares a running execution lost.
    LiveLeaseTakenAway,
    /// A driver that gets a conflict without a record assumes that its own was written.
    ConflictWithNothingTakenForAWin,
    /// An attempt that took over after a lapse and sent nothing releases the operation.
    DoubtForgotten,
    /// Every window of a key is dispatched under the same id.
    IdWithoutWindow,
    /// A request at another target is compared by its content alone.
    TargetNotCompared,
    /// That the work was done is forgotten where its answer could not be kept.
    CauseIgnored,
    /// The owner's proof that nothing was done counts only while its lease lives.
    ProofIgnoredAfterLapse,
    /// A void that an owner asked for releases whichever tenure there is.
    VoidOfAnotherTenure,
    /// The answer of an owner below the void is kept like any late one.
    VoidedOwnerBelieved,
    /// That an earlier window's work was done completes the present one, and ends its doubt.
    AnotherWindowsFindingBelieved,
    /// The table raises the fence to the owner's own, which can still commit.
    VoidRaisesToTheOwnersFence,
    /// The table reports a void, and leaves its row as it was.
    VoidLeavesTheRow,
    /// The table does not report an outside call that was begun.
    EnteredNotReported,
    /// The table shows what an open transaction has written.
    UncommittedRowShown,
    /// The table says that handlers have always written rows.
    FirstRowInvented,
    /// The table forgets that the voids of a route are suspended.
    SuspensionNotSeen,
    /// The table lists young rows as old ones, which are then deleted.
    YoungRowsListed,
}

impl Mutant {
    /// Every bug.
    pub const ALL: [Self; 29] = [
        Self::LapseReexecutes,
        Self::SettleWithoutFenceCheck,
        Self::SwapComparesFence,
        Self::UnconditionalForget,
        Self::SweepIgnoresState,
        Self::UnknownMayExpire,
        Self::FencesRestartAfterSweep,
        Self::MismatchCheckedAfterInProgress,
        Self::AmbiguousClaimTreatedAsRefused,
        Self::LateCompletionThrownAway,
        Self::AcknowledgedBeforeDurable,
        Self::AnswerKeptTooShort,
        Self::LiveLeaseTakenAway,
        Self::ConflictWithNothingTakenForAWin,
        Self::DoubtForgotten,
        Self::IdWithoutWindow,
        Self::TargetNotCompared,
        Self::CauseIgnored,
        Self::ProofIgnoredAfterLapse,
        Self::VoidOfAnotherTenure,
        Self::VoidedOwnerBelieved,
        Self::AnotherWindowsFindingBelieved,
        Self::VoidRaisesToTheOwnersFence,
        Self::VoidLeavesTheRow,
        Self::EnteredNotReported,
        Self::UncommittedRowShown,
        Self::FirstRowInvented,
        Self::SuspensionNotSeen,
        Self::YoungRowsListed,
    ];

    /// The rule that must find this bug. Another one may be broken as well, but that it is broken proves nothing.
    pub const fn found_by(self) -> Option<Rule> {
        Some(match self {
            Self::None => return None,
            Self::LapseReexecutes | Self::UnknownMayExpire => Rule::GivenOutOnce,
            Self::SettleWithoutFenceCheck | Self::LateCompletionThrownAway => Rule::Completions,
            Self::SwapComparesFence => Rule::States,
            Self::UnconditionalForget | Self::SweepIgnoresState => Rule::NeverRemoved,
            Self::FencesRestartAfterSweep => Rule::Fences,
            Self::MismatchCheckedAfterInProgress | Self::TargetNotCompared => Rule::OwnAnswer,
            Self::AmbiguousClaimTreatedAsRefused => Rule::OwnClaim,
            Self::AcknowledgedBeforeDurable => Rule::Durable,
            Self::AnswerKeptTooShort => Rule::OneAnswer,
            Self::LiveLeaseTakenAway => Rule::LiveLeases,
            Self::ConflictWithNothingTakenForAWin => Rule::Claimed,
            Self::DoubtForgotten | Self::CauseIgnored => Rule::Releases,
            Self::IdWithoutWindow => Rule::Windows,
            Self::ProofIgnoredAfterLapse => Rule::NotWedged,
            Self::VoidOfAnotherTenure | Self::AnotherWindowsFindingBelieved => Rule::OwnFinding,
            Self::VoidedOwnerBelieved => Rule::VoidedIsSilent,
            Self::VoidRaisesToTheOwnersFence | Self::VoidLeavesTheRow | Self::YoungRowsListed => {
                Rule::VoidsHold
            }
            Self::EnteredNotReported => Rule::OpenCalls,
            Self::UncommittedRowShown => Rule::AnswersCommitted,
            Self::FirstRowInvented | Self::SuspensionNotSeen => Rule::VoidsControlled,
        })
    }

    /// The machine with this bug. Bugs of the store are in the simulated database, and those of the receipt table in the
    /// connection to it.
    pub fn step(self, record: Option<&Record>, at: Moment, event: &Event<'_>) -> Step {
        match (self, event, record.map(|record| &record.state)) {
            (Self::LapseReexecutes, Event::Claim { claim, .. }, Some(State::InProgress { lease_until }))
                if *lease_until <= at.now
                    && record.is_some_and(|record| record.fingerprint == *claim.fingerprint()) =>
            {
                forgetful(record, at, event)
            }
            (Self::SettleWithoutFenceCheck, Event::Settle { outcome, .. }, Some(_)) => {
                let fence = record.map_or(Fence::from_number(0), |record| record.fence);
                machine::step(record, at, &Event::Settle { fence, outcome: outcome.clone() })
            }
            (
                Self::SweepIgnoresState,
                Event::Sweep { .. },
                Some(State::Unknown { .. } | State::InProgress { .. }),
            ) => Step { write: Write::Remove, answer: Answer::Swept, notice: None },
            (Self::UnknownMayExpire, Event::Claim { claim, .. }, Some(State::Unknown { since, .. }))
                if record.is_some_and(|record| {
                    since.after(record.terms.retention) <= at.now
                        && record.fingerprint == *claim.fingerprint()
                }) =>
            {
                forgetful(record, at, event)
            }
            (Self::FencesRestartAfterSweep, Event::Claim { .. }, None) => {
                restarted(machine::step(record, at, event))
            }
            (
                Self::MismatchCheckedAfterInProgress,
                Event::Claim { owner, .. },
                Some(State::InProgress { lease_until }),
            ) if *lease_until > at.now && record.is_some_and(|record| record.owner != *owner) => Step {
                write: Write::Keep,
                answer: Answer::Decision(Decision::Refuse(onceward::Refusal::InProgress {
                    retry_after: lease_until.since(at.now),
                })),
                notice: None,
            },
            (
                Self::AmbiguousClaimTreatedAsRefused,
                Event::Claim { claim, label, format, namespace, .. },
                Some(State::InProgress { .. }),
            ) => {
                let owner = OwnerToken::named("a stranger to itself");
                let (format, namespace) = (*format, *namespace);
                machine::step(record, at, &Event::Claim { claim, owner, label, format, namespace })
            }
            (
                Self::LateCompletionThrownAway,
                Event::Settle { fence, .. },
                Some(State::FailedRetryable { .. }),
            ) if record.is_some_and(|record| record.fence == *fence) => {
                Step { write: Write::Keep, answer: Answer::AlreadySettled(None), notice: None }
            }
            (Self::AnswerKeptTooShort, Event::Settle { .. }, Some(_)) => {
                forgotten_soon(machine::step(record, at, event))
            }
            (
                Self::LiveLeaseTakenAway,
                Event::Claim { owner, .. },
                Some(State::InProgress { lease_until }),
            ) if record.is_some_and(|record| record.owner != *owner) => {
                machine::step(record, Moment { now: *lease_until, ..at }, event)
            }
            (Self::DoubtForgotten, Event::Settle { .. }, Some(_)) => {
                let sure = record.map(|record| Record { doubt: None, ..record.clone() });
                machine::step(sure.as_ref(), at, event)
            }
            (Self::IdWithoutWindow, Event::Claim { .. }, _) => unnamed(machine::step(record, at, event)),
            (Self::TargetNotCompared, Event::Claim { claim, .. }, Some(_)) => {
                let there = record.map(|record| anywhere(record, claim));
                machine::step(there.as_ref(), at, event)
            }
            (Self::CauseIgnored, Event::Settle { .. }, Some(State::Unknown { .. })) => {
                let lost =
                    record.map(|record| Record { state: without_cause(&record.state), ..record.clone() });
                machine::step(lost.as_ref(), at, event)
            }
            (
                Self::ProofIgnoredAfterLapse,
                Event::Settle { outcome: Outcome::Retryable(_), .. },
                Some(State::Unknown { .. }),
            ) => Step { write: Write::Keep, answer: Answer::Applied, notice: None },
            (
                Self::VoidOfAnotherTenure,
                Event::Settle { outcome: Outcome::Voided { void, why }, .. },
                Some(State::InProgress { .. } | State::Unknown { .. }),
            ) => {
                let fence = record.map_or(void.fence, |record| record.fence);
                let void = Void { fence: fence.above(), ..void.clone() };
                let outcome = Outcome::Voided { void, why: why.clone() };
                machine::step(record, at, &Event::Settle { fence, outcome })
            }
            (Self::VoidedOwnerBelieved, Event::Settle { .. }, Some(_)) => {
                let unvoided = record.map(|record| Record { voided: None, ..record.clone() });
                with_void(machine::step(unvoided.as_ref(), at, event), record)
            }
            (
                Self::AnotherWindowsFindingBelieved,
                Event::Found { fence, finding, control, terms, by },
                Some(_),
            ) if record.is_some_and(|record| *fence < record.opened) => {
                let (finding, terms) = (finding.clone(), *terms);
                let open = record.map(|record| undecided(record, at));
                let fence = record.map_or(*fence, |record| record.fence);
                machine::step(
                    open.as_ref(),
                    at,
                    &Event::Found { fence, finding, control: *control, terms, by },
                )
            }
            _ => machine::step(record, at, event),
        }
    }
}

/// The same record, as if it were at the claim's target.
fn anywhere(record: &Record, claim: &Claim) -> Record {
    let content = record.fingerprint;
    let fingerprint = claim.fingerprint().target().map_or(content, |target| content.at(target));
    Record { fingerprint, ..record.clone() }
}

fn without_cause(state: &State) -> State {
    match state.clone() {
        State::Unknown { since, due_at, probes, letter, .. } => {
            State::Unknown { since, due_at, probes, letter, cause: Cause::Lost }
        }
        other => other,
    }
}

/// Puts back the void that the machine was not shown.
fn with_void(mut step: Step, record: Option<&Record>) -> Step {
    if let Write::Put(next) = &mut step.write {
        next.voided = next.voided.max(record.and_then(|record| record.voided));
    }
    step
}

/// The same record, as if its outcome were unknown.
fn undecided(record: &Record, at: Moment) -> Record {
    let (letter, cause) = (Letter::Live, Cause::Lost);
    let state = State::Unknown { since: at.now, due_at: at.now, probes: 0, letter, cause };
    Record { state, ..record.clone() }
}

fn unnamed(mut step: Step) -> Step {
    if let Write::Put(next) = &mut step.write {
        next.naming = Naming::Bare;
    }
    step
}

/// Treats a record as if its window were over, but keeps fences rising.
fn forgetful(record: Option<&Record>, at: Moment, event: &Event<'_>) -> Step {
    let mut step = machine::step(None, at, event);
    if let (Write::Put(next), Some(record)) = (&mut step.write, record) {
        next.fence = Fence::from_number(next.fence.as_number().max(record.fence.as_number() + 1));
        next.origin = next.fence;
    }
    step
}

fn forgotten_soon(mut step: Step) -> Step {
    if let Write::Put(next) = &mut step.write
        && let State::Completed { settled_at, expires_at, .. } = &mut next.state
    {
        *expires_at = settled_at.after(Duration::from_millis(1));
    }
    step
}

fn restarted(mut step: Step) -> Step {
    if let Write::Put(next) = &mut step.write {
        next.fence = Fence::from_number(1);
        next.origin = next.fence;
    }
    step
}
