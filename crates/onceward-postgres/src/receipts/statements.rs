//! The statements. Each batch is one message and one transaction, so its values are written into it: numbers, ids of
//! operations, and texts in hexadecimal digits, none of which can end a literal.

use std::fmt::Write as _;
use std::time::Duration;

use onceward::OperationId;
use onceward::receipts::{BODY_BYTES_MAX, HEADERS_BYTES_MAX, TableName};

use super::options::ReceiptOptions;

/// The names of notes begin like this, and no operation's does.
const NOTE: &str = "onceward:";

/// The ids of operations, so that neither notes nor rows of other programs are listed.
const IS_OPERATION: &str = "operation ~ '^[0-9a-f]{32}(-[0-9a-f]{1,16})?$'";

/// More rows in one answer are no faster.
const AGED_ROWS_MAX: usize = 10_000;

/// One row of [`Statements::delete`].
pub(super) struct Listed {
    pub operation: OperationId,
    pub fence: i64,
}

pub(super) struct Statements {
    /// Begins a batch that writes.
    write: String,
    /// Begins a batch that reads. Its first row says whether the server is a standby.
    read: String,
    table: String,
    columns: String,
}

impl Statements {
    pub(super) fn new(table: &TableName, options: &ReceiptOptions) -> Self {
        let limits = format!(
            "SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {};",
            options.statement_timeout.as_millis(),
            options.lock_wait.as_millis().max(1),
        );
        // A void that waited for a handler must see what that handler committed, which a snapshot from before would not. And
        // neither a crash nor a failover may forget a void: an owner could then commit after all.
        let write = format!(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {limits} \
             SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') \
             IN ('on', 'remote_apply') THEN current_setting('synchronous_commit') ELSE 'on' END, true);"
        );
        let read = format!("{limits} SELECT pg_is_in_recovery();");
        Self { write, read, table: table.quoted(), columns: columns() }
    }

    pub(super) fn void(&self, operation: OperationId, fence: i64) -> String {
        let Self { write, table, columns, .. } = self;
        format!(
            "{write} INSERT INTO {table} AS stored (operation, fence) VALUES ('{operation}', {fence}) \
             ON CONFLICT (operation) DO UPDATE SET fence = greatest(stored.fence, excluded.fence) RETURNING {columns}"
        )
    }

    /// A void that also removes the outside call that was begun, unless a later execution began it.
    pub(super) fn release(&self, operation: OperationId, fence: i64) -> String {
        let Self { write, table, columns, .. } = self;
        let removed = ["entered", "entered_at", "dedup_until"].map(|column| {
            format!("{column} = CASE WHEN stored.fence > excluded.fence THEN stored.{column} END")
        });
        format!(
            "{write} INSERT INTO {table} AS stored (operation, fence) VALUES ('{operation}', {fence}) \
             ON CONFLICT (operation) DO UPDATE SET fence = greatest(stored.fence, excluded.fence), {} RETURNING {columns}",
            removed.join(", ")
        )
    }

    pub(super) fn read(&self, operation: OperationId) -> String {
        let Self { read, table, columns, .. } = self;
        format!("{read} SELECT {columns} FROM {table} AS stored WHERE operation = '{operation}'")
    }

    /// The row that stands is written again, so that this commit makes it durable if its own did not.
    pub(super) fn note(&self, name: &str, number: i64, text: &str) -> String {
        let Self { write, table, .. } = self;
        format!(
            "{write} INSERT INTO {table} AS stored (operation, fence, data) \
             VALUES ({}, {number}, to_json({})::text) \
             ON CONFLICT (operation) DO UPDATE SET fence = stored.fence RETURNING {NOTE_COLUMNS}",
            note_name(name),
            literal(text)
        )
    }

    pub(super) fn noted(&self, name: &str) -> String {
        let Self { read, table, .. } = self;
        format!("{read} SELECT {NOTE_COLUMNS} FROM {table} AS stored WHERE operation = {}", note_name(name))
    }

    pub(super) fn erase(&self, name: &str) -> String {
        let Self { write, table, .. } = self;
        format!("{write} DELETE FROM {table} WHERE operation = {}", note_name(name))
    }

    pub(super) fn aged(&self, age: Duration, after: Option<OperationId>, limit: usize) -> String {
        let Self { read, table, .. } = self;
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let after = after.map_or(String::new(), |after| format!("AND operation > '{after}'"));
        // The time of the transaction, which is one for all rows, so that the index on the fence can be used.
        format!(
            "{read} SELECT operation, fence FROM {table} \
             WHERE fence < (extract(epoch FROM now()) * 1000000)::bigint - {age} {after} AND {IS_OPERATION} \
             ORDER BY operation LIMIT {}",
            limit.min(AGED_ROWS_MAX)
        )
    }

    /// A row that a transaction holds is left for the next time.
    pub(super) fn delete(&self, rows: &[Listed]) -> String {
        let Self { write, table, .. } = self;
        let mut listed = String::new();
        for Listed { operation, fence } in rows {
            let comma = if listed.is_empty() { "" } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(listed, "{comma}('{operation}', {fence}::bigint)");
        }
        format!(
            "{write} WITH deleted AS (DELETE FROM {table} WHERE operation IN (SELECT stored.operation \
             FROM {table} AS stored JOIN (VALUES {listed}) AS listed (operation, fence) \
             ON stored.operation = listed.operation AND stored.fence = listed.fence FOR UPDATE OF stored SKIP LOCKED) \
             RETURNING 1) SELECT count(*) FROM deleted"
        )
    }
}

const NOTE_COLUMNS: &str = "stored.fence, stored.data::json #>> '{}'";

/// The columns of a row, in the order in which `rows.rs` reads them. What is too large stays in the database.
fn columns() -> String {
    format!(
        "stored.fence, left(stored.point, 65), left(stored.data, 4097), left(stored.entered, 65), {}, {}, stored.status, \
         octet_length(stored.headers), \
         CASE WHEN octet_length(stored.headers) <= {HEADERS_BYTES_MAX} THEN stored.headers END, \
         octet_length(stored.body), \
         CASE WHEN octet_length(stored.body) <= {BODY_BYTES_MAX} THEN encode(stored.body, 'hex') END",
        micros("stored.entered_at"),
        micros("stored.dedup_until")
    )
}

/// A time in microseconds since 1970. Infinity, and what is nearly that late, is the last time.
fn micros(column: &str) -> String {
    format!(
        "CASE WHEN isfinite({column}) THEN least((extract(epoch FROM {column}) * 1000000)::numeric, {max})::bigint \
         WHEN {column} > now() THEN {max} WHEN {column} < now() THEN 0 END",
        max = i64::MAX
    )
}

fn note_name(name: &str) -> String {
    literal(&format!("{NOTE}{name}"))
}

/// Any text, in letters that mean themselves under every setting of the server.
fn literal(text: &str) -> String {
    let mut digits = String::with_capacity(2 * text.len());
    for byte in text.bytes() {
        let _ = write!(digits, "{byte:02x}");
    }
    format!("convert_from(decode('{digits}', 'hex'), 'UTF8')")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_can_end_its_literal() {
        let statements = Statements::new(&TableName::default(), &ReceiptOptions::default());
        let hostile = "'; DROP TABLE x; -- \\";
        for sql in
            [statements.note(hostile, 1, hostile), statements.noted(hostile), statements.erase(hostile)]
        {
            assert!(!sql.contains("DROP"), "{sql}");
        }
    }
}
