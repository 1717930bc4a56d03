//! A receipt table in memory, with handlers that have transactions and hold rows.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::plumbing::time::sleep;
use onceward::receipts::{AgedRow, KEEP, Note, ReceiptRow, ReceiptTable, TableError, TableFuture};
use onceward::store::{Clock, SystemClock};
use onceward::{Fence, OperationId};
use tokio::sync::Notify;

use super::memory_handler::MemoryHandler;

/// A receipt table of a user's database that does not exist. Clones share it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use onceward::receipts::ReceiptTable;
/// use onceward::{Fence, OperationId};
/// use onceward_testkit::receipts::{Answer, Handler, MemoryReceipts, Step};
/// use onceward_testkit::sample;
///
/// let table = MemoryReceipts::new();
/// let (operation, fence) = (OperationId::bare(sample::id(1)), table.fence());
/// let mut handler = table.handler();
/// handler.begin().await?;
/// handler.complete(Step::first(operation, fence), Answer::json(201, b"{}")).await?;
/// handler.commit().await?;
/// let row = table.void(operation, fence.above()).await.unwrap();
/// assert_eq!(row.reply.unwrap().unwrap().status, 201);
/// # Ok::<(), onceward_testkit::receipts::HandlerError>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct MemoryReceipts {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) clock: Arc<dyn Clock>,
    /// How young a fence must be to make a row.
    pub(super) keep: Duration,
    lock_wait: Duration,
    tables: Mutex<Tables>,
    /// Wakes those who wait for a row, in the order in which they came, so that a simulated history repeats itself.
    pub(super) released: Notify,
}

/// What is committed, and who holds what.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) rows: BTreeMap<String, ReceiptRow>,
    notes: BTreeMap<String, Note>,
    /// Which transaction holds a row, from its first write to its end.
    pub(super) holders: BTreeMap<String, u64>,
    pub(super) transactions: u64,
    outage: Option<String>,
    lost_answers: usize,
    voids: Vec<(OperationId, Fence)>,
}

/// What a void does to an outside call that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenCall {
    Left,
    Removed,
}

/// As long as the databases' drivers wait.
const LOCK_WAIT: Duration = Duration::from_secs(2);

impl Default for MemoryReceipts {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryReceipts {
    /// An empty table with this machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty table with the database's clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::with_clock_and_keep(clock, KEEP)
    }

    /// The same, where the day for which a fence may make a row lasts this long. Ages are shortened to match.
    pub fn with_clock_and_keep(clock: Arc<dyn Clock>, keep: Duration) -> Self {
        let released = Notify::new();
        let shared = Shared { clock, keep, lock_wait: LOCK_WAIT, tables: Mutex::default(), released };
        Self { shared: Arc::new(shared) }
    }

    /// A handler with a connection of its own.
    pub fn handler(&self) -> MemoryHandler {
        MemoryHandler::new(self.shared.clone())
    }

    /// A fence of this moment.
    pub fn fence(&self) -> Fence {
        Fence::from_number(self.shared.clock.now().as_micros())
    }

    /// Every call fails with this reason from now on, or none does any more.
    pub fn set_outage(&self, reason: Option<&str>) {
        self.shared.tables().outage = reason.map(str::to_owned);
    }

    /// The next calls are carried out, and their answers are lost.
    pub fn lose_answers(&self, calls: usize) {
        self.shared.tables().lost_answers = calls;
    }

    /// What is committed of an operation.
    pub fn committed(&self, operation: OperationId) -> Option<ReceiptRow> {
        self.shared.tables().rows.get(&operation.to_string()).cloned()
    }

    /// Puts a row in place, as a person could.
    pub fn put(&self, operation: OperationId, row: ReceiptRow) {
        self.shared.tables().rows.insert(operation.to_string(), row);
    }

    /// Every void that was carried out, in order.
    pub fn voids(&self) -> Vec<(OperationId, Fence)> {
        self.shared.tables().voids.clone()
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.shared.tables().rows.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Carries a call out, unless there is an outage, and loses its answer where a test wants that.
    fn carry_out<T>(&self, call: impl FnOnce(&mut Tables) -> T) -> Result<T, TableError> {
        let mut tables = self.shared.tables();
        if let Some(reason) = &tables.outage {
            return Err(TableError::Unavailable { reason: reason.clone() });
        }
        let answer = call(&mut tables);
        if tables.lost_answers > 0 {
            tables.lost_answers -= 1;
            return Err(TableError::Unavailable {
                reason: "the answer was lost, as the test wants it".to_owned(),
            });
        }
        Ok(answer)
    }

    async fn void_now(
        &self,
        (operation, fence): (OperationId, Fence),
        call: OpenCall,
    ) -> Result<ReceiptRow, TableError> {
        let key = operation.to_string();
        if i64::try_from(fence.as_number()).is_err() {
            return Err(TableError::Unavailable {
                reason: format!("the fence {fence:?} does not fit its column"),
            });
        }
        let lock_wait = self.shared.lock_wait;
        let voided = async {
            loop {
                let mut released = pin!(self.shared.released.notified());
                // From now on, so that no release is missed.
                released.as_mut().enable();
                if let Some(answer) = self.try_void(&key, (operation, fence), call) {
                    return answer;
                }
                released.await;
            }
        };
        tokio::select! {
            biased;
            answer = voided => answer,
            () = sleep(lock_wait) => Err(TableError::Held { waited: lock_wait }),
        }
    }

    /// Voids, unless a transaction holds the row.
    fn try_void(
        &self,
        key: &str,
        (operation, fence): (OperationId, Fence),
        call: OpenCall,
    ) -> Option<Result<ReceiptRow, TableError>> {
        self.carry_out(|tables| {
            if tables.holders.contains_key(key) {
                return None;
            }
            tables.voids.push((operation, fence));
            let new = ReceiptRow { fence, point: None, entered: None, reply: None };
            let row = tables.rows.entry(key.to_owned()).or_insert(new);
            if call == OpenCall::Removed && row.fence <= fence {
                row.entered = None;
            }
            row.fence = row.fence.max(fence);
            Some(row.clone())
        })
        .transpose()
    }

    fn aged_now(
        &self,
        age: Duration,
        after: Option<OperationId>,
        limit: usize,
    ) -> Result<Vec<AgedRow>, TableError> {
        let now = self.shared.clock.now().as_micros();
        let age = age.mul_f64(self.shared.keep.as_secs_f64() / KEEP.as_secs_f64());
        let oldest = now.saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX));
        let after = after.map(|operation| operation.to_string());
        self.carry_out(|tables| {
            let rows = tables.rows.iter().filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after));
            rows.filter(|(_, row)| row.fence.as_number() < oldest)
                .filter_map(|(key, row)| Some(AgedRow { operation: key.parse().ok()?, fence: row.fence }))
                .take(limit)
                .collect()
        })
    }
}

impl Shared {
    // A panic while the lock is held cannot leave a partial row.
    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets those who wait look again.
    pub(super) fn wake(&self) {
        self.released.notify_waiters();
    }
}

impl ReceiptTable for MemoryReceipts {
    fn void(&self, operation: OperationId, fence: Fence) -> TableFuture<'_, ReceiptRow> {
        Box::pin(self.void_now((operation, fence), OpenCall::Left))
    }

    fn release(&self, operation: OperationId, fence: Fence) -> TableFuture<'_, ReceiptRow> {
        Box::pin(self.void_now((operation, fence), OpenCall::Removed))
    }

    fn read(&self, operation: OperationId) -> TableFuture<'_, Option<ReceiptRow>> {
        Box::pin(async move { self.carry_out(|tables| tables.rows.get(&operation.to_string()).cloned()) })
    }

    fn note<'a>(&'a self, name: &'a str, note: &'a Note) -> TableFuture<'a, Note> {
        Box::pin(async move {
            self.carry_out(|tables| {
                tables.notes.entry(name.to_owned()).or_insert_with(|| note.clone()).clone()
            })
        })
    }

    fn noted<'a>(&'a self, name: &'a str) -> TableFuture<'a, Option<Note>> {
        Box::pin(async move { self.carry_out(|tables| tables.notes.get(name).cloned()) })
    }

    fn erase<'a>(&'a self, name: &'a str) -> TableFuture<'a, ()> {
        Box::pin(async move { self.carry_out(|tables| drop(tables.notes.remove(name))) })
    }

    fn aged(&self, age: Duration, after: Option<OperationId>, limit: usize) -> TableFuture<'_, Vec<AgedRow>> {
        Box::pin(async move { self.aged_now(age, after, limit) })
    }

    fn delete(&self, rows: Vec<AgedRow>) -> TableFuture<'_, usize> {
        Box::pin(async move {
            self.carry_out(|tables| {
                let before = tables.rows.len();
                for AgedRow { operation, fence } in rows {
                    let key = operation.to_string();
                    let held = tables.holders.contains_key(&key);
                    if !held && tables.rows.get(&key).is_some_and(|row| row.fence == fence) {
                        tables.rows.remove(&key);
                    }
                }
                before - tables.rows.len()
            })
        })
    }
}

impl fmt::Debug for MemoryReceipts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryReceipts").field("rows", &self.len()).finish_non_exhaustive()
    }
}
