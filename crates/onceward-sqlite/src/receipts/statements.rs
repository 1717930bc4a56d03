//! The statements, and how their rows are read.

use std::time::Duration;

use onceward::receipts::{
    AgedRow, BODY_BYTES_MAX, Column, HEADERS_BYTES_MAX, Note, ReceiptRow, RowColumns, TableName,
};
use onceward::{Fence, OperationId};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::ddl::{NOW, quoted};
use super::error::Failure;

/// The names of notes begin like this, and no operation's does.
const NOTE: &str = "onceward:";

/// More rows in one answer are no faster.
const AGED_ROWS_MAX: usize = 10_000;

/// The ids of operations, so that neither notes nor rows of other programs are listed.
const IS_OPERATION: &str = "length(operation) >= 32 AND substr(operation, 1, 32) NOT GLOB '*[^0-9a-f]*' \
     AND (length(operation) = 32 OR (substr(operation, 33, 1) = '-' AND length(operation) BETWEEN 34 AND 49 \
     AND substr(operation, 34) NOT GLOB '*[^0-9a-f]*'))";

#[derive(Debug)]
pub(super) struct Statements {
    table: String,
    columns: String,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        Self { table: quoted(table), columns: columns() }
    }

    pub(super) fn void(
        &self,
        connection: &Connection,
        operation: OperationId,
        fence: i64,
    ) -> Result<ReceiptRow, Failure> {
        let raise = format!(
            "INSERT INTO {} (operation, fence) VALUES (?1, ?2) \
             ON CONFLICT (operation) DO UPDATE SET fence = max(fence, excluded.fence)",
            self.table
        );
        connection.execute(&raise, params![operation.to_string(), fence])?;
        self.row(connection, operation)
    }

    /// A void that also removes the outside call that was begun, unless a later execution began it.
    pub(super) fn release(
        &self,
        connection: &Connection,
        operation: OperationId,
        fence: i64,
    ) -> Result<ReceiptRow, Failure> {
        let removed = ["entered", "entered_at", "dedup_until"]
            .map(|column| format!("{column} = CASE WHEN fence > excluded.fence THEN {column} END"));
        let raise = format!(
            "INSERT INTO {} (operation, fence) VALUES (?1, ?2) \
             ON CONFLICT (operation) DO UPDATE SET fence = max(fence, excluded.fence), {}",
            self.table,
            removed.join(", ")
        );
        connection.execute(&raise, params![operation.to_string(), fence])?;
        self.row(connection, operation)
    }

    fn row(&self, connection: &Connection, operation: OperationId) -> Result<ReceiptRow, Failure> {
        let Self { table, columns } = self;
        let select = format!("SELECT {columns} FROM {table} WHERE operation = ?1");
        Ok(connection.query_row(&select, [operation.to_string()], receipt)?)
    }

    pub(super) fn read(
        &self,
        connection: &Connection,
        operation: OperationId,
    ) -> Result<Option<ReceiptRow>, Failure> {
        let Self { table, columns } = self;
        let select = format!("SELECT {columns} FROM {table} WHERE operation = ?1");
        Ok(connection.query_row(&select, [operation.to_string()], receipt).optional()?)
    }

    /// The row that stands is written again, so that this commit makes it durable if its own did not.
    pub(super) fn note(
        &self,
        connection: &Connection,
        name: &str,
        number: i64,
        text: &str,
    ) -> Result<Note, Failure> {
        let Self { table, .. } = self;
        let insert = format!(
            "INSERT INTO {table} (operation, fence, data) VALUES (?1, ?2, json_quote(?3)) \
             ON CONFLICT (operation) DO UPDATE SET fence = fence RETURNING fence, json_extract(data, '$')"
        );
        let note = connection.query_row(&insert, params![note_name(name), number, text], note)?;
        Ok(note)
    }

    pub(super) fn noted(&self, connection: &Connection, name: &str) -> Result<Option<Note>, Failure> {
        let select =
            format!("SELECT fence, json_extract(data, '$') FROM {} WHERE operation = ?1", self.table);
        Ok(connection.query_row(&select, [note_name(name)], note).optional()?)
    }

    pub(super) fn erase(&self, connection: &Connection, name: &str) -> Result<(), Failure> {
        let delete = format!("DELETE FROM {} WHERE operation = ?1", self.table);
        connection.execute(&delete, [note_name(name)])?;
        Ok(())
    }

    pub(super) fn aged(
        &self,
        connection: &Connection,
        age: Duration,
        after: Option<OperationId>,
        limit: usize,
    ) -> Result<Vec<AgedRow>, Failure> {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let after = after.map(|after| after.to_string()).unwrap_or_default();
        let select = format!(
            "SELECT operation, fence FROM {} WHERE fence < {NOW} - ?1 AND operation > ?2 AND {IS_OPERATION} \
             ORDER BY operation LIMIT ?3",
            self.table
        );
        let limit = i64::try_from(limit.min(AGED_ROWS_MAX)).unwrap_or(i64::MAX);
        let mut statement = connection.prepare(&select)?;
        let rows = statement
            .query_map(params![age, after, limit], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
        rows.map(|row| {
            let (operation, number): (String, i64) = row?;
            let operation = operation
                .parse()
                .map_err(|_| Failure::Words("a receipt row's operation cannot be read".to_owned()))?;
            Ok(AgedRow { operation, fence: fence(number) })
        })
        .collect()
    }

    pub(super) fn delete(&self, connection: &Connection, rows: &[AgedRow]) -> Result<usize, Failure> {
        let mut statement =
            connection.prepare(&format!("DELETE FROM {} WHERE operation = ?1 AND fence = ?2", self.table))?;
        let mut deleted = 0;
        for AgedRow { operation, fence } in rows {
            // A row with a fence that fits no column does not exist.
            if let Ok(fence) = i64::try_from(fence.as_number()) {
                deleted += statement.execute(params![operation.to_string(), fence])?;
            }
        }
        Ok(deleted)
    }
}

/// The columns of a row. What is too large stays in the database. Any program can write any type into a column, so each is
/// converted to the one that is read.
fn columns() -> String {
    let text = |column: &str, most: usize| format!("CAST(substr({column}, 1, {most}) AS TEXT)");
    let number = |column: &str| format!("CAST({column} AS INTEGER)");
    let sized = |column: &str, kind: &str, most: usize| {
        let bytes = format!("length(CAST({column} AS BLOB))");
        format!("{bytes}, CASE WHEN {bytes} <= {most} THEN CAST({column} AS {kind}) END")
    };
    [
        number("fence"),
        text("point", 65),
        text("data", 4_097),
        text("entered", 65),
        number("entered_at"),
        number("dedup_until"),
        number("status"),
        sized("headers", "TEXT", HEADERS_BYTES_MAX),
        sized("body", "BLOB", BODY_BYTES_MAX),
    ]
    .join(", ")
}

fn receipt(row: &Row<'_>) -> rusqlite::Result<ReceiptRow> {
    let columns = RowColumns {
        fence: row.get(0)?,
        point: row.get(1)?,
        data: row.get(2)?,
        entered: row.get(3)?,
        entered_at: row.get(4)?,
        dedup_until: row.get(5)?,
        status: row.get(6)?,
        headers: sized(row.get(7)?, row.get(8)?),
        body: sized(row.get(9)?, row.get(10)?),
    };
    Ok(columns.decode())
}

fn sized<T>(bytes: Option<i64>, content: Option<T>) -> Column<T> {
    match (bytes, content) {
        (None, _) => Column::Empty,
        (Some(_), Some(content)) => Column::Read(content),
        (Some(bytes), None) => Column::TooLarge { bytes: bytes.unsigned_abs() },
    }
}

fn note(row: &Row<'_>) -> rusqlite::Result<Note> {
    let number: i64 = row.get(0)?;
    Ok(Note { number: number.unsigned_abs(), text: row.get::<_, Option<String>>(1)?.unwrap_or_default() })
}

/// A fence as its column holds it. A negative number was written by another program.
fn fence(number: i64) -> Fence {
    Fence::from_number(u64::try_from(number).unwrap_or(0))
}

fn note_name(name: &str) -> String {
    format!("{NOTE}{name}")
}
