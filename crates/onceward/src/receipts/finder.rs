//! Finds unknown outcomes out by the rows of the handlers' own database.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bound_table::{BindError, BoundTable};
use super::control::{Control, Release};
use super::table::{ReceiptPoint, ReceiptRow, ReceiptTable, TableError};
use crate::engine::reconcile::{
    CompletedOperation, FindTerms, Finding, Plan, ReconcileFuture, Reconciler, Reconciling, StoreName,
    UnknownOperation,
};
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
/// let finder = ReceiptFinder::new(&Reconciling::default()).route("POST /orders", orders, FindTerms::default());
/// let finder = Arc::new(finder);
/// # let (store, identity) = (Arc::new(MemoryStore::default()), Identity::in_namespace("shop").scoped_by("all")?);
/// let engine = Engine::builder(store).reconciler(finder.clone()).open(identity).await?;
/// // Now and then, by a task of yours:
/// finder.delete_old_rows(&engine).await?;
/// # Ok(())
/// # }
/// ```
pub struct ReceiptFinder {
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
    /// A handler answered 2xx without a row. Until [`ReceiptFinder::resume_voids`], no void is made.
    pub suspended: bool,
}

impl ReceiptFinder {
    /// A finder for no route yet. What it does not know is given up as `reconciling` says.
    pub fn new(reconciling: &Reconciling) -> Self {
        Self { routes: HashMap::new(), tables: Vec::new(), reconciling: reconciling.clone() }
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
        let control = Control::new(route);
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
    pub async fn refresh(&self) -> Result<(), TableError> {
        for route in self.routes.values() {
            let table = &*route.table.table;
            route.control.suspended_by(table).await?;
            // Any fence will do: only whether there is a first row matters here.
            route.control.may_release(table, Fence::from_number(0)).await?;
        }
        Ok(())
    }

    /// Lets voids release again, after the handler that left out its row was corrected. Only operations that are opened after
    /// this time, and after the next row of such an operation, are released: earlier ones may be the former handler's. `None`
    /// where the route has no receipts.
    pub async fn resume_voids(&self, route: &str, corrected_at: Timestamp) -> Option<Result<(), TableError>> {
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
        found.map_err(|error| error.to_string())
    }
}

impl Route {
    async fn find(
        &self,
        table: &dyn ReceiptTable,
        name: &str,
        unknown: &UnknownOperation,
    ) -> Result<Finding, TableError> {
        let UnknownOperation { operation, fence, record } = unknown;
        let suspended_by = self.control.suspended_by(table).await?;
        // Where a missing answer proves nothing, the handler may as well still commit.
        let voids = suspended_by.is_none() && record.receipts() == Receipts::Kept;
        let row = if voids {
            Some(table.void(*operation, fence.above()).await?)
        } else {
            table.read(*operation).await?
        };
        if let Some(row) = &row {
            if row.is_written_by_handler() {
                self.control.saw_row(table, record.opened).await?;
            }
            if let Some(known) = known_by(row, fence.above()) {
                return Ok(known);
            }
        }
        if record.receipts() == Receipts::None {
            let why = "it was claimed before its route had receipts, and has none: that proves nothing";
            return Ok(Finding::Ambiguous(why.to_owned()));
        }
        let (Some(row), None) = (row, &suspended_by) else {
            return Ok(Finding::Inconclusive(format!(
                "the voids of its route are suspended, because {} was answered 2xx without a receipt",
                suspended_by.unwrap_or_default()
            )));
        };
        Ok(match self.control.may_release(table, record.opened).await? {
            Release::Allowed => voided(row.point.as_ref(), fence.above()),
            Release::NoRowYet => {
                self.warn_once(name, *operation);
                let why = "no handler of its route was seen to write a receipt row yet, so a missing one proves nothing";
                Finding::Inconclusive(why.to_owned())
            }
            Release::OpenedBefore => {
                let why = "it was begun before the first receipt of its route was seen, so a missing one proves nothing";
                Finding::Ambiguous(why.to_owned())
            }
        })
    }

    fn warn_once(&self, route: &str, operation: OperationId) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route,
                %operation,
                next = "let the handler call onceward_complete in its transaction: see `onceward receipts --print-sql`",
                "an outcome cannot be found out by receipts, because no handler of the route has written one yet"
            );
        }
    }

    /// Whether the answer of a completion is in its row as well. A handler that left the row out once may have left it out for an
    /// operation that nobody has an answer of.
    async fn check(&self, name: &str, completed: &CompletedOperation) -> Result<(), BindError> {
        let table = self.table.get().await?;
        let CompletedOperation { operation, record } = completed;
        match table.read(*operation).await? {
            Some(ReceiptRow { reply: Some(_), .. }) => self.control.saw_row(table, record.opened).await?,
            Some(_) | None => {
                if self.control.suspend(table, *operation, record.opened).await? {
                    tracing::error!(
                        route = name,
                        %operation,
                        next = "let every path of the handler call onceward_complete in the transaction of its effects, then run `onceward receipts --resume-voids`",
                        "a request was answered 2xx without a receipt: the voids of its route are suspended, and unknown outcomes wait for a person"
                    );
                }
            }
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

fn voided(point: Option<&ReceiptPoint>, fence: Fence) -> Finding {
    let point = point.map(|point| {
        let data = point.data.clone().unwrap_or_default();
        RecoveryPoint::new(&point.name, data.into_bytes())
    });
    match point.transpose() {
        Ok(point) => Finding::Voided(Void { fence, point }),
        Err(error) => Finding::Ambiguous(format!("the phase in its row cannot be gone on from: {error}")),
    }
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

    fn completed<'a>(&'a self, completed: &'a CompletedOperation) -> ReconcileFuture<'a, ()> {
        Box::pin(async move {
            let name = &completed.record.subject.route;
            let Some(route) = self.routes.get(name).filter(|route| route.control.picks_completion()) else {
                return;
            };
            if let Err(error) = route.check(name, completed).await {
                tracing::debug!(%error, operation = %completed.operation, "a receipt was not checked");
            }
        })
    }
}

impl fmt::Debug for ReceiptFinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiptFinder").field("routes", &self.routes.keys()).finish_non_exhaustive()
    }
}
