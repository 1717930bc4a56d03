//! Shared parts for authors of a [`Store`](super::Store).
//!
//! A driver for another database brings its own statements: read, compare-and-swap, list and delete. Everything that does
//! not depend on the database is here, so that all drivers have the same limits and the same error texts:
//!
//! | task | part |
//! | --- | --- |
//! | encode a record before a swap | [`encode`], [`RECORD_BYTES_MAX`] |
//! | decode what a load or a conflict returned | [`RawRecord`], [`RawSeen`], [`RawSwapped`] |
//! | pass a call to the task or thread that owns the connection | [`answer_channel`] |
//! | bound a queue or a batch | [`Weight`] |
//! | bound a page of a scan | [`PageBudget`] |
//! | refuse a cursor of another list | [`foreign_cursor`] |
//! | split a long forget, and report one that failed half-way | [`FORGET_ROWS`], [`partly_forgotten`] |
//! | validate the driver's options | [`require_between`], [`InvalidOption`] |
//! | count for metrics | [`Counter`] |
//!
//! Two rules keep a driver fast. Encode and decode on the caller's task: the task that owns a connection serves all callers.
//! Check [`AnswerSender::is_abandoned`] before a swap is sent: a claim that is written after its caller gave up blocks its
//! key until the lease lapses.
//!
//! The conformance suite in `onceward-testkit` tests whether a driver is correct.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use super::{Cursor, Seen, Stamped, StoreError, Swapped, Version};
use crate::{Record, RecordId, Timestamp, codec};

/// The largest encoded record that a driver should accept. Replies are limited to 1 MiB unless the configuration says
/// otherwise, so a larger record is a configuration error, and writing it would block the connection for seconds.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// The most records on a page, whatever limit the caller gives: neither an operator nor a sweeper handles more at once.
pub const PAGE_ROWS_MAX: usize = 1_000;

/// The most bytes of records on a page, except that its last record may exceed it. A page is held in memory whole, both here
/// and in the API that returns it.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// The most rows that are examined for one page, whether they match or not. A search through millions of rows must not block
/// other lists, so a page may be empty and still have a cursor.
pub const PAGE_LOOKS_MAX: usize = 10_000;

/// How many records of a forget go into one statement or transaction, so that claims are served between the parts of a long
/// sweep.
pub const FORGET_ROWS: usize = 128;

/// Encodes a record, and refuses one that is larger than [`RECORD_BYTES_MAX`].
pub fn encode(id: RecordId, record: &Record) -> Result<Vec<u8>, StoreError> {
    let refused = |reason| StoreError::Refused { reason };
    let bytes = codec::encode(id, record).map_err(|error| refused(error.to_string()))?;
    if bytes.len() > RECORD_BYTES_MAX {
        return Err(refused(format!(
            "the record has {} bytes, and at most {RECORD_BYTES_MAX} are kept: lower max_response_body",
            bytes.len()
        )));
    }
    Ok(bytes)
}

/// A stored record that is still encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRecord<B = Vec<u8>> {
    /// The record's version.
    pub version: Version,
    /// The record, as [`encode`] wrote it.
    pub bytes: B,
}

/// A [`Seen`] whose record is still encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawSeen<B = Vec<u8>> {
    /// The store's own clock.
    pub now: Timestamp,
    /// The record, unless there is none.
    pub record: Option<RawRecord<B>>,
}

/// A [`Swapped`] whose record is still encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawSwapped<B = Vec<u8>> {
    /// The record is written, durably.
    Applied {
        /// The record's new version.
        version: Version,
        /// The store's own clock.
        now: Timestamp,
    },
    /// The id has another version, and nothing was written.
    Conflict(RawSeen<B>),
}

impl<B: AsRef<[u8]>> RawRecord<B> {
    /// Decodes the record. Bytes that cannot be decoded are an error, never an absent record.
    pub fn decode(self, id: RecordId) -> Result<Stamped, StoreError> {
        let version = self.version;
        match codec::decode(id, self.bytes.as_ref()) {
            Ok(record) => Ok(Stamped { record, version }),
            Err(why) => Err(StoreError::Unreadable { id, version, why }),
        }
    }
}

impl<B: AsRef<[u8]>> RawSeen<B> {
    /// Decodes the record, if there is one.
    pub fn decode(self, id: RecordId) -> Result<Seen, StoreError> {
        let record = self.record.map(|record| record.decode(id)).transpose()?;
        Ok(Seen { now: self.now, record })
    }
}

impl<B: AsRef<[u8]>> RawSwapped<B> {
    /// Decodes the record of a conflict.
    pub fn decode(self, id: RecordId) -> Result<Swapped, StoreError> {
        match self {
            Self::Applied { version, now } => Ok(Swapped::Applied { version, now }),
            Self::Conflict(seen) => seen.decode(id).map(Swapped::Conflict),
        }
    }
}

/// Connects a call with the task or thread that carries it out.
pub fn answer_channel<T>() -> (AnswerSender<T>, AnswerReceiver<T>) {
    let (sender, receiver) = oneshot::channel();
    (AnswerSender(sender), AnswerReceiver(receiver))
}

/// The end of an [`answer_channel`] that travels with the call.
#[derive(Debug)]
pub struct AnswerSender<T>(oneshot::Sender<Result<T, StoreError>>);

impl<T> AnswerSender<T> {
    /// Answers the call. The answer is discarded if the caller has dropped its future.
    pub fn send(self, answer: Result<T, StoreError>) {
        drop(self.0.send(answer));
    }

    /// Whether the caller has dropped its future.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }
}

/// The end of an [`answer_channel`] that the caller keeps.
#[derive(Debug)]
pub struct AnswerReceiver<T>(oneshot::Receiver<Result<T, StoreError>>);

impl<T> AnswerReceiver<T> {
    /// Waits for the answer. `lost` gives the error for a sender that was dropped without an answer: of a write it must be
    /// [`StoreError::Ambiguous`], because the write may have been carried out.
    pub async fn receive(self, lost: impl FnOnce() -> StoreError) -> Result<T, StoreError> {
        self.0.await.unwrap_or_else(|_| Err(lost()))
    }
}

/// How much a call, a batch or a queue holds, compared with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weight {
    /// Records that are read or written.
    pub rows: usize,
    /// Bytes of encoded records.
    pub bytes: usize,
}

impl Weight {
    /// The sum of two weights.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { rows: self.rows.saturating_add(other.rows), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// The difference of two weights, at least zero.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self { rows: self.rows.saturating_sub(other.rows), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    /// Whether neither rows nor bytes exceed the limit.
    #[must_use]
    pub const fn fits(self, limit: Self) -> bool {
        self.rows <= limit.rows && self.bytes <= limit.bytes
    }
}

/// What a page of a scan may still hold. A driver examines rows until [`is_full`](Self::is_full), and returns a cursor if rows
/// are left then.
#[derive(Debug, Clone)]
pub struct PageBudget {
    rows_left: usize,
    bytes: usize,
    looks: usize,
}

impl PageBudget {
    /// The budget of a page for a scan with this limit.
    pub const fn new(limit: usize) -> Self {
        let rows_left = if limit < PAGE_ROWS_MAX { limit } else { PAGE_ROWS_MAX };
        Self { rows_left, bytes: 0, looks: 0 }
    }

    /// Counts rows that were examined, whether they match or not.
    pub const fn count_looks(&mut self, rows: usize) {
        self.looks += rows;
    }

    /// Counts bytes that were read for the page.
    pub const fn count_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Counts one record that is on the page.
    pub const fn count_row(&mut self) {
        self.rows_left = self.rows_left.saturating_sub(1);
    }

    /// How many rows were examined.
    pub const fn looks(&self) -> usize {
        self.looks
    }

    /// How many more records the page may hold.
    pub const fn rows_left(&self) -> usize {
        self.rows_left
    }

    /// Whether the page ends here.
    pub const fn is_full(&self) -> bool {
        self.rows_left == 0 || self.bytes >= PAGE_BYTES_MAX || self.looks >= PAGE_LOOKS_MAX
    }
}

/// The error for a cursor that this driver did not make, or made for another list.
pub fn foreign_cursor(cursor: &Cursor) -> StoreError {
    StoreError::Refused {
        reason: format!(
            "a cursor of {} bytes is not one that this store gave for this list: start the list anew",
            cursor.as_bytes().len()
        ),
    }
}

/// The error of a forget whose earlier parts have deleted records already: "nothing was written" is not true of it.
pub fn partly_forgotten(forgotten: usize, error: StoreError) -> StoreError {
    if forgotten == 0 {
        return error;
    }
    StoreError::Ambiguous { reason: format!("{forgotten} records were forgotten, then: {error}") }
}

/// An option of a driver that is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} = {value} must be {rule}")]
pub struct InvalidOption {
    /// The name of the option.
    pub setting: &'static str,
    /// Its value.
    pub value: String,
    /// The values that are allowed.
    pub rule: String,
}

impl InvalidOption {
    /// The error for a value that breaks a rule.
    pub fn new(setting: &'static str, value: impl Debug, rule: impl Into<String>) -> Self {
        Self { setting, value: format!("{value:?}"), rule: rule.into() }
    }
}

/// Refuses a value of an option below a minimum.
pub fn require_at_least<T: PartialOrd + Debug>(
    setting: &'static str,
    value: T,
    least: T,
) -> Result<(), InvalidOption> {
    if value >= least {
        return Ok(());
    }
    Err(InvalidOption::new(setting, value, format!("at least {least:?}")))
}

/// Refuses a value of an option above a maximum.
pub fn require_at_most<T: PartialOrd + Debug>(
    setting: &'static str,
    value: T,
    most: T,
) -> Result<(), InvalidOption> {
    if value <= most {
        return Ok(());
    }
    Err(InvalidOption::new(setting, value, format!("at most {most:?}")))
}

/// Refuses a value of an option that is not between two others, both included.
pub fn require_between<T: PartialOrd + Debug>(
    setting: &'static str,
    value: T,
    least: T,
    most: T,
) -> Result<(), InvalidOption> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(InvalidOption::new(setting, value, format!("between {least:?} and {most:?}")))
}

/// A number for metrics that many tasks change.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the number.
    pub fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Raises the number to this one, if it is lower.
    pub fn raise_to(&self, count: usize) {
        self.0.fetch_max(count as u64, Ordering::Relaxed);
    }

    /// The number.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_at_its_rows_its_bytes_or_the_rows_that_were_examined() {
        let mut rows = PageBudget::new(usize::MAX);
        assert_eq!(rows.rows_left(), PAGE_ROWS_MAX);
        (1..PAGE_ROWS_MAX).for_each(|_| rows.count_row());
        assert!(!rows.is_full());
        rows.count_row();
        assert!(rows.is_full());
        let mut bytes = PageBudget::new(2);
        bytes.count_bytes(PAGE_BYTES_MAX - 1);
        assert!(!bytes.is_full());
        bytes.count_bytes(1);
        assert!(bytes.is_full());
        let mut looks = PageBudget::new(2);
        looks.count_looks(PAGE_LOOKS_MAX - 1);
        assert!(!looks.is_full());
        looks.count_looks(1);
        assert!(looks.is_full());
    }

    #[test]
    fn an_option_is_accepted_at_its_bounds_and_refused_beyond_them_with_the_rule() {
        let text = |checked: Result<(), InvalidOption>| checked.map_err(|error| error.to_string());
        assert_eq!(text(require_between("n", 1, 1, 3)), Ok(()));
        assert_eq!(text(require_between("n", 3, 1, 3)), Ok(()));
        assert_eq!(text(require_between("n", 4, 1, 3)), Err("n = 4 must be between 1 and 3".to_owned()));
        assert_eq!(text(require_at_least("n", 0, 1)), Err("n = 0 must be at least 1".to_owned()));
        assert_eq!(text(require_at_most("n", 4, 3)), Err("n = 4 must be at most 3".to_owned()));
    }

    #[test]
    fn a_forget_that_deleted_records_before_it_failed_is_ambiguous() {
        let error = StoreError::Overloaded { waiting: 3 };
        assert_eq!(partly_forgotten(0, error.clone()), error);
        assert!(matches!(partly_forgotten(1, error), StoreError::Ambiguous { .. }));
    }
}
