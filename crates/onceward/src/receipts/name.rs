//! The name of a receipt table.

use std::fmt;
use std::str::FromStr;

/// The name of a receipt table, such as `onceward_receipts` or `shop.onceward_receipts`.
///
/// It becomes a part of statements, so it has plain letters only. It is always quoted there, because it may be a reserved word.
///
/// ```
/// use onceward::receipts::TableName;
/// let name: TableName = "shop.order".parse()?;
/// assert_eq!((name.schema(), name.table()), (Some("shop"), "order"));
/// assert_eq!(name.quoted(), r#""shop"."order""#);
/// assert_eq!(TableName::default().to_string(), "onceward_receipts");
/// assert!("Shop.Order; DROP TABLE x".parse::<TableName>().is_err());
/// # Ok::<(), onceward::receipts::TableNameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    schema: Option<String>,
    table: String,
}

/// A text that cannot name a receipt table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the table name {text:?} cannot be used: write a name, or a schema, a dot and a name, each of at most {} lower-case letters, digits and underscores, beginning with a letter",
    TableName::MAX_PART_BYTES
)]
pub struct TableNameError {
    text: String,
}

impl TableName {
    /// PostgreSQL truncates names after 63 bytes, and its index has this name with a suffix.
    pub const MAX_PART_BYTES: usize = 50;

    /// The schema, where one was named.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The name without its schema.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The name as statements have it.
    pub fn quoted(&self) -> String {
        self.beside(&self.table)
    }

    /// The quoted name of something else in the same schema.
    pub fn beside(&self, name: &str) -> String {
        match &self.schema {
            Some(schema) => format!("\"{schema}\".\"{name}\""),
            None => format!("\"{name}\""),
        }
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self { schema: None, table: "onceward_receipts".to_owned() }
    }
}

impl FromStr for TableName {
    type Err = TableNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (schema, table) = match text.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, text),
        };
        if !is_plain(table) || !schema.is_none_or(is_plain) {
            return Err(TableNameError { text: text.chars().take(2 * Self::MAX_PART_BYTES).collect() });
        }
        Ok(Self { schema: schema.map(str::to_owned), table: table.to_owned() })
    }
}

fn is_plain(part: &str) -> bool {
    let begins = part.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let plain = part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    begins && plain && part.len() <= TableName::MAX_PART_BYTES && !part.starts_with("pg_")
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.table),
            None => f.write_str(&self.table),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_change_a_statement_or_lose_its_end_is_refused() {
        let longest = "a".repeat(TableName::MAX_PART_BYTES);
        assert!(longest.parse::<TableName>().is_ok());
        for text in ["", ".", "a.", ".a", "a.b.c", "A", "a b", "a\"b", "1a", "pg_x", &format!("{longest}a")] {
            assert!(text.parse::<TableName>().is_err(), "{text}");
        }
    }
}
