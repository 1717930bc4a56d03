//! The DDL that a user puts into their own migrations.

use onceward::receipts::TableName;

/// The table, its views, and what to know about them.
const DDL: &str = include_str!("table.sql");

/// Microseconds since 1970, by SQLite's clock of milliseconds.
pub(super) const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000";

/// The views that handlers insert into, and the trigger of each.
pub(super) const VIEWS: [(&str, &str); 4] = [
    ("onceward_write", "onceward_write_row"),
    ("onceward_checkpoint", "onceward_checkpoint_row"),
    ("onceward_complete", "onceward_complete_row"),
    ("onceward_enter", "onceward_enter_row"),
];

/// The SQL that creates a receipt table and its views, for the user's own migrations. Running it again keeps the table. SQLite
/// has no schemas, so only the table's own name counts.
///
/// ```
/// use onceward_sqlite::receipts::{TableName, print_sql};
/// let sql = print_sql(&TableName::default());
/// assert!(sql.contains(r#"CREATE TABLE IF NOT EXISTS "onceward_receipts""#));
/// ```
pub fn print_sql(table: &TableName) -> String {
    DDL.replace("{table}", &quoted(table))
        .replace("{index}", &format!("\"{}_fence\"", table.table()))
        .replace("{now}", NOW)
}

/// The table's own name, as statements have it.
pub(super) fn quoted(table: &TableName) -> String {
    format!("\"{}\"", table.table())
}
