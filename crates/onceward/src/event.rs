//! The machine's input and output: events, and the steps that they lead to.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::Claim;
use crate::fingerprint::Difference;
use crate::id::NamespaceHash;
use crate::outcome::{Outcome, RecoveryPoint, Reply, Void};
use crate::record::{Fence, Letter, Record, RecordFormat};
use crate::{Timestamp, entropy::OwnerToken};

/// The store's time, in two estimates: one for leases, and one for expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Decides about leases. An estimate is the latest possible time, so that no lease is too short.
    pub now: Timestamp,
    /// Decides about expiry. It is the earliest possible time, and held back while the store's clock runs ahead, because a
    /// time that is too late would forget keys early, and their retries would execute again.
    pub expiry_now: Timestamp,
}

/// What happens to a record.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// A request wants the work done.
    Claim {
        /// The claim.
        claim: &'a Claim,
        /// The owner to execute, if the claim is granted.
        owner: OwnerToken,
        /// What the record shows of the key.
        label: &'a str,
        /// The format that new records are written in.
        format: RecordFormat,
        /// The namespace of the engine that claims.
        namespace: NamespaceHash,
    },
    /// The completer takes a lapsed operation over, if it may be resumed.
    Resume {
        /// Who takes over.
        owner: OwnerToken,
    },
    /// The owner renews its lease.
    Renew {
        /// Its tenure.
        fence: Fence,
    },
    /// The owner has committed a phase.
    Checkpoint {
        /// Its tenure.
        fence: Fence,
        /// The phase.
        point: RecoveryPoint,
    },
    /// The owner reports its outcome.
    Settle {
        /// Its tenure.
        fence: Fence,
        /// How it ended.
        outcome: Outcome,
    },
    /// A webhook reports that it happened.
    Evidence {
        /// The tenure that is meant, if that is known.
        fence: Option<Fence>,
        /// The answer it had.
        reply: Arc<Reply>,
        /// Who reported or decided it.
        by: String,
    },
    /// A finder begins to ask what became of an unknown operation.
    Find {
        /// The tenure that is asked about.
        fence: Fence,
        /// How long no other finder asks.
        hold: Duration,
        /// Whether it may begin before the find is due.
        start: FindStart,
    },
    /// A finder reports what it found out.
    Found {
        /// The tenure that was asked about.
        fence: Fence,
        /// What it found out. Without one it could not ask, for this reason.
        finding: Result<Finding, String>,
        /// Whether an absence was controlled. One that was not is never counted.
        control: Control,
        /// How often, and how soon again, such an operation is asked about.
        terms: FindTerms,
        /// Who asked.
        by: &'a str,
    },
    /// Nothing is configured that could find the outcome out.
    GiveUp {
        /// How long after it became unknown.
        after: Duration,
    },
    /// An operator decides an unknown outcome.
    Resolve {
        /// The tenure that is meant, if that is known.
        fence: Option<Fence>,
        /// What the outcome was.
        verdict: Resolution,
        /// What keeps the former owner from committing after a release.
        barrier: Barrier,
        /// Who reported or decided it.
        by: String,
        /// Why, in the operator's words.
        reason: String,
    },
    /// An operator ends the window early, with time left for caches to notice.
    Expire {
        /// The fence that opened the window that is meant, if that is known.
        opened: Option<Fence>,
        /// How long the answer may still be given.
        after: Duration,
    },
    /// The sweeper visits the record.
    Sweep {
        /// What becomes of a record past its window.
        expiry: Expiry,
    },
}

impl Event<'_> {
    /// Whether this refers to another tenure or window than the record's: a conflict. An owner's fence is checked by its own
    /// event, because the answer is another.
    pub(crate) fn is_about_another(&self, record: &Record) -> bool {
        match self {
            Self::Evidence { fence, .. } | Self::Resolve { fence, .. } => {
                fence.is_some_and(|fence| fence != record.fence)
            }
            Self::Find { fence, .. } => *fence != record.fence,
            Self::Expire { opened, .. } => opened.is_some_and(|opened| opened != record.opened),
            Self::Claim { .. }
            | Self::Resume { .. }
            | Self::Renew { .. }
            | Self::Checkpoint { .. }
            | Self::Settle { .. }
            // What was found out about an earlier tenure has an event of its own in the machine.
            | Self::Found { .. }
            | Self::GiveUp { .. }
            | Self::Sweep { .. } => false,
        }
    }
}

/// Whether a find may begin before it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindStart {
    /// Only when it is due, and so by one finder at a time.
    WhenDue,
    /// Now: the engine that executed has just seen the execution end, or an operator asks.
    Now,
}

/// Whether the same question found an operation that is known to be there, immediately before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// It did.
    Made,
    /// It was not asked, because an absence would not count yet, or because none was found.
    None,
}

/// What a find brought.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// It happened, and this is the answer.
    Completed(Arc<Reply>),
    /// It happened, and its answer is not known or cannot be kept. Only a person can go on from there.
    DoneNotKept(String),
    /// There is no trace of it. That counts only where [`FindTerms::absent_after`] is set, and then twice: a trace may be late.
    Absent,
    /// There is no trace of it, and the fence was raised in another place where the effect would be.
    AbsentAndVoided(Void),
    /// The fence was raised where the effect would be: what the owner has not committed by now it never will.
    Voided(Void),
    /// The fence was raised where the effect would be, and no answer is there. For this reason that proves nothing, and never will: it
    /// only keeps the owner's own proof true.
    Unproven {
        /// What stands there now.
        void: Void,
        /// Why a missing answer proves nothing.
        why: String,
    },
    /// It cannot be told yet.
    Inconclusive(String),
    /// The work is still going on, such as in an open transaction. That is no attempt, and it is asked again.
    StillOpen(String),
    /// What was found contradicts itself, such as two charges for one operation. No further find would help.
    Ambiguous(String),
}

impl Finding {
    pub(crate) const fn is_absence(&self) -> bool {
        matches!(self, Self::Absent | Self::AbsentAndVoided(_))
    }
}

/// How often, and how soon again, an unknown operation is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FindTerms {
    /// Findings that decided nothing until the operation is a dead letter.
    pub attempts: u32,
    /// The pause after the first of them. Each further one is twice as long.
    pub backoff: Duration,
    /// The longest pause.
    pub max_backoff: Duration,
    /// How long after the last attempt an absence counts. The second one, at least half of this time later, releases the operation.
    /// `None`: no absence ever does.
    pub absent_after: Option<Duration>,
}

impl Default for FindTerms {
    fn default() -> Self {
        // With doubling from 5 s to 10 min, twelve finds take about an hour.
        let (backoff, max_backoff) = (Duration::from_secs(5), Duration::from_secs(10 * 60));
        Self { attempts: 12, backoff, max_backoff, absent_after: None }
    }
}

impl FindTerms {
    setters! {
        attempts: u32,
        backoff: Duration,
        max_backoff: Duration,
        absent_after: Option<Duration>,
    }
}

/// What keeps the owner of released work from committing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Barrier {
    /// Nothing: the work commits no receipts, or their table is not known here.
    None,
    /// The fence was raised where the effect would be, and the owner is not known to commit there. So it may still report a success.
    Raised(Void),
    /// The owner can commit nothing any more.
    Proven(Void),
}

/// What an unknown outcome is resolved to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolution {
    /// It happened, and this is the answer.
    Completed(Arc<Reply>),
    /// It did not happen: the next claim executes.
    Retryable,
}

/// What becomes of a record past its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Expiry {
    /// It is removed.
    #[default]
    Delete,
    /// It stays for audit, without its body.
    Soft,
}

/// The machine's output: a write, an answer and perhaps a notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What becomes of the record.
    pub write: Write,
    /// The answer, given once the write is durable.
    pub answer: Answer,
    /// What must be counted, or raises an alarm.
    pub notice: Option<Notice>,
}

/// What becomes of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Nothing.
    Keep,
    /// It is replaced by this one.
    Put(Box<Record>),
    /// It is removed.
    Remove,
}

/// The answer to an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To a claim or a completer.
    Decision(Decision),
    /// To an owner, a finder or an operator: the change was made.
    Applied,
    /// To an owner: it was settled before, with this reply where it was completed.
    AlreadySettled(Option<Arc<Reply>>),
    /// To an owner whose tenure is over: nothing of its state was changed.
    Fenced,
    /// To an operator or a finder: the record is not, or no longer, in a state where this can be done.
    Conflict,
    /// To the sweeper: the lease had lapsed, and the outcome is unknown or known from evidence now.
    Lapsed,
    /// To the sweeper: past its window and swept.
    Swept,
    /// To the sweeper: the record stays as it is.
    Left,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Do the work. The written record has the fence.
    Execute,
    /// Do the rest of the work.
    Resume(RecoveryPoint),
    /// The work was done: this is the answer.
    Replay(Arc<Reply>),
    /// The work must not be done.
    Refuse(Refusal),
}

/// Why a claim was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The key names another request, which differs in this part.
    Mismatch(Difference),
    /// The rest of the work may be done for the same request only. Whether this is the same request is not known, because its
    /// fingerprint was made under other settings.
    Incomparable,
    /// The work is being done.
    InProgress {
        /// How long to wait before the next try.
        retry_after: Duration,
    },
    /// The work may have been done. Reconciliation still tries to resolve it, or it waits for an operator.
    Unknown {
        /// How long to wait before the next try.
        retry_after: Duration,
        /// Whether reconciliation still asks about it.
        letter: Letter,
    },
}

/// What must be counted, or raises an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A result contradicts what was decided before: something may have happened twice.
    Contradiction,
    /// The fingerprint was made under other settings and could not be compared.
    Uncompared,
    /// Reconciliation gave up: only an operator can resolve the outcome.
    DeadLettered,
}

pub(crate) fn keep(answer: Answer) -> Step {
    Step { write: Write::Keep, answer, notice: None }
}

pub(crate) fn put(record: &Record, answer: Answer, change: impl FnOnce(&mut Record)) -> Step {
    let mut next = Box::new(record.clone());
    change(&mut next);
    Step { write: Write::Put(next), answer, notice: None }
}

pub(crate) fn noticed(step: Step, notice: Notice) -> Step {
    Step { notice: Some(notice), ..step }
}
