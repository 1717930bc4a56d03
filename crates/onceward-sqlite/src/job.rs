//! The jobs of the writer thread.

use onceward::store::driver::{AnswerSender, RawSwapped, Weight, encode};
use onceward::store::{StoreError, Version};
use onceward::{Record, RecordId, Timestamp, record::StateKind};

use crate::queue::Weigh;

/// A job in the writer's queue.
pub(crate) enum Job {
    Swap(Swap),
    Forget(Forget),
    /// Answered when every earlier write is in the database.
    Flush(AnswerSender<()>),
}

pub(crate) struct Swap {
    pub id: RecordId,
    pub expect: Option<Version>,
    pub row: Row,
    pub answer: AnswerSender<RawSwapped>,
}

pub(crate) struct Forget {
    pub records: Vec<(RecordId, Version)>,
    pub answer: AnswerSender<usize>,
}

/// A record as it is written into the database. It is encoded on the caller's task, so that the writer only copies it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub state: StateKind,
    pub due_at: Timestamp,
    pub created_at: Timestamp,
    pub record: Vec<u8>,
}

impl Row {
    pub(crate) fn new(id: RecordId, record: &Record) -> Result<Self, StoreError> {
        let bytes = encode(id, record)?;
        let (_, due_at) = record.due();
        Ok(Self { state: record.state.kind(), due_at, created_at: record.created_at, record: bytes })
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
            Self::Flush(_) => Weight { rows: 1, bytes: 0 },
        }
    }
}

impl Job {
    /// Answers that the job was not carried out.
    pub(crate) fn fail(self, error: StoreError) {
        match self {
            Self::Swap(swap) => swap.answer.send(Err(error)),
            Self::Forget(forget) => forget.answer.send(Err(error)),
            Self::Flush(answer) => answer.send(Err(error)),
        }
    }
}
