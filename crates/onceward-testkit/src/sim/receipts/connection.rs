//! The receipt table as one process reaches it: over a network, with every fault that it has, and only as long as the process
//! lives. Bugs of a table are put in here.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use onceward::plumbing::time::sleep;
use onceward::receipts::{AgedRow, Note, ReceiptRow, ReceiptTable, TableError, TableFuture};
use onceward::{Fence, OperationId, Reply, Timestamp};

use super::UserDatabase;
use crate::sim::mutant::Mutant;
use crate::sim::process::Process;
use crate::sim::sometimes::Sometimes;
use crate::sim::store::Database;
use crate::sim::{SharedLock, World};

/// The names of the notes that voids are controlled by, up to the route.
const FIRST_ROW: &str = "first-row:";
const SUSPENDED: &str = "suspended:";

/// One process' connection.
#[derive(Clone)]
pub struct TableConnection {
    pub user: Arc<UserDatabase>,
    pub process: Arc<Process>,
    pub world: SharedLock<World>,
    pub database: Arc<Database>,
    pub mutant: Mutant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Before,
    After,
    LandsLate,
}

/// What a call does. A void may be carried out when nobody waits for its answer any more, which changes nothing. An erasure
/// that did so could take away a note that was written since, and no operator would see it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Void,
    Other,
}

/// What the network does to one call.
struct Way {
    there: Duration,
    back: Duration,
    fault: Fault,
}

impl TableConnection {
    fn way(&self, call: Call) -> Way {
        let mut world = self.world.lock();
        let chances = world.chances.receipts.clone();
        let random = &mut world.random;
        let slow =
            if random.permille(chances.table_slow) { random.millis(200, 12_000) } else { Duration::ZERO };
        let (there, mut back) = (random.millis(0, 12), random.millis(0, 12));
        let fault = if random.permille(chances.table_before) {
            Fault::Before
        } else if random.permille(chances.table_after) {
            Fault::After
        } else if call == Call::Void && random.permille(chances.table_lands_late) {
            Fault::LandsLate
        } else {
            Fault::None
        };
        // A late answer is worse than a late call: the world has moved on meanwhile.
        back += slow;
        Way { there, back, fault }
    }

    /// One call: the way there, the call itself unless a fault keeps it from happening, and the way back.
    async fn call<T>(
        &self,
        kind: Call,
        call: impl Future<Output = Result<T, TableError>> + Send + 'static,
    ) -> Result<T, TableError>
    where
        T: Send + 'static,
    {
        self.process.pass().await;
        let Way { there, back, fault } = self.way(kind);
        sleep(there).await;
        let lost = || Err(TableError::Unavailable { reason: "simulated".to_owned() });
        if self.user.is_away() || fault == Fault::Before {
            self.process.pass().await;
            return lost();
        }
        if fault == Fault::LandsLate {
            let late = self.world.lock().random.millis(5, 3000);
            tokio::spawn(async move {
                sleep(late).await;
                // Its answer is not awaited.
                drop(call.await);
            });
            self.process.pass().await;
            return lost();
        }
        let done = call.await;
        sleep(back).await;
        self.process.pass().await;
        if fault == Fault::After { lost() } else { done }
    }

    fn now(&self) -> Timestamp {
        self.database.true_now()
    }

    async fn carry_out_void(self, operation: OperationId, fence: Fence) -> Result<ReceiptRow, TableError> {
        let table = &self.user.table;
        let voided = match self.mutant {
            Mutant::VoidLeavesTheRow => {
                let row = table.committed(operation);
                let new = ReceiptRow { fence, point: None, entered: None, reply: None };
                Ok(ReceiptRow { fence, ..row.unwrap_or(new) })
            }
            Mutant::VoidRaisesToTheOwnersFence => {
                let own = Fence::from_number(fence.as_number() - 1);
                let row = table.void(operation, own).await;
                row.map(|row| ReceiptRow { fence: row.fence.max(fence), ..row })
            }
            Mutant::UncommittedRowShown if self.written(operation).is_some() => {
                Ok(ReceiptRow { fence, point: None, entered: None, reply: None })
            }
            _ => table.void(operation, fence).await,
        };
        if let Err(TableError::Held { .. }) = &voided {
            self.world.lock().saw(Sometimes::VoidWaited);
        }
        let row = voided?;
        let now = self.now();
        self.world.lock().note(now, || format!("void of {operation} at {fence:?}: {row:?}"));
        Ok(self.shown(operation, row))
    }

    /// The answer that an open transaction has written.
    fn written(&self, operation: OperationId) -> Option<Reply> {
        let number = self.world.lock().receipts.written_in_open_transaction(operation)?;
        Some(Reply::new(number.to_string()))
    }

    /// The row as a table with a bug shows it.
    fn shown(&self, operation: OperationId, mut row: ReceiptRow) -> ReceiptRow {
        match self.mutant {
            Mutant::EnteredNotReported => row.entered = None,
            Mutant::UncommittedRowShown => row.reply = row.reply.or_else(|| self.written(operation).map(Ok)),
            _ => {}
        }
        row
    }
}

/// The route that a note of a suspension is about; its namespace stands before it.
fn suspended_route(name: &str) -> Option<&str> {
    name.strip_prefix(SUSPENDED)?.split_once(':').map(|(_, route)| route)
}

impl ReceiptTable for TableConnection {
    fn void(&self, operation: OperationId, fence: Fence) -> TableFuture<'_, ReceiptRow> {
        Box::pin(self.call(Call::Void, self.clone().carry_out_void(operation, fence)))
    }

    fn release(&self, operation: OperationId, fence: Fence) -> TableFuture<'_, ReceiptRow> {
        let here = self.clone();
        Box::pin(self.call(Call::Void, async move {
            let row = here.user.table.release(operation, fence).await?;
            let now = here.now();
            let mut world = here.world.lock();
            world.receipts.person_decided(operation);
            world.note(now, || format!("release of {operation} at {fence:?}: {row:?}"));
            Ok(row)
        }))
    }

    fn read(&self, operation: OperationId) -> TableFuture<'_, Option<ReceiptRow>> {
        let here = self.clone();
        Box::pin(self.call(Call::Other, async move {
            Ok(here.user.table.committed(operation).map(|row| here.shown(operation, row)))
        }))
    }

    fn note<'a>(&'a self, name: &'a str, note: &'a Note) -> TableFuture<'a, Note> {
        let (here, name, note) = (self.clone(), name.to_owned(), note.clone());
        Box::pin(self.call(Call::Other, async move {
            let stands = here.user.table.note(&name, &note).await?;
            let now = here.now();
            here.world.lock().note(now, || format!("note {name}: {stands:?}"));
            if let Some(route) = suspended_route(&name) {
                here.world.lock().voids_suspended(route);
            }
            Ok(stands)
        }))
    }

    fn noted<'a>(&'a self, name: &'a str) -> TableFuture<'a, Option<Note>> {
        let (here, name) = (self.clone(), name.to_owned());
        Box::pin(self.call(Call::Other, async move {
            let noted = here.user.table.noted(&name).await?;
            Ok(match here.mutant {
                Mutant::SuspensionNotSeen if name.starts_with(SUSPENDED) => None,
                Mutant::FirstRowInvented if name.starts_with(FIRST_ROW) => {
                    Some(Note { number: 0, text: String::new() })
                }
                _ => noted,
            })
        }))
    }

    fn erase<'a>(&'a self, name: &'a str) -> TableFuture<'a, ()> {
        let (here, name) = (self.clone(), name.to_owned());
        Box::pin(self.call(Call::Other, async move {
            here.user.table.erase(&name).await?;
            let now = here.now();
            if let Some(route) = suspended_route(&name) {
                here.world.lock().voids_resumed(now, route);
            }
            Ok(())
        }))
    }

    fn aged(&self, age: Duration, after: Option<OperationId>, limit: usize) -> TableFuture<'_, Vec<AgedRow>> {
        let here = self.clone();
        let age = if here.mutant == Mutant::YoungRowsListed { Duration::ZERO } else { age };
        Box::pin(self.call(Call::Other, async move { here.user.table.aged(age, after, limit).await }))
    }

    fn delete(&self, rows: Vec<AgedRow>) -> TableFuture<'_, usize> {
        let here = self.clone();
        Box::pin(self.call(Call::Other, async move {
            let now = here.now();
            here.world.lock().note(now, || format!("deletes {rows:?}"));
            let deleted = here.user.table.delete(rows).await?;
            if deleted > 0 {
                here.world.lock().saw(Sometimes::RowDeleted);
            }
            Ok(deleted)
        }))
    }
}
