//! Finds unknown outcomes out by the rows of the handlers' own database.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bound_table::{BindError, BoundTable};
use super::control::{Control, Release};
use super::table::{ReceiptRow, ReceiptTable, TableError};
use crate::engine::reconcile::{
    CompletedOperation, Execution, FindTerms, Finding, Plan, ReconcileFuture, Reconciler, Reconciling,
    StoreName, UnknownOperation,
};
use crate::key::{Namespace, NamespaceHash};
use crate::outcome::{RecoveryPoint, Void};
use crate::record::Receipts;
use crate::{Fence, OperationId, Timestamp};

/// A [`Reconciler`] that raises the fence in the receipt row and decides by what the row holds then.
///
/// ```
/// # use std::sync::Arc;
/// # use onceward::{MemoryStore, Engine, Identity};
/// use onceward::receipts::{ReceiptFinder, ReceiptTable};
/// use onceward::reconcile::{FindTerms, Reconciling};
///
/// # async fn example(orders: Arc<dyn ReceiptTable>) -> Result<(), Box<dyn std::error::Error>> {
/// // A table of the crates `onceward-postgres` or `onceward-sqlite`.
/// let namespace = Identity::in_namespace("shop");
/// let finder = ReceiptFinder::new(namespace, &Reconciling::default());
/// let finder = Arc::new(finder.route("POST /orders", orders, FindTerms::default()));
/// # let (store, identity) = (Arc::new(MemoryStore::default()), namespace.scoped_by("all")?);
/// let engine = Engine::builder(store).reconciler(finder.clone()).open(identity).await?;
/// // Now and then, by a task of yours:
/// finder.delete_old_rows(&engine).await?;
/// # Ok(())
/// # }
/// ```
pub struct ReceiptFinder {
    namespace: NamespaceHash,
    routes: HashMap<String, Route>,
    tables: Vec<Arc<BoundTable>>,
    /// For the routes without receipts.
    reconciling: Reconciling,
}

struct Route {
    table: Arc<BoundTable>,
    terms: FindTerms,
    control: Control,
    warned: AtomicBool,
}

/// The state of one route's voids, for metrics and lists.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteStatus {
    /// The route.
    pub route: String,
    /// A handler was seen to write a row. Before that, no void releases anything.
    pub controlled: bool,
    /// A handler answered that the work was done, and wrote no row. Until [`ReceiptFinder::resume_voids`], no void releases anything.
    pub suspended: bool,
}

/// The result of [`ReceiptFinder::resume_voids`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resumed {
    /// They release again, from the next row on.
    FromTheNextRow,
    /// They were not suspended, and nothing was changed.
    WereNotSuspended,
}

impl ReceiptFinder {
    /// A finder for no route yet, of engines in this namespace. What it does not know is given up as `reconciling` says.
    pub fn new(namespace: Namespace<'_>, reconciling: &Reconciling) -> Self {
        let namespace = namespace.hash();
        Self { namespace, routes: HashMap::new(), tables: Vec::new(), reconciling: reconciling.clone() }
    }

    /// Finds out the operations of a route by this table. Routes may share a table.
    #[must_use]
    pub fn route(mut self, route: &str, table: Arc<dyn ReceiptTable>, terms: FindTerms) -> Self {
        let known = self.tables.iter().find(|known| Arc::ptr_eq(&known.table, &table)).cloned();
        let table = known.unwrap_or_else(|| {
            let table = Arc::new(BoundTable::new(table));
            self.tables.push(table.clone());
            table
        });
        let control = Control::new(self.namespace, route);
        self.routes.insert(route.to_owned(), Route { table, terms, control, warned: AtomicBool::new(false) });
        self
    }

    pub(super) fn tables(&self) -> &[Arc<BoundTable>] {
        &self.tables
    }

    /// The state of every route, as this process saw it last.
    pub fn statuses(&self) -> Vec<RouteStatus> {
        let status = |(route, known): (&String, &Route)| RouteStatus {
            route: route.clone(),
            controlled: known.control.has_first_row(),
            suspended: known.control.is_suspended(),
        };
        let mut statuses: Vec<_> = self.routes.iter().map(status).collect();
        statuses.sort_by(|one, other| one.route.cmp(&other.route));
        statuses
    }

    /// Reads the state of every route again, which other gateways and operators may have changed.
    /// A table that cannot be read does not keep the others from being read.
    pub async fn refresh(&self) -> Result<(), TableError> {
        let mut read = Ok(());
        for route in self.routes.values() {
            read = read.and(route.refresh().await);
        }
        read
    }

    /// Lets voids release again, after the handler that left out its row was corrected. Only operations that are opened after
    /// this time, and after the next row of such an operation, are released: earlier ones may be the former handler's. `None`
    /// where the route has no receipts.
    pub async fn resume_voids(
        &self,
        route: &str,
        corrected_at: Timestamp,
    ) -> Option<Result<Resumed, TableError>> {
        let route = self.routes.get(route)?;
        Some(route.control.restart(&*route.table.table, corrected_at).await)
    }

    async fn find(&self, unknown: &UnknownOperation) -> Result<Finding, String> {
        let name = &unknown.record.subject.route;
        let Some(route) = self.routes.get(name) else {
            return Err("its route has no receipts".to_owned());
        };
        let found = match route.table.get().await {
            Ok(table) => route.find(table, name, unknown).await,
            Err(BindError::Table(error)) => Err(error),
            Err(error @ (BindError::OtherStore { .. } | BindError::NoStore)) => return Err(error.to_string()),
        };
        match found {
            Err(error @ TableError::Held { .. }) => Ok(Finding::StillOpen(error.to_string())),
            found => found.map_err(|error| error.to_string()),
        }
    }
}

impl Route {
    async fn refresh(&self) -> Result<(), TableError> {
        let table = &*self.table.table;
        self.control.suspended_by(table).await?;
        // Any fence will do: only whether there is a first row matters here.
        self.control.may_release(table, Fence::from_number(0)).await?;
        Ok(())
    }

    async fn find(
        &self,
        table: &dyn ReceiptTable,
        name: &str,
        unknown: &UnknownOperation,
    ) -> Result<Finding, TableError> {
        let UnknownOperation { operation, fence, record, execution, asked_at } = unknown;
        let suspended_by = self.control.suspended_by(table).await?;
        // Where a missing answer proves nothing, the handler may as well still commit, unless its execution has ended.
        let ended = *execution == Execution::Ended;
        let voids = record.receipts() == Receipts::Kept && (ended || suspended_by.is_none());
        let row = if voids {
            Some(table.void(*operation, fence.above()).await?)
        } else {
            table.read(*operation).await?
        };
        if let Some(row) = &row {
            if row.is_written_by_handler() {
                self.control.saw_row(table, record.opened, *asked_at).await?;
            }
            if let Some(known) = known_by(row, fence.above()) {
                return Ok(known);
            }
        }
        if record.receipts() == Receipts::None {
            let why = "it was claimed before its route had receipts, and has none: that proves nothing";
            return Ok(Finding::Ambiguous(why.to_owned()));
        }
        let suspended = suspended_by.map(|by| {
            format!(
                "the voids of its route are suspended, because {by} was answered as done without a receipt"
            )
        });
        // Its fence may have been raised at the end of its execution.
        let Some(row) = row.filter(|row| voids || row.fence == fence.above()) else {
            return Ok(Finding::Inconclusive(suspended.unwrap_or_default()));
        };
        let void = match void_of(&row, fence.above()) {
            Ok(void) => void,
            Err(why) => return Ok(Finding::Ambiguous(why)),
        };
        if let Some(why) = suspended {
            return Ok(Finding::Unproven { void, why });
        }
        let why = match self.control.may_release(table, record.opened).await? {
            // The void may have waited, and the voids may have been suspended meanwhile.
            Release::Allowed if self.control.suspended_by(table).await?.is_some() => {
                "the voids of its route are suspended, because a request was answered as done without a receipt"
            }
            Release::Allowed => return Ok(Finding::Voided(void)),
            Release::NoRowYet => {
                self.warn_once(name, *operation);
                "no handler of its route was seen to write a receipt row yet, so a missing one proves nothing"
            }
            Release::OpenedBefore => {
                "it was begun before the first receipt of its route was seen, so a missing one proves nothing"
            }
        };
        Ok(Finding::Unproven { void, why: why.to_owned() })
    }

    /// Keeps the owner of an operation from committing that a person is about to release.
    async fn before_release(
        &self,
        table: &dyn ReceiptTable,
        unknown: &UnknownOperation,
    ) -> Result<Finding, TableError> {
        let above = unknown.fence.above();
        let row = table.void(unknown.operation, above).await?;
        // The person has decided about an outside call that was begun.
        let row = ReceiptRow { entered: None, ..row };
        if let Some(known) = known_by(&row, above) {
            return Ok(known);
        }
        let void = match void_of(&row, above) {
            Ok(void) => void,
            Err(why) => return Ok(Finding::Ambiguous(why)),
        };
        // Only an owner that is known to write rows cannot have done the work.
        let suspended = self.control.suspended_by(table).await?.is_some();
        if !suspended && self.control.may_release(table, unknown.record.opened).await? == Release::Allowed {
            return Ok(Finding::Voided(void));
        }
        let why =
            "its handler is not known to write receipt rows, so a missing one proves nothing".to_owned();
        Ok(Finding::Unproven { void, why })
    }

    fn warn_once(&self, route: &str, operation: OperationId) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route,
                %operation,
                next = "let the handler call onceward_complete in its transaction: see docs/receipts.md",
                "an outcome cannot be found out by receipts, because no handler of the route has written one yet"
            );
        }
    }

    /// Whether the answer of a completion is in its row as well. A handler that left the row out once may have left it out for an
    /// operation that nobody has an answer of.
    async fn check(&self, name: &str, completed: &CompletedOperation) -> Result<(), BindError> {
        let table = self.table.get().await?;
        let CompletedOperation { operation, fence, record, checked_at } = completed;
        if self.control.is_suspended() && self.control.suspended_by(table).await?.is_some() {
            return Ok(());
        }
        let row = table.read(*operation).await?;
        // A row under another fence was written by another execution. A void may have come after this one's.
        let own = |row: &ReceiptRow| row.fence == *fence || row.fence == fence.above();
        if row.is_some_and(|row| own(&row) && row.reply.is_some()) {
            self.control.saw_row(table, record.opened, *checked_at).await?;
            self.control.completion_has_receipt();
        } else if self.control.was_resumed_since(table, record.opened).await? {
            tracing::debug!(%operation, "work that was begun before the voids were resumed has no receipt");
        } else if self.control.suspend(table, *operation, record.opened).await? {
            tracing::error!(
                route = name,
                %operation,
                next = format_args!(
                    "let every path of the handler that commits anything call onceward_complete in that transaction, then run `onceward \
                     receipts --config FILE --resume-voids {name:?}` (in Rust: ReceiptFinder::resume_voids)"
                ),
                "a request was answered as done without a receipt: the voids of its route are suspended, and unknown outcomes wait for a person"
            );
        }
        Ok(())
    }
}

/// What a row says by itself, whatever is known of the handlers.
fn known_by(row: &ReceiptRow, above: Fence) -> Option<Finding> {
    if row.fence > above {
        // A later execution wrote it. Where this store knows that execution, the finding is too late and is ignored.
        let why =
            "its row was written under a fence above this execution's, which this store did not give out";
        return Some(Finding::Ambiguous(why.to_owned()));
    }
    match (&row.reply, &row.entered) {
        (Some(Ok(reply)), _) => Some(Finding::Completed(Arc::new(reply.clone()))),
        (Some(Err(why)), _) => {
            Some(Finding::DoneNotKept(format!("it was committed, and its receipt cannot be used: {why}")))
        }
        (None, Some(entered)) => Some(Finding::Ambiguous(format!(
            "the outside call {:?} was begun and is not known to be done, which no row can tell",
            entered.point
        ))),
        (None, None) => None,
    }
}

fn void_of(row: &ReceiptRow, fence: Fence) -> Result<Void, String> {
    let point = row.point.as_ref().map(|point| {
        let data = point.data.clone().unwrap_or_default();
        RecoveryPoint::new(&point.name, data.into_bytes())
    });
    let point = point.transpose();
    let point = point.map_err(|error| format!("the phase in its row cannot be gone on from: {error}"))?;
    Ok(Void { fence, point })
}

impl Reconciler for ReceiptFinder {
    fn find<'a>(&'a self, unknown: &'a UnknownOperation) -> ReconcileFuture<'a, Result<Finding, String>> {
        Box::pin(self.find(unknown))
    }

    fn plan(&self, route: &str) -> Plan {
        match self.routes.get(route) {
            Some(route) => Plan::Find(route.terms),
            None => Plan::GiveUpAfter(self.reconciling.give_up_after_on(route)),
        }
    }

    fn bind<'a>(&'a self, store: &'a StoreName) -> ReconcileFuture<'a, Result<(), String>> {
        Box::pin(async move {
            if store.namespace() != self.namespace {
                return Err("the finder of the receipts is for another namespace than the engine".to_owned());
            }
            for table in &self.tables {
                table.belongs_to(*store);
                match table.get().await {
                    Ok(_) => {}
                    // Requests need the table only when an outcome is unknown, so they are served meanwhile.
                    Err(BindError::Table(error)) => tracing::warn!(
                        %error,
                        next = "see to that database: `onceward check` tells more",
                        "a receipt table cannot be asked yet: unknown outcomes of its routes are found out later"
                    ),
                    Err(error @ (BindError::OtherStore { .. } | BindError::NoStore)) => {
                        return Err(error.to_string());
                    }
                }
            }
            Ok(())
        })
    }

    fn completed<'a>(&'a self, completed: &'a CompletedOperation) -> ReconcileFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let name = &completed.record.subject.route;
            let Some(route) = self
                .routes
                .get(name)
                .filter(|route| route.control.picks(completed.operation, completed.checked_at))
            else {
                return Ok(());
            };
            route.check(name, completed).await.map_err(|error| error.to_string())
        })
    }

    fn before_release<'a>(
        &'a self,
        unknown: &'a UnknownOperation,
    ) -> ReconcileFuture<'a, Result<Finding, String>> {
        Box::pin(async move {
            let Some(route) = self.routes.get(&unknown.record.subject.route) else {
                return Ok(Finding::Absent);
            };
            let table = route.table.get().await.map_err(|error| error.to_string())?;
            route.before_release(table, unknown).await.map_err(|error| error.to_string())
        })
    }

    fn released<'a>(&'a self, unknown: &'a UnknownOperation) -> ReconcileFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let Some(route) = self.routes.get(&unknown.record.subject.route) else { return Ok(()) };
            let table = route.table.get().await.map_err(|error| error.to_string())?;
            let removed = table.release(unknown.operation, unknown.fence.above()).await;
            removed.map(drop).map_err(|error| error.to_string())
        })
    }
}

impl fmt::Debug for ReceiptFinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiptFinder").field("routes", &self.routes.keys()).finish_non_exhaustive()
    }
}
