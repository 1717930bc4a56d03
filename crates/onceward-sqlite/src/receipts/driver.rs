//! The driver of a receipt table.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onceward::receipts::{AgedRow, Note, ReceiptRow, ReceiptTable, TableError, TableFuture, TableName};
use onceward::store::driver::InvalidOption;
use onceward::{Fence, OperationId};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::database::{open, write};
use super::error::{Failure, unavailable};
use super::options::ReceiptOptions;
use super::statements::Statements;
use crate::OpenError;

/// Rows in one transaction of a deletion. Handlers wait for its end.
const DELETE_ROWS: usize = 200;

/// Calls at once. SQLite has one writer at a time, so that more would only wait in more threads.
const THREADS: usize = 4;

/// A receipt table in a user's SQLite database. Clones share its threads.
///
/// A void is on the disk when it is answered, in every journal mode. The file is never created, and its journal mode never
/// changed. A call whose future is dropped is carried out or undone as a whole.
#[derive(Debug, Clone)]
pub struct SqliteReceipts {
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    statements: Statements,
    lock_wait: Duration,
}

impl SqliteReceipts {
    /// A table in this file, which is opened by each call. Must be used within a tokio runtime.
    pub fn new(path: impl AsRef<Path>, table: TableName, options: ReceiptOptions) -> Result<Self, OpenError> {
        options.check()?;
        if table.schema().is_some() {
            return Err(InvalidOption::new(
                "table",
                table,
                "a name without a schema, which SQLite does not have",
            )
            .into());
        }
        let shared = Shared {
            path: path.as_ref().to_owned(),
            statements: Statements::new(&table),
            lock_wait: options.lock_wait,
        };
        Ok(Self { shared: Arc::new(shared), places: Arc::new(Semaphore::new(THREADS)) })
    }

    /// Runs blocking work on a connection of its own.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection, &Statements) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, TableError> {
        let place = self.places.clone().acquire_owned().await;
        let place = place.map_err(|_| unavailable("the receipt table was closed"))?;
        let shared = self.shared.clone();
        let done = tokio::task::spawn_blocking(move || {
            // Kept until the work is done, also if the call is dropped before.
            let _place = place;
            open(&shared.path, shared.lock_wait)
                .and_then(|mut connection| work(&mut connection, &shared.statements))
                .map_err(|failure| failure.explain(&shared.path, shared.lock_wait))
        });
        done.await
            .map_err(|error| unavailable(format!("the thread of the receipt table has ended: {error}")))?
    }

    /// Carries a void out, or a release, which is one.
    async fn void_by(
        &self,
        void: fn(&Statements, &Connection, OperationId, i64) -> Result<ReceiptRow, Failure>,
        (operation, fence): (OperationId, Fence),
    ) -> Result<ReceiptRow, TableError> {
        let number = column("fence", fence.as_number())?;
        self.run(move |connection, statements| {
            let row = write(connection, |transaction| void(statements, transaction, operation, number))?;
            if row.fence < fence {
                let words =
                    "the void did not raise the fence: remove the trigger of the table that prevents it";
                return Err(Failure::Words(words.to_owned()));
            }
            Ok(row)
        })
        .await
    }

    async fn note_now(&self, name: String, note: Note) -> Result<Note, TableError> {
        let number = column("note's number", note.number)?;
        self.run(move |connection, statements| {
            write(connection, |transaction| statements.note(transaction, &name, number, &note.text))
        })
        .await
    }

    async fn erase_now(&self, name: String) -> Result<(), TableError> {
        self.run(move |connection, statements| {
            write(connection, |transaction| statements.erase(transaction, &name))
        })
        .await
    }

    async fn delete_now(&self, rows: Vec<AgedRow>) -> Result<usize, TableError> {
        self.run(move |connection, statements| {
            rows.chunks(DELETE_ROWS)
                .map(|rows| write(connection, |transaction| statements.delete(transaction, rows)))
                .sum()
        })
        .await
    }
}

/// A number as a column holds it.
fn column(what: &str, number: u64) -> Result<i64, TableError> {
    i64::try_from(number).map_err(|_| {
        unavailable(format!("the {what} {number} does not fit the column `fence`, an INTEGER of 64 bits"))
    })
}

impl ReceiptTable for SqliteReceipts {
    fn void(&self, operation: OperationId, fence: Fence) -> TableFuture<'_, ReceiptRow> {
        Box::pin(self.void_by(Statements::void, (operation, fence)))
    }

    fn release(&self, operation: OperationId, fence: Fence) -> TableFuture<'_, ReceiptRow> {
        Box::pin(self.void_by(Statements::release, (operation, fence)))
    }

    fn read(&self, operation: OperationId) -> TableFuture<'_, Option<ReceiptRow>> {
        Box::pin(self.run(move |connection, statements| statements.read(connection, operation)))
    }

    fn note<'a>(&'a self, name: &'a str, note: &'a Note) -> TableFuture<'a, Note> {
        Box::pin(self.note_now(name.to_owned(), note.clone()))
    }

    fn noted<'a>(&'a self, name: &'a str) -> TableFuture<'a, Option<Note>> {
        let name = name.to_owned();
        Box::pin(self.run(move |connection, statements| statements.noted(connection, &name)))
    }

    fn erase<'a>(&'a self, name: &'a str) -> TableFuture<'a, ()> {
        Box::pin(self.erase_now(name.to_owned()))
    }

    fn aged(&self, age: Duration, after: Option<OperationId>, limit: usize) -> TableFuture<'_, Vec<AgedRow>> {
        Box::pin(self.run(move |connection, statements| statements.aged(connection, age, after, limit)))
    }

    fn delete(&self, rows: Vec<AgedRow>) -> TableFuture<'_, usize> {
        Box::pin(self.delete_now(rows))
    }
}
