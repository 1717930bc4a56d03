//! How an execution can end, and what is kept of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::record::{Cause, Fence};

/// What a retry gets back. Its debug form shows sizes only, because bodies must stay out of logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// An HTTP status; 200 where the work is not HTTP.
    pub status: u16,
    /// Header names and values in order, every value of a repeated name included.
    pub headers: Vec<(String, Bytes)>,
    /// The body.
    pub body: Bytes,
    /// The caller's own version of its replies, so that a new release recognises an old reply.
    pub version: u32,
}

impl Reply {
    /// A reply of status 200 without headers, for work that is not HTTP.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { status: 200, headers: Vec::new(), body: body.into(), version: 1 }
    }

    /// The same reply with another status.
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Its size, as caches and limits count it.
    pub fn bytes(&self) -> usize {
        self.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() + self.body.len()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, headers, body, version } = self;
        write!(f, "Reply({status}, {} headers, {} bytes, version {version})", headers.len(), body.len())
    }
}

/// A phase that was committed, and what the next one needs to know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPoint {
    name: String,
    data: Bytes,
}

/// A recovery point that cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryPointError {
    /// The name is empty or too long.
    #[error("the recovery point {name:?} must have a name of 1 to {} bytes", RecoveryPoint::MAX_NAME_BYTES)]
    Name {
        /// The name's beginning.
        name: String,
    },
    /// The data is too large.
    #[error(
        "the recovery point {name:?} carries {found} bytes, but at most {} are kept: store the rest yourself and keep a reference",
        RecoveryPoint::MAX_DATA_BYTES
    )]
    Data {
        /// The point's name.
        name: String,
        /// The size of the data.
        found: usize,
    },
}

impl RecoveryPoint {
    /// The longest name. People read it in lists.
    pub const MAX_NAME_BYTES: usize = 64;
    /// A recovery point is written on every phase: it holds references, not documents.
    pub const MAX_DATA_BYTES: usize = 16 * 1024;

    /// Names a phase that was committed.
    pub fn new(name: &str, data: impl Into<Bytes>) -> Result<Self, RecoveryPointError> {
        let data = data.into();
        if name.is_empty() || name.len() > Self::MAX_NAME_BYTES {
            return Err(RecoveryPointError::Name { name: name.chars().take(64).collect() });
        }
        if data.len() > Self::MAX_DATA_BYTES {
            return Err(RecoveryPointError::Data { name: name.to_owned(), found: data.len() });
        }
        Ok(Self { name: name.to_owned(), data })
    }

    /// The phase.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the next phase needs to know.
    pub const fn data(&self) -> &Bytes {
        &self.data
    }
}

impl fmt::Debug for RecoveryPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecoveryPoint({:?}, {} bytes)", self.name, self.data.len())
    }
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It happened, and this is the answer.
    Completed(Arc<Reply>),
    /// It is proven not to have happened. The words say why, without keys or bodies.
    Retryable(String),
    /// It was not committed, and never will be: see [`Void`].
    Voided {
        /// The void that proves it.
        void: Void,
        /// Why the execution ended without an answer, in words without keys or bodies.
        why: String,
    },
    /// It may have happened.
    Unknown(Unsure),
}

/// The fence was raised in the database of the effect, so that no owner below it can commit any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Void {
    /// The fence that stands there now: one above the owner's.
    pub fence: Fence,
    /// The last phase that had been committed there.
    pub point: Option<RecoveryPoint>,
}

/// Why an outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsure {
    /// The kind of reason, which decides what may end it.
    pub cause: Cause,
    /// The reason in words, without keys or bodies.
    pub why: String,
    /// How long finds wait, because the work may still go on.
    pub find_after: Duration,
}

impl Unsure {
    /// For this reason, and may be found out at once.
    pub fn new(cause: Cause, why: impl Into<String>) -> Self {
        Self { cause, why: why.into(), find_after: Duration::ZERO }
    }
}

impl Outcome {
    /// It happened, and this is the answer.
    pub fn completed(reply: Reply) -> Self {
        Self::Completed(Arc::new(reply))
    }

    /// Whether the work was done, with or without an answer that can be kept.
    pub const fn is_done(&self) -> bool {
        match self {
            Self::Completed(_) => true,
            Self::Retryable(_) | Self::Voided { .. } => false,
            Self::Unknown(unsure) => matches!(unsure.cause, Cause::DoneNotKept),
        }
    }

    /// The outcome is unknown, because there was no whole answer.
    pub fn lost(why: impl Into<String>) -> Self {
        Self::Unknown(Unsure::new(Cause::Lost, why))
    }

    /// The outcome is unknown, because the answer itself leaves it open.
    pub fn said_unknown(why: impl Into<String>) -> Self {
        Self::Unknown(Unsure::new(Cause::Said, why))
    }

    /// It happened, and its answer could not be kept: only an operator may release it.
    pub fn done_not_kept(why: impl Into<String>) -> Self {
        Self::Unknown(Unsure::new(Cause::DoneNotKept, why))
    }
}

/// A completed result that came when it could not be applied: from an owner that was fenced, or before the lease lapsed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The tenure that it is about.
    pub fence: Fence,
    /// The answer.
    pub reply: Arc<Reply>,
    /// When it came.
    pub at: Timestamp,
}

/// Who decided an unknown outcome, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// An operator, a webhook, a find.
    pub by: String,
    /// In their own words.
    pub reason: String,
    /// When it was decided.
    pub at: Timestamp,
}
