//! Receipt rows: what a handler commits in its own database, and what that proves.
//!
//! A handler writes a row in the transaction of its effects, so the row has an answer if and only if the effects are there.
//! Where an execution ended without a usable answer, in order:
//!
//! 1. The [finder](ReceiptFinder) raises the fence in the row above the owner's. It makes the row where there is none. From then
//!    on the owner can no longer commit.
//! 2. A row with an answer completes the operation with that answer.
//! 3. An outside call that was begun and is not done is proven neither way by the row: a person decides.
//! 4. Any other row releases the operation, or lets it go on after the row's phase. But it does so only where the handlers of the
//!    route are known to write rows: a row by a handler was seen before the operation was opened, and none was left out since.
//!
//! Rows are deleted when nothing can refer to them any more: see [`ReceiptFinder::delete_old_rows`].

mod bound_table;
mod columns;
mod control;
mod finder;
mod name;
mod old_rows;
mod table;

pub use self::columns::{BODY_BYTES_MAX, Column, HEADERS_BYTES_MAX, RowColumns, read_headers};
pub use self::finder::{ReceiptFinder, Resumed, RouteStatus};
pub use self::name::{TableName, TableNameError};
pub use self::old_rows::{KEEP, OldRowsError};
pub use self::table::{
    AgedRow, Note, ReceiptEntered, ReceiptPoint, ReceiptRow, ReceiptTable, TableError, TableFuture,
};
