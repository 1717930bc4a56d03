//! Deletes the rows that nothing can refer to any more.

use std::time::Duration;

use super::bound_table::{BindError, BoundTable};
use super::finder::ReceiptFinder;
use super::table::AgedRow;
use crate::store::StoreError;
use crate::{Engine, EngineError};

/// For how long after its claim a handler may make a row that is not there. `print_sql` writes the same time into the functions
/// and triggers of the table.
pub const KEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// Rows that are read and deleted in one go.
const PAGE: usize = 256;

/// Why old rows could not be deleted. They are deleted by a later call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OldRowsError {
    /// The table could not be used.
    #[error("old receipts are not deleted: {reason}")]
    Table {
        /// What happened, and what to do.
        reason: String,
    },
    /// A record could not be read.
    #[error("old receipts are not deleted: {0}")]
    Engine(#[from] EngineError),
}

impl ReceiptFinder {
    /// Deletes the rows whose records are gone and whose fences are older than twice [`KEEP`]. Then no handler can make them
    /// again. Returns how many were deleted.
    pub async fn delete_old_rows(&self, engine: &Engine) -> Result<usize, OldRowsError> {
        let mut deleted = 0;
        for table in self.tables() {
            deleted += delete_in(table, engine).await?;
        }
        Ok(deleted)
    }
}

async fn delete_in(table: &BoundTable, engine: &Engine) -> Result<usize, OldRowsError> {
    let failed = |error: BindError| OldRowsError::Table { reason: error.to_string() };
    let table = table.get().await.map_err(failed)?;
    let (mut after, mut deleted) = (None, 0);
    loop {
        let rows = table.aged(KEEP * 2, after, PAGE).await.map_err(|error| failed(error.into()))?;
        let Some(last) = rows.last() else { return Ok(deleted) };
        after = Some(last.operation);
        let mut gone = Vec::with_capacity(rows.len());
        for row in rows {
            if !is_remembered(engine, &row).await? {
                gone.push(row);
            }
        }
        deleted += table.delete(gone).await.map_err(|error| failed(error.into()))?;
    }
}

/// Whether there is a record of the row's window. One that cannot be read counts as one.
async fn is_remembered(engine: &Engine, row: &AgedRow) -> Result<bool, EngineError> {
    match engine.load(row.operation.record()).await {
        Ok(stamped) => Ok(stamped.is_some_and(|stamped| stamped.record.is_named_by(row.operation))),
        Err(EngineError::Store(StoreError::Unreadable { .. })) => Ok(true),
        Err(error) => Err(error),
    }
}
