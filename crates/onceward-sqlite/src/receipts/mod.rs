//! Receipt rows in the user's own SQLite database: the DDL for it, the table's driver, and what `onceward check` says of it.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use onceward::Fence;
//! use onceward::receipts::ReceiptTable;
//! use onceward_sqlite::receipts::{ReceiptOptions, SqliteReceipts, TableName, print_sql};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("shop.db");
//! rusqlite::Connection::open(&path)?.execute_batch(&print_sql(&TableName::default()))?;
//! let receipts = SqliteReceipts::new(&path, TableName::default(), ReceiptOptions::default())?;
//! let row = receipts.void("abababababababababababababababab-5f".parse()?, Fence::from_number(7)).await?;
//! assert_eq!(row.fence, Fence::from_number(7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```

mod database;
mod ddl;
mod driver;
mod error;
mod examine;
mod options;
mod statements;

pub use ddl::print_sql;
pub use driver::SqliteReceipts;
pub use examine::examine;
pub use onceward::receipts::{TableName, TableNameError};
pub use options::ReceiptOptions;
