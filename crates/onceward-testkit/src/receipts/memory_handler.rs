//! A handler of the table in memory: transactions, held rows and the rules of the three functions.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use onceward::Fence;
use onceward::receipts::{Column, ReceiptEntered, ReceiptPoint, ReceiptRow, RowColumns};

use super::memory::Shared;
use super::{Answer, Handler, HandlerError, HandlerFuture, Step};

/// A handler with a connection of its own to a [`MemoryReceipts`](super::MemoryReceipts). Dropped, it crashes.
pub struct MemoryHandler {
    shared: Arc<Shared>,
    transaction: Option<Transaction>,
}

struct Transaction {
    number: u64,
    writes: BTreeMap<String, ReceiptRow>,
}

impl MemoryHandler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, transaction: None }
    }

    /// Writes an operation's row, if the rules allow it. Waits for a transaction that holds it.
    async fn write(
        &mut self,
        step: Step<'_>,
        change: impl FnOnce(&mut ReceiptRow),
    ) -> Result<(), HandlerError> {
        let key = step.operation.to_string();
        let number = self.transaction()?.number;
        let shared = self.shared.clone();
        let row = loop {
            let mut released = pin!(shared.released.notified());
            // From now on, so that no release is missed.
            released.as_mut().enable();
            {
                let mut tables = self.shared.tables();
                if tables.holders.get(&key).is_none_or(|&holder| holder == number) {
                    tables.holders.insert(key.clone(), number);
                    break tables.rows.get(&key).cloned();
                }
            }
            released.await;
        };
        let row = self.transaction()?.writes.get(&key).cloned().or(row);
        match self.ruled(step, row) {
            Ok(mut row) => {
                change(&mut row);
                self.transaction()?.writes.insert(key, row);
                Ok(())
            }
            Err(error) => {
                // As in SQLite, and as PostgreSQL's transaction can then only be rolled back.
                self.end();
                Err(error)
            }
        }
    }

    /// The row to change, if this step may change it.
    fn ruled(&self, step: Step<'_>, row: Option<ReceiptRow>) -> Result<ReceiptRow, HandlerError> {
        let new = ReceiptRow { fence: step.fence, point: None, entered: None, reply: None };
        let row = match row {
            None if self.is_too_old(step.fence) => {
                return Err(HandlerError::Fenced(
                    "the fence is too old for a new row: see to the clocks".to_owned(),
                ));
            }
            None => new,
            Some(row) => row,
        };
        let stored = match (&row.entered, &row.point) {
            (Some(entered), _) => Some(entered.point.as_str()),
            (None, Some(point)) => Some(point.name.as_str()),
            (None, None) => None,
        };
        if row.fence > step.fence {
            return Err(HandlerError::Fenced(format!("the row's fence is {:?}", row.fence)));
        }
        if row.reply.is_some() {
            return Err(HandlerError::Completed("the row has an answer".to_owned()));
        }
        if stored != step.after {
            return Err(HandlerError::Moved(format!(
                "the row's step is {stored:?}, and not {:?}",
                step.after
            )));
        }
        Ok(ReceiptRow { fence: step.fence, ..row })
    }

    fn is_too_old(&self, fence: Fence) -> bool {
        let keep = u64::try_from(self.shared.keep.as_micros()).unwrap_or(u64::MAX);
        fence.as_number() <= self.shared.clock.now().as_micros().saturating_sub(keep)
    }

    fn transaction(&mut self) -> Result<&mut Transaction, HandlerError> {
        self.transaction.as_mut().ok_or_else(|| HandlerError::Failed("there is no transaction".to_owned()))
    }

    /// Ends the transaction without what it wrote, if there is one.
    fn end(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            let mut tables = self.shared.tables();
            tables.holders.retain(|_, holder| *holder != transaction.number);
            drop(tables);
            self.shared.wake();
        }
    }
}

impl Handler for MemoryHandler {
    fn begin(&mut self) -> HandlerFuture<'_> {
        Box::pin(async {
            self.end();
            let mut tables = self.shared.tables();
            tables.transactions += 1;
            self.transaction = Some(Transaction { number: tables.transactions, writes: BTreeMap::new() });
            Ok(())
        })
    }

    fn checkpoint<'a>(
        &'a mut self,
        step: Step<'a>,
        point: &'a str,
        data: Option<&'a str>,
    ) -> HandlerFuture<'a> {
        Box::pin(self.write(step, move |row| {
            row.point = Some(ReceiptPoint { name: point.to_owned(), data: data.map(str::to_owned) });
            row.entered = None;
        }))
    }

    fn enter<'a>(&'a mut self, step: Step<'a>, point: &'a str, dedup: Option<Duration>) -> HandlerFuture<'a> {
        let at = self.shared.clock.now();
        Box::pin(self.write(step, move |row| {
            let dedup_until = dedup.map(|dedup| at.after(dedup));
            row.entered = Some(ReceiptEntered { point: point.to_owned(), at, dedup_until });
        }))
    }

    fn complete<'a>(&'a mut self, step: Step<'a>, answer: Answer<'a>) -> HandlerFuture<'a> {
        Box::pin(self.write(step, move |row| {
            row.entered = None;
            row.reply = answered(answer).reply;
        }))
    }

    fn commit(&mut self) -> HandlerFuture<'_> {
        Box::pin(async {
            let writes = std::mem::take(&mut self.transaction()?.writes);
            self.shared.tables().rows.extend(writes);
            self.end();
            Ok(())
        })
    }

    fn rollback(&mut self) -> HandlerFuture<'_> {
        Box::pin(async {
            self.end();
            Ok(())
        })
    }
}

/// The row of an answer, read as drivers read it.
fn answered(answer: Answer<'_>) -> ReceiptRow {
    RowColumns {
        fence: 0,
        point: None,
        data: None,
        entered: None,
        entered_at: None,
        dedup_until: None,
        status: Some(i64::from(answer.status)),
        headers: Column::Read(answer.headers.to_owned()),
        body: Column::Read(answer.body.to_vec()),
    }
    .decode()
}

impl Drop for MemoryHandler {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for MemoryHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.transaction.as_ref().map(|transaction| transaction.number);
        f.debug_struct("MemoryHandler").field("transaction", &open).finish_non_exhaustive()
    }
}
