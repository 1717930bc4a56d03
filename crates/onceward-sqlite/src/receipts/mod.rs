//! stub
use onceward::receipts::{AgedRow, Note, ReceiptRow, ReceiptTable, TableError, TableFuture, TableName};
use onceward::{Fence, OperationId};
use std::path::Path;
use std::time::Duration;
/// x
#[derive(Debug)]
pub struct SqliteReceipts;
impl SqliteReceipts {
    /// x
    pub fn new(_: &Path, _: TableName) -> Self {
        Self
    }
}
/// x
pub fn print_sql(_: &TableName) -> String {
    String::new()
}
fn no<T: Send + 'static>() -> TableFuture<'static, T> {
    Box::pin(async { Err(TableError::Unavailable { reason: "stub".into() }) })
}
impl ReceiptTable for SqliteReceipts {
    fn void(&self, _: OperationId, _: Fence) -> TableFuture<'_, ReceiptRow> {
        no()
    }
    fn read(&self, _: OperationId) -> TableFuture<'_, Option<ReceiptRow>> {
        no()
    }
    fn note<'a>(&'a self, _: &'a str, _: &'a Note) -> TableFuture<'a, Note> {
        no()
    }
    fn noted<'a>(&'a self, _: &'a str) -> TableFuture<'a, Option<Note>> {
        no()
    }
    fn erase<'a>(&'a self, _: &'a str) -> TableFuture<'a, ()> {
        no()
    }
    fn aged(&self, _: Duration, _: Option<OperationId>, _: usize) -> TableFuture<'_, Vec<AgedRow>> {
        no()
    }
    fn delete(&self, _: Vec<AgedRow>) -> TableFuture<'_, usize> {
        no()
    }
}
