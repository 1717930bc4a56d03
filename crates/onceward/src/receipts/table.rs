//! What the receipt table in the user's own database must be able to do. Drivers implement it; the rules are elsewhere.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::outcome::Reply;
use crate::{Fence, OperationId, Timestamp};

/// What a table's methods return.
pub type TableFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, TableError>> + Send + 'a>>;

/// A table of receipt rows, one for each operation, and a few notes of Onceward's own under names that no operation has.
pub trait ReceiptTable: Send + Sync + 'static {
    /// Raises the fence of an operation's row to `fence`, unless it is higher, and returns the row as it is then. Makes the row
    /// where there is none.
    ///
    /// It is durable on the primary before this answers. A transaction that holds the row is waited for, for a limited time.
    fn void(&self, operation: OperationId, fence: Fence) -> TableFuture<'_, ReceiptRow>;

    /// The same, and removes the outside call that was begun, if there is one: a person has decided that it was not made.
    fn release(&self, operation: OperationId, fence: Fence) -> TableFuture<'_, ReceiptRow>;

    /// Reads an operation's row as it is on the primary.
    fn read(&self, operation: OperationId) -> TableFuture<'_, Option<ReceiptRow>>;

    /// Writes a note, unless there is one of its name, and returns the one that stands. Durable like a void. Its row has the name
    /// with `onceward:` before it, which no operation's has.
    fn note<'a>(&'a self, name: &'a str, note: &'a Note) -> TableFuture<'a, Note>;

    /// Reads a note.
    fn noted<'a>(&'a self, name: &'a str) -> TableFuture<'a, Option<Note>>;

    /// Removes a note, if there is one.
    fn erase<'a>(&'a self, name: &'a str) -> TableFuture<'a, ()>;

    /// Lists rows whose fence is older than `age` by the database's own clock, in the order of their operations' texts.
    fn aged(&self, age: Duration, after: Option<OperationId>, limit: usize) -> TableFuture<'_, Vec<AgedRow>>;

    /// Deletes each row that still has its fence, and returns how many were deleted.
    fn delete(&self, rows: Vec<AgedRow>) -> TableFuture<'_, usize>;
}

/// One operation's row.
#[derive(Clone, PartialEq, Eq)]
pub struct ReceiptRow {
    /// No transaction under a lower fence can commit any more.
    pub fence: Fence,
    /// The last phase that was committed.
    pub point: Option<ReceiptPoint>,
    /// An outside call that was begun and is not known to be done.
    pub entered: Option<ReceiptEntered>,
    /// The answer, where the work was committed as complete. An error says in words, without bodies, why it cannot be used.
    pub reply: Option<Result<Reply, String>>,
}

impl ReceiptRow {
    /// Whether a handler has written it. Voids alone write a fence and nothing else.
    pub(super) const fn is_written_by_handler(&self) -> bool {
        self.point.is_some() || self.entered.is_some() || self.reply.is_some()
    }
}

/// A phase that was committed.
#[derive(Clone, PartialEq, Eq)]
pub struct ReceiptPoint {
    /// Its name.
    pub name: String,
    /// JSON for a resume.
    pub data: Option<String>,
}

/// An outside call that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptEntered {
    /// The phase's name.
    pub point: String,
    /// When it was entered, by the database's clock.
    pub at: Timestamp,
    /// Until when the receiver recognises a repetition, where it does.
    pub dedup_until: Option<Timestamp>,
}

/// Something that Onceward remembers in the table about the table itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// A number, whose meaning depends on the note.
    pub number: u64,
    /// A text, likewise.
    pub text: String,
}

/// A row of [`ReceiptTable::aged`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgedRow {
    /// Whose it is.
    pub operation: OperationId,
    /// Its fence when it was listed.
    pub fence: Fence,
}

/// Why a call of a table failed. It then tells nothing about the operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// A transaction that is still open holds the row.
    #[error(
        "a transaction of the handler that is still open holds the receipt row, for longer than {waited:?}"
    )]
    Held {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The database did not carry the call out, or its answer was lost.
    #[error("the database of the receipts could not be asked: {reason}")]
    Unavailable {
        /// What happened, and what to do.
        reason: String,
    },
}

impl fmt::Debug for ReceiptRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reply = self.reply.as_ref().map(|reply| reply.as_ref().map(|reply| reply.status));
        f.debug_struct("ReceiptRow")
            .field("fence", &self.fence)
            .field("point", &self.point)
            .field("entered", &self.entered)
            .field("reply", &reply)
            .finish()
    }
}

/// The data can be anything, so it is not shown.
impl fmt::Debug for ReceiptPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiptPoint({:?})", self.name)
    }
}
