//! The DDL that a user puts into their own migrations.

use onceward::receipts::TableName;

/// The table, its functions, and what to know about them.
const DDL: &str = include_str!("table.sql");

/// What the functions are called, and what their arguments' types are. A schema has one of each.
pub(super) const FUNCTIONS: [(&str, &str); 4] = [
    ("onceward_write", "text, bigint, text, text, text, text, interval, int, text, bytea"),
    ("onceward_checkpoint", "text, bigint, text, text, text"),
    ("onceward_complete", "text, bigint, int, text, bytea, text"),
    ("onceward_enter", "text, bigint, text, interval, text"),
];

/// The SQL that creates a receipt table and its functions, for the user's own migrations. Running it again changes nothing.
///
/// ```
/// use onceward_postgres::receipts::{TableName, print_sql};
/// let sql = print_sql(&TableName::default());
/// assert!(sql.contains(r#"CREATE TABLE IF NOT EXISTS "onceward_receipts""#));
/// assert!(sql.contains("GRANT SELECT, INSERT, UPDATE ON onceward_receipts TO handler"));
/// ```
pub fn print_sql(table: &TableName) -> String {
    let plain = |name: &str| match table.schema() {
        Some(schema) => format!("{schema}.{name}"),
        None => name.to_owned(),
    };
    DDL.replace("{table_plain}", &table.to_string())
        .replace("{complete_plain}", &plain("onceward_complete"))
        .replace("{table}", &table.quoted())
        .replace("{index}", &format!("\"{}_fence\"", table.table()))
        .replace("{write_label}", "onceward_write")
        .replace("{write}", &table.beside("onceward_write"))
        .replace("{checkpoint}", &table.beside("onceward_checkpoint"))
        .replace("{complete}", &table.beside("onceward_complete"))
        .replace("{enter}", &table.beside("onceward_enter"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled() {
        for name in ["onceward_receipts", "shop.order"] {
            let sql = print_sql(&name.parse().unwrap());
            let left = sql.split('{').skip(1).find(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
            assert_eq!(left, None);
        }
    }
}
