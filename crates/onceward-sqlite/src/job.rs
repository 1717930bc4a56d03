//! What is asked of the writer, and what it answers.

use onceward::codec;
use onceward::store::{Seen, Stamped, StoreError, Swapped, Version};
use onceward::{Record, RecordId, StateKind, Timestamp};
use tokio::sync::oneshot;

use crate::queue::{Weigh, Weight};

/// A record of this size is a configuration error and not a reply: replies are limited to a mebibyte unless somebody
/// asks for more, and one row must not take the writer for seconds.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// One write that waits for the writer.
pub(crate) enum Job {
    Swap(Swap),
    Forget(Forget),
    /// Answered when everything that was written before is in the database.
    Fold(Answer<()>),
}

pub(crate) struct Swap {
    pub id: RecordId,
    pub expect: Option<Version>,
    pub row: Row,
    pub answer: Answer<Written>,
}

pub(crate) struct Forget {
    pub records: Vec<(RecordId, Version)>,
    pub answer: Answer<usize>,
}

/// A record as it goes into the database. Made on the caller's task, so that the writer only copies it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub state: StateKind,
    pub due_at: Timestamp,
    pub created_at: Timestamp,
    pub record: Vec<u8>,
}

impl Row {
    pub(crate) fn new(id: RecordId, record: &Record) -> Result<Self, StoreError> {
        let refused = |reason| StoreError::Refused { reason };
        let bytes = codec::encode(id, record).map_err(|error| refused(error.to_string()))?;
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(refused(format!(
                "the record has {} bytes, and at most {RECORD_BYTES_MAX} are kept: lower max_response_body",
                bytes.len()
            )));
        }
        let (_, due_at) = record.due();
        Ok(Self { state: record.state.kind(), due_at, created_at: record.created_at, record: bytes })
    }
}

/// What came of a swap, with the record still encoded: the caller decodes it.
pub(crate) enum Written {
    Applied { version: Version, now: Timestamp },
    Conflict(Found),
}

/// What stands for an id.
pub(crate) struct Found {
    pub now: Timestamp,
    pub stored: Option<Stored>,
}

/// A row as it was read.
pub(crate) struct Stored {
    pub version: Version,
    pub record: Vec<u8>,
}

impl Written {
    pub(crate) fn decode(self, id: RecordId) -> Result<Swapped, StoreError> {
        match self {
            Self::Applied { version, now } => Ok(Swapped::Applied { version, now }),
            Self::Conflict(found) => found.decode(id).map(Swapped::Conflict),
        }
    }
}

impl Found {
    pub(crate) fn decode(self, id: RecordId) -> Result<Seen, StoreError> {
        let record = self.stored.map(|Stored { version, record }| {
            codec::decode(id, &record)
                .map(|record| Stamped { record, version })
                .map_err(|why| StoreError::Unreadable { id, version, why })
        });
        Ok(Seen { now: self.now, record: record.transpose()? })
    }
}

impl Weigh for Job {
    fn weight(&self) -> Weight {
        match self {
            Self::Swap(swap) => Weight { rows: 1, bytes: swap.row.record.len() },
            Self::Forget(forget) => Weight {
                rows: forget.records.len().max(1),
                bytes: std::mem::size_of_val(forget.records.as_slice()),
            },
            Self::Fold(_) => Weight { rows: 1, bytes: 0 },
        }
    }
}

impl Job {
    /// Answers that it was not done. A caller that has gone away no longer wants to know.
    pub(crate) fn fail(self, error: StoreError) {
        match self {
            Self::Swap(swap) => drop(swap.answer.send(Err(error))),
            Self::Forget(forget) => drop(forget.answer.send(Err(error))),
            Self::Fold(answer) => drop(answer.send(Err(error))),
        }
    }
}
