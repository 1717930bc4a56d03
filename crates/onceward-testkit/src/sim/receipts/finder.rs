//! The real finder, and the rules about what it finds: a void decides only where a missing row proves something.

use std::sync::Arc;

use onceward::OperationId;
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

    fn release<'a>(&'a self, unknown: &'a UnknownOperation) -> ReconcileFuture<'a, Result<Finding, String>> {
        self.finder.release(unknown)
    }
}
