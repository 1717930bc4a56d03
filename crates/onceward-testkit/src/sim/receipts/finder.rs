//! The real finder, and the rules about what it finds: a void decides only where a missing row proves something.

use std::sync::Arc;
use std::time::Duration;

use onceward::OperationId;
use onceward::plumbing::time::sleep;
use onceward::receipts::ReceiptFinder;
use onceward::reconcile::{
    CompletedOperation, Finding, Plan, ReconcileFuture, Reconciler, StoreName, UnknownOperation,
};

use crate::sim::store::Database;
use crate::sim::{SharedLock, World};

/// A finder whose findings are held against what really happened.
pub struct CheckedFinder {
    pub finder: Arc<ReceiptFinder>,
    pub world: SharedLock<World>,
    pub database: Arc<Database>,
}

impl CheckedFinder {
    /// How long the finding is on its way. One that tells that the work was done stays true, so that it matters most.
    fn way_back(&self, found: &Result<Finding, String>) -> Duration {
        let mut world = self.world.lock();
        let late = world.chances.receipts.finds_late;
        let chance = if matches!(found, Ok(Finding::Completed(_))) { late * 3 } else { late };
        if world.random.permille(chance) { world.random.millis(2500, 9000) } else { Duration::ZERO }
    }
}

/// A find that is under way.
struct UnderWay<'a> {
    world: &'a SharedLock<World>,
    operation: OperationId,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.world.lock().receipts.find_ended(self.operation);
    }
}

impl Reconciler for CheckedFinder {
    fn find<'a>(&'a self, unknown: &'a UnknownOperation) -> ReconcileFuture<'a, Result<Finding, String>> {
        Box::pin(async move {
            let route = unknown.record.subject.route.as_str();
            let before = self.world.lock().find_began(unknown.operation, route);
            let under_way = UnderWay { world: &self.world, operation: unknown.operation };
            let found = Reconciler::find(&*self.finder, unknown).await;
            sleep(self.way_back(&found)).await;
            drop(under_way);
            let now = self.database.true_now();
            self.world.lock().found(now, unknown, before, &found);
            found
        })
    }

    fn plan(&self, route: &str) -> Plan {
        self.finder.plan(route)
    }

    fn bind<'a>(&'a self, store: &'a StoreName) -> ReconcileFuture<'a, Result<(), String>> {
        self.finder.bind(store)
    }

    fn completed<'a>(&'a self, completed: &'a CompletedOperation) -> ReconcileFuture<'a, Result<(), String>> {
        self.finder.completed(completed)
    }

    fn before_release<'a>(
        &'a self,
        unknown: &'a UnknownOperation,
    ) -> ReconcileFuture<'a, Result<Finding, String>> {
        self.finder.before_release(unknown)
    }

    fn released<'a>(&'a self, unknown: &'a UnknownOperation) -> ReconcileFuture<'a, Result<(), String>> {
        self.finder.released(unknown)
    }
}
