//! Whether a row without an answer proves anything: only where the handlers of the route are known to write rows, and only for
//! operations that were opened after that was known.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::finder::Resumed;
use super::table::{Note, ReceiptTable, TableError};
use crate::key::NamespaceHash;
use crate::{Fence, OperationId, Timestamp};

/// The beginning of the note about the first row that a handler of a route wrote.
const FIRST_ROW: &str = "first-row:";
/// The beginning of the note about a completion without a receipt.
const SUSPENDED: &str = "suspended:";

/// The beginning of the note about the time when a route's voids were resumed.
const RESUMED: &str = "resumed:";

/// At first each completion of a route is checked: a handler that forgets its receipts should be noticed by its first requests.
const CHECKED_AT_FIRST: u64 = 1000;
/// Later one of so many is, because each check reads the handler's database.
const LATER_ONE_OF: u64 = 10;

/// How often completions ask whether suspended voids were resumed.
const SUSPENSION_ASKED_EVERY: Duration = Duration::from_secs(1);

/// What is known about the handlers of one route. It is kept in notes in the table, for every gateway of the namespace.
pub(super) struct Control {
    first_row_note: String,
    suspended_note: String,
    resumed_note: String,
    /// When the first row was seen, as far as this process knows. Zero: never.
    first_row_seen: AtomicU64,
    suspended: AtomicBool,
    /// When a completion last asked whether they still are.
    suspension_asked_at: AtomicU64,
    /// Completions that were found to have their receipt.
    checked: AtomicU64,
}

/// Whether a row without an answer releases its operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Release {
    Allowed,
    /// No handler of the route was ever seen to write a row.
    NoRowYet,
    /// The operation was opened before the first row was seen, or before the voids were resumed, so its handler may have been one
    /// that writes none.
    OpenedBefore,
}

impl Control {
    pub(super) fn new(namespace: NamespaceHash, route: &str) -> Self {
        Self {
            first_row_note: format!("{FIRST_ROW}{namespace}:{route}"),
            suspended_note: format!("{SUSPENDED}{namespace}:{route}"),
            resumed_note: format!("{RESUMED}{namespace}:{route}"),
            first_row_seen: AtomicU64::new(0),
            suspended: AtomicBool::new(false),
            suspension_asked_at: AtomicU64::new(0),
            checked: AtomicU64::new(0),
        }
    }

    pub(super) fn has_first_row(&self) -> bool {
        self.first_row_seen.load(Ordering::Relaxed) != 0
    }

    /// Takes over what a note says. After another first row the handlers are others, and are all checked again.
    fn set_first_row(&self, at: u64) {
        if self.first_row_seen.swap(at, Ordering::Relaxed) != at {
            self.checked.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Relaxed)
    }

    /// Whether the completion of this operation is to be checked: the same at each try. Where the voids are suspended already, little
    /// would follow: only whether they have been resumed, by another process, is asked now and then.
    pub(super) fn picks(&self, operation: OperationId, now: Timestamp) -> bool {
        if self.is_suspended() {
            let asked = Timestamp::from_micros(self.suspension_asked_at.load(Ordering::Relaxed));
            let is_due = now.since(asked) >= SUSPENSION_ASKED_EVERY;
            if is_due {
                self.suspension_asked_at.store(now.as_micros(), Ordering::Relaxed);
            }
            return is_due;
        }
        let sample = u64::from(operation.record().as_bytes()[0]).is_multiple_of(LATER_ONE_OF);
        sample || self.checked.load(Ordering::Relaxed) < CHECKED_AT_FIRST
    }

    /// A completion was found to have its receipt.
    pub(super) fn completion_has_receipt(&self) {
        self.checked.fetch_add(1, Ordering::Relaxed);
    }

    /// A row that a handler wrote was seen at this time, by the store's clock. `opened` is the fence that opened its operation.
    pub(super) async fn saw_row(
        &self,
        table: &dyn ReceiptTable,
        opened: Fence,
        at: Timestamp,
    ) -> Result<(), TableError> {
        if !self.has_first_row() && !self.was_resumed_since(table, opened).await? {
            // Not the fence of its operation: that is an estimate, and the next claim can get a lower one from a closer estimate.
            let note = Note { number: at.as_micros(), text: String::new() };
            let stands = table.note(&self.first_row_note, &note).await?;
            self.set_first_row(stands.number);
        }
        Ok(())
    }

    /// Whether a row without an answer releases the operation that this fence opened.
    pub(super) async fn may_release(
        &self,
        table: &dyn ReceiptTable,
        opened: Fence,
    ) -> Result<Release, TableError> {
        let first_row = table.noted(&self.first_row_note).await?;
        self.set_first_row(first_row.as_ref().map_or(0, |first| first.number));
        Ok(match first_row {
            None => Release::NoRowYet,
            Some(first) if opened.as_number() <= first.number => Release::OpenedBefore,
            // A find that was under way when the voids were resumed may have noted an older row.
            Some(_) if self.was_resumed_since(table, opened).await? => Release::OpenedBefore,
            Some(_) => Release::Allowed,
        })
    }

    /// Whether the operation that this fence opened may be the work of a handler that was corrected since.
    pub(super) async fn was_resumed_since(
        &self,
        table: &dyn ReceiptTable,
        opened: Fence,
    ) -> Result<bool, TableError> {
        let resumed = table.noted(&self.resumed_note).await?;
        Ok(resumed.is_some_and(|resumed| opened.as_number() <= resumed.number))
    }

    /// A handler answered that the work was done, and wrote no row: from now on no void releases anything. Returns whether that is
    /// new.
    pub(super) async fn suspend(
        &self,
        table: &dyn ReceiptTable,
        operation: OperationId,
        opened: Fence,
    ) -> Result<bool, TableError> {
        let note = Note { number: opened.as_number(), text: operation.to_string() };
        let stands = table.note(&self.suspended_note, &note).await?;
        self.suspended.store(true, Ordering::Relaxed);
        Ok(stands == note)
    }

    /// The operation that was completed without a row, if there was one.
    pub(super) async fn suspended_by(&self, table: &dyn ReceiptTable) -> Result<Option<String>, TableError> {
        let note = table.noted(&self.suspended_note).await?;
        self.suspended.store(note.is_some(), Ordering::Relaxed);
        Ok(note.map(|note| note.text))
    }

    /// Forgets what is known: the handler was corrected at this time. Operations that were opened before stay unproven, and their
    /// rows say nothing about the corrected handler.
    pub(super) async fn restart(
        &self,
        table: &dyn ReceiptTable,
        corrected_at: Timestamp,
    ) -> Result<Resumed, TableError> {
        let Some(suspended) = table.noted(&self.suspended_note).await? else {
            return Ok(Resumed::WereNotSuspended);
        };
        // Not before the operation that has no receipt, whatever the clocks say.
        let number = corrected_at.as_micros().max(suspended.number);
        let note = Note { number, text: String::new() };
        table.erase(&self.resumed_note).await?;
        table.note(&self.resumed_note, &note).await?;
        table.erase(&self.first_row_note).await?;
        self.set_first_row(0);
        table.erase(&self.suspended_note).await?;
        self.suspended.store(false, Ordering::Relaxed);
        Ok(Resumed::FromTheNextRow)
    }
}
