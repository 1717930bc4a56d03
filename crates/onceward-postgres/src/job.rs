//! What is asked of the connections, and what they answer.

use bytes::Bytes;
use onceward::codec;
use onceward::store::{Seen, Stamped, StoreError, Swapped, Version};
use onceward::{Letter, Record, RecordId, State, StateKind, Timestamp};
use tokio::sync::oneshot;

use crate::values::{At, readable};

/// A record of this size is a configuration error and not a reply: replies are limited to a mebibyte unless somebody
/// asks for more, and one row must not take a connection for seconds.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// A swap that waits for a connection.
pub(crate) struct Swap {
    pub id: RecordId,
    pub expect: Option<Version>,
    pub row: Row,
    pub answer: Answer<Written>,
}

/// A load that waits for a connection.
pub(crate) struct Load {
    pub id: RecordId,
    pub answer: Answer<Found>,
}

/// Some deletions that wait for a connection.
pub(crate) struct Forget {
    pub records: Vec<(RecordId, Version)>,
    pub answer: Answer<usize>,
}

/// A record as it goes into the table. Made on the caller's task, so that the connection's only copies it.
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
        let refused = |reason| StoreError::Refused { reason };
        let bytes = codec::encode(id, record).map_err(|error| refused(error.to_string()))?;
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(refused(format!(
                "the record has {} bytes, and at most {RECORD_BYTES_MAX} are kept: lower max_response_body",
                bytes.len()
            )));
        }
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
                // A dead letter is not looked at again.
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

/// What came of a swap, with the record still encoded: the caller decodes it.
#[derive(Clone)]
pub(crate) enum Written {
    Applied { version: Version, now: Timestamp },
    Conflict(Found),
}

/// What stands in the table for an id.
#[derive(Clone)]
pub(crate) struct Found {
    pub now: Timestamp,
    pub stored: Option<Stored>,
}

/// A row as it was read.
#[derive(Clone)]
pub(crate) struct Stored {
    pub version: Version,
    pub record: Bytes,
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
