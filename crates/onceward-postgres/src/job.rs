//! The calls that workers carry out, and their answers.

use bytes::Bytes;
use onceward::store::driver::{AnswerSender, RawSeen, RawSwapped, Weight, encode};
use onceward::store::{StoreError, Version};
use onceward::{
    Record, RecordId,
    record::{Letter, State, StateKind},
};

use crate::values::{At, readable};

/// What a load answers. The record is reference-counted, because several callers may get the same one.
pub(crate) type Loaded = RawSeen<Bytes>;

/// What a swap answers.
pub(crate) type Written = RawSwapped<Bytes>;

/// A swap in the queue.
pub(crate) struct Swap {
    pub id: RecordId,
    pub expect: Option<Version>,
    pub row: Row,
    pub answer: AnswerSender<Written>,
}

/// A load in the queue.
pub(crate) struct Load {
    pub id: RecordId,
    pub answer: AnswerSender<Loaded>,
}

/// A part of a forget in the queue.
pub(crate) struct Forget {
    pub records: Vec<(RecordId, Version)>,
    pub answer: AnswerSender<usize>,
}

/// What a load counts in the queue.
pub(crate) const LOAD_WEIGHT: Weight = Weight { rows: 1, bytes: 0 };

impl Swap {
    pub(crate) fn weight(&self) -> Weight {
        Weight { rows: 1, bytes: self.row.record.len() }
    }
}

impl Forget {
    pub(crate) fn weight(&self) -> Weight {
        Weight { rows: self.records.len().max(1), bytes: 0 }
    }
}

/// A record as it is written into the table. It is encoded on the caller's task, so that the worker only copies it.
#[derive(Clone)]
pub(crate) struct Row {
    pub state: StateKind,
    pub scope: String,
    pub key: String,
    pub route: String,
    pub recovery_point: Option<String>,
    pub status: Option<i32>,
    pub attempt: i32,
    pub fence: i64,
    pub created_at: At,
    pub lease_until: Option<At>,
    pub unknown_since: Option<At>,
    pub reconcile_at: Option<At>,
    pub settled_at: Option<At>,
    pub expires_at: Option<At>,
    pub last_error: Option<String>,
    pub record: Bytes,
}

impl Row {
    pub(crate) fn new(id: RecordId, record: &Record) -> Result<Self, StoreError> {
        let bytes = encode(id, record)?;
        let mut row = Self {
            state: record.state.kind(),
            scope: readable(&record.subject.scope),
            key: readable(&record.subject.key),
            route: readable(&record.subject.route),
            recovery_point: record.recovery_point.as_ref().map(|point| readable(point.name())),
            status: None,
            attempt: i32::try_from(record.attempt).unwrap_or(i32::MAX),
            fence: i64::try_from(record.fence.as_number()).unwrap_or(i64::MAX),
            created_at: At(record.created_at),
            lease_until: None,
            unknown_since: None,
            reconcile_at: None,
            settled_at: None,
            expires_at: None,
            last_error: record.last_error.as_deref().map(readable),
            record: bytes.into(),
        };
        match &record.state {
            State::InProgress { lease_until } => row.lease_until = Some(At(*lease_until)),
            State::Completed { reply, settled_at, expires_at } => {
                row.status = Some(i32::from(reply.status));
                row.settled_at = Some(At(*settled_at));
                row.expires_at = Some(At(*expires_at));
            }
            State::FailedRetryable { settled_at, expires_at } => {
                row.settled_at = Some(At(*settled_at));
                row.expires_at = Some(At(*expires_at));
            }
            State::Unknown { since, due_at, letter, .. } => {
                row.unknown_since = Some(At(*since));
                // A dead letter is not reconciled again.
                row.reconcile_at = match letter {
                    Letter::Live => Some(At(*due_at)),
                    Letter::Dead => None,
                };
            }
            State::Expired { status, expires_at } => {
                row.status = status.map(i32::from);
                row.expires_at = Some(At(*expires_at));
            }
        }
        Ok(row)
    }
}
