//! Receipt rows: what a handler commits in its own database, and what that proves.

mod table;

pub use self::table::{
    AgedRow, Note, ReceiptEntered, ReceiptPoint, ReceiptRow, ReceiptTable, TableError, TableFuture,
};
