//! The driver of a receipt table.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onceward::receipts::{AgedRow, Note, ReceiptRow, ReceiptTable, TableError, TableFuture, TableName};
use onceward::store::driver::InvalidOption;
use onceward::{Fence, OperationId};
use tokio_postgres::SimpleQueryRow;

use super::error::{Circumstances, unavailable};
use super::options::ReceiptOptions;
use super::pool::Pool;
use super::rows;
use super::statements::{Listed, Statements};
use crate::connection::Dialer;
use crate::{Flavor, OpenError, PostgresUrl, tls};

/// Rows in one statement of a deletion.
const DELETE_ROWS: usize = 500;

/// A receipt table in a user's PostgreSQL database. Clones share its connections.
///
/// A void is durable in the sense of `synchronous_commit = on`, whatever the role's own setting is. A call whose future is
/// dropped is carried out or undone as a whole. It works through a pooler in transaction mode.
#[derive(Clone)]
pub struct PostgresReceipts {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    statements: Statements,
    url: String,
}

impl PostgresReceipts {
    /// A table in the database of this URL. Nothing is connected before the first call. The `schema`, `pool`, `prepared` and
    /// `batching` of the URL do not matter here.
    pub fn new(url: &PostgresUrl, table: TableName, options: ReceiptOptions) -> Result<Self, OpenError> {
        options.check()?;
        if url.flavor() != Flavor::Postgres {
            let rule = "postgres: no other database is known to make voids and handlers exclude each other";
            return Err(InvalidOption::new("flavor", url.flavor(), rule).into());
        }
        let dialer = Dialer::without_limits(url, tls::connector(url)?, options.answer_timeout);
        let statements = Statements::new(&table, &options);
        let circumstances =
            Circumstances { table, lock_wait: options.lock_wait, answer_timeout: options.answer_timeout };
        let pool = Pool::new(dialer, options.connections, circumstances);
        Ok(Self { shared: Arc::new(Shared { pool, statements, url: url.to_string() }) })
    }

    fn statements(&self) -> &Statements {
        &self.shared.statements
    }

    /// The rows of the last statement of a batch that writes.
    async fn write(&self, sql: String) -> Result<Vec<SimpleQueryRow>, TableError> {
        Ok(self.shared.pool.batch(&sql).await?.pop().unwrap_or_default())
    }

    /// The rows of the last statement of a batch that reads, on the primary.
    async fn read_rows(&self, sql: String) -> Result<Vec<SimpleQueryRow>, TableError> {
        let mut answers = self.shared.pool.batch(&sql).await?;
        match answers.first().and_then(|answer| answer.first()).map(rows::is_true).transpose()? {
            Some(false) => Ok(answers.pop().unwrap_or_default()),
            Some(true) | None => {
                Err(unavailable("this server is a standby: the URL must lead to the primary"))
            }
        }
    }

    /// Carries a void out, or a release, which is one.
    async fn void_by(&self, sql: String, fence: Fence) -> Result<ReceiptRow, TableError> {
        let rows = self.write(sql).await?;
        let row = rows.first().ok_or_else(|| {
            // A rule or a trigger of the table can suppress a row.
            unavailable("the void wrote no row: remove the rule or trigger of the table that prevents it")
        })?;
        let row = rows::receipt(row)?;
        if row.fence < fence {
            return Err(unavailable(
                "the void did not raise the fence: remove the trigger of the table that prevents it",
            ));
        }
        Ok(row)
    }

    async fn read_now(&self, operation: OperationId) -> Result<Option<ReceiptRow>, TableError> {
        let rows = self.read_rows(self.statements().read(operation)).await?;
        rows.first().map(rows::receipt).transpose()
    }

    async fn note_now(&self, name: &str, note: &Note) -> Result<Note, TableError> {
        let sql = self.statements().note(name, column("note's number", note.number)?, &note.text);
        let rows = self.write(sql).await?;
        rows.first().map(rows::note).unwrap_or_else(|| Err(unavailable("the table suppressed a note")))
    }

    async fn noted_now(&self, name: &str) -> Result<Option<Note>, TableError> {
        let rows = self.read_rows(self.statements().noted(name)).await?;
        rows.first().map(rows::note).transpose()
    }

    async fn aged_now(
        &self,
        age: Duration,
        after: Option<OperationId>,
        limit: usize,
    ) -> Result<Vec<AgedRow>, TableError> {
        let rows = self.read_rows(self.statements().aged(age, after, limit)).await?;
        rows.iter().map(rows::aged).collect()
    }

    async fn delete_now(&self, rows: Vec<AgedRow>) -> Result<usize, TableError> {
        let mut deleted = 0;
        for rows in rows.chunks(DELETE_ROWS) {
            let listed: Vec<_> = rows
                .iter()
                // A row with a fence that fits no column does not exist.
                .filter_map(|row| {
                    let fence = i64::try_from(row.fence.as_number()).ok()?;
                    Some(Listed { operation: row.operation, fence })
                })
                .collect();
            if !listed.is_empty() {
                let counted = self.write(self.statements().delete(&listed)).await?;
                deleted += counted.first().map(rows::count).transpose()?.unwrap_or(0);
            }
        }
        Ok(deleted)
    }
}

/// A number as a `bigint` column holds it.
fn column(what: &str, number: u64) -> Result<i64, TableError> {
    i64::try_from(number)
        .map_err(|_| unavailable(format!("the {what} {number} does not fit the column `fence`, a bigint")))
}

impl ReceiptTable for PostgresReceipts {
    fn void(&self, operation: OperationId, fence: Fence) -> TableFuture<'_, ReceiptRow> {
        Box::pin(async move {
            let number = column("fence", fence.as_number())?;
            self.void_by(self.statements().void(operation, number), fence).await
        })
    }

    fn release(&self, operation: OperationId, fence: Fence) -> TableFuture<'_, ReceiptRow> {
        Box::pin(async move {
            let number = column("fence", fence.as_number())?;
            self.void_by(self.statements().release(operation, number), fence).await
        })
    }

    fn read(&self, operation: OperationId) -> TableFuture<'_, Option<ReceiptRow>> {
        Box::pin(self.read_now(operation))
    }

    fn note<'a>(&'a self, name: &'a str, note: &'a Note) -> TableFuture<'a, Note> {
        Box::pin(self.note_now(name, note))
    }

    fn noted<'a>(&'a self, name: &'a str) -> TableFuture<'a, Option<Note>> {
        Box::pin(self.noted_now(name))
    }

    fn erase<'a>(&'a self, name: &'a str) -> TableFuture<'a, ()> {
        Box::pin(async move { self.write(self.statements().erase(name)).await.map(drop) })
    }

    fn aged(&self, age: Duration, after: Option<OperationId>, limit: usize) -> TableFuture<'_, Vec<AgedRow>> {
        Box::pin(self.aged_now(age, after, limit))
    }

    fn delete(&self, rows: Vec<AgedRow>) -> TableFuture<'_, usize> {
        Box::pin(self.delete_now(rows))
    }
}

impl fmt::Debug for PostgresReceipts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresReceipts").field("url", &self.shared.url).finish_non_exhaustive()
    }
}
