//! The parts that a record is made of.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Fence;
use crate::Timestamp;
use crate::outcome::Reply;

/// The state of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Work is being done, until the lease lapses.
    InProgress {
        /// When the lease lapses.
        lease_until: Timestamp,
    },
    /// It happened, and this is the answer.
    Completed {
        /// What every retry gets.
        reply: Arc<Reply>,
        /// When it was settled.
        settled_at: Timestamp,
        /// When the key may name a new operation.
        expires_at: Timestamp,
    },
    /// It was proven not to have happened: the next claim executes.
    FailedRetryable {
        /// When it was settled.
        settled_at: Timestamp,
        /// When the record may be swept.
        expires_at: Timestamp,
    },
    /// The work may have been done. Never expires, never re-executes by itself.
    Unknown {
        /// Since when.
        since: Timestamp,
        /// When the next find is due.
        due_at: Timestamp,
        /// How often a find decided nothing.
        probes: u32,
        /// Whether only an operator, a late owner or a webhook can settle it.
        letter: Letter,
        /// Why it is unknown, which decides what can resolve it.
        cause: Cause,
    },
    /// Its window is over; kept for audit without its body.
    Expired {
        /// The status of the dropped reply, if it had one.
        status: Option<u16>,
        /// When the window ended.
        expires_at: Timestamp,
    },
}

impl State {
    /// Which state this is, without what belongs to it.
    pub const fn kind(&self) -> StateKind {
        match self {
            Self::InProgress { .. } => StateKind::InProgress,
            Self::Completed { .. } => StateKind::Completed,
            Self::FailedRetryable { .. } => StateKind::FailedRetryable,
            Self::Unknown { .. } => StateKind::Unknown,
            Self::Expired { .. } => StateKind::Expired,
        }
    }

    /// The state's name wherever a person or a program can see it.
    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Whether it is a dead letter. Every state but `unknown` is live.
    pub const fn letter(&self) -> Letter {
        match self {
            Self::Unknown { letter, .. } => *letter,
            Self::InProgress { .. }
            | Self::Completed { .. }
            | Self::FailedRetryable { .. }
            | Self::Expired { .. } => Letter::Live,
        }
    }
}

/// A state without what belongs to it: for filters, counters and the columns of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKind {
    /// Work is being done, or its lease has lapsed.
    InProgress,
    /// The work was done.
    Completed,
    /// The work is proven not to have been done.
    FailedRetryable,
    /// The work may have been done.
    Unknown,
    /// The window is over, and the record is kept for audit.
    Expired,
}

impl StateKind {
    /// Every state.
    pub const ALL: [Self; 5] =
        [Self::InProgress, Self::Completed, Self::FailedRetryable, Self::Unknown, Self::Expired];

    /// The state's name wherever a person or a program can see it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::FailedRetryable => "failed_retryable",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
        }
    }

    /// The state of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Why an outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// There was no whole answer: a crash, a timeout, a connection that broke.
    Lost,
    /// There was an answer, and its status or the API's own word leaves the outcome open.
    Said,
    /// The work was done, and its answer could not be stored. Only an operator may release it.
    DoneNotKept,
}

impl Cause {
    /// The cause's name wherever a person or a program can see it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Said => "said",
            Self::DoneNotKept => "done_not_kept",
        }
    }
}

/// An earlier tenure of the same execution ended without a known outcome, and may have done the work. Proof that a later
/// tenure sent nothing says nothing about the earlier one, so it cannot release the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// When the first such outcome became unknown.
    pub since: Timestamp,
    /// Why it did.
    pub cause: Cause,
}

/// Whether reconciliation still tries to resolve an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Letter {
    /// Reconciliation goes on.
    Live,
    /// Reconciliation gave up: it waits for an operator, among the dead letters.
    Dead,
}

/// The form of the id under which an operation was dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Naming {
    /// The record's id alone, which a later window of the same key shares. Records of format 1 have it.
    Bare,
    /// The record's id and the fence that opened the window.
    Windowed,
}

/// How a record is written down. The newer one holds more; an older version of Onceward cannot read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordFormat {
    /// The first format, for stores that gateways share whose version reads no other.
    One,
    /// Two-part fingerprints, windows in ids, typed causes and doubt.
    Two,
}

impl RecordFormat {
    pub(crate) const fn newest() -> Self {
        Self::Two
    }

    /// Its number, as the configuration and a record's first byte have it.
    pub const fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }

    /// The format with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            _ => None,
        }
    }
}

/// A phase with an outside effect that was begun and is not known to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entered {
    /// The phase's name.
    pub point: String,
    /// When it was entered.
    pub at: Timestamp,
    /// Until when the receiver recognises a repetition, where it does.
    pub dedup_until: Option<Timestamp>,
}

/// How often finds have reported that the work was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// How often, under one fence.
    pub count: u32,
    /// When that was seen first.
    pub first_at: Timestamp,
    /// The fence under which it was.
    pub fence: Fence,
}

/// The result of the last find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFinding {
    /// When it happened.
    pub at: Timestamp,
    /// In words without keys or bodies.
    pub text: String,
}

/// Something that happened to an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// When it happened.
    pub at: Timestamp,
    /// Under which fence.
    pub fence: Fence,
    /// The event's name. Text, so that a newer version's events can be kept and shown.
    pub event: String,
    /// Who caused it.
    pub by: String,
    /// Why, in words without keys or bodies.
    pub reason: String,
}

/// A value of the request that is kept for operators. Its debug form hides it: it can be personal.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Label {
    /// Readable.
    Plain(String),
    /// Encrypted, with a keyed hash by which it can be looked up.
    Sealed {
        /// The keyed hash of the text.
        hash: [u8; 16],
        /// The encrypted text.
        sealed: Bytes,
    },
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Label(…)")
    }
}

/// Something that a newer version keeps in a record. Its debug form shows its size only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// What it is.
    pub tag: u32,
    /// Whether a version that does not know it must not use the record.
    pub critical: bool,
    /// Its bytes.
    pub data: Bytes,
}

impl fmt::Debug for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({}, {} bytes)", self.tag, self.data.len())
    }
}

/// How one operation is to be treated. Stored with it, so that a changed configuration changes new operations only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// How long a tenure lasts without being renewed.
    pub lease: Duration,
    /// What a lapsed lease means.
    pub on_lapse: OnLapse,
    /// How long a completed answer is promised to be replayed.
    pub retention: Duration,
    /// How much longer it is kept than promised, at most; at least half of it.
    pub grace: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(60),
            on_lapse: OnLapse::Unknown,
            retention: Duration::from_secs(24 * 60 * 60),
            grace: Duration::from_secs(60 * 60),
        }
    }
}

/// What a lapsed lease means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnLapse {
    /// The outcome is unknown.
    Unknown,
    /// Where there is a recovery point, the work goes on from there.
    Resume {
        /// Tenures altogether; the next lapse is a dead letter.
        attempts: u32,
        /// How long after the lapse the operation may still be taken over.
        within: Duration,
    },
}

impl OnLapse {
    /// Resuming as configurations mean it: a crash that repeats five times will not go away by itself, and a key is promised for a
    /// day.
    pub const RESUME: Self = Self::Resume { attempts: 5, within: Duration::from_secs(24 * 60 * 60) };
}
