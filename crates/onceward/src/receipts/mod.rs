//! Receipt rows: what a handler commits in its own database, and what that proves.

mod columns;
mod name;
mod table;

pub use self::columns::{BODY_BYTES_MAX, Column, HEADERS_BYTES_MAX, RowColumns, read_headers};
pub use self::name::{TableName, TableNameError};
pub use self::table::{
    AgedRow, Note, ReceiptEntered, ReceiptPoint, ReceiptRow, ReceiptTable, TableError, TableFuture,
};
