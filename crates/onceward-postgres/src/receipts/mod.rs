//! Receipt rows in the user's own PostgreSQL database: the DDL for it, the table's driver, and what `onceward check` says of it.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use onceward::receipts::ReceiptTable;
//! use onceward_postgres::PostgresUrl;
//! use onceward_postgres::receipts::{PostgresReceipts, ReceiptOptions, TableName};
//!
//! let url = PostgresUrl::parse("postgres://onceward:secret@db.internal/shop?sslmode=verify-full")?;
//! let receipts = PostgresReceipts::new(&url, TableName::default(), ReceiptOptions::default())?;
//! let fence = onceward::Fence::from_number(1_767_225_600_000_001);
//! let row = receipts.void("abababababababababababababababab-5f".parse()?, fence).await?;
//! assert!(row.fence >= fence);
//! # Ok(())
//! # }
//! ```

mod ddl;
mod driver;
mod error;
mod examine;
mod options;
mod pool;
mod rows;
mod statements;

pub use ddl::print_sql;
pub use driver::PostgresReceipts;
pub use examine::examine;
pub use onceward::receipts::{TableName, TableNameError};
pub use options::ReceiptOptions;
