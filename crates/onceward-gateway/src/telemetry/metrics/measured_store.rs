//! A store that measures the time of its calls.

use std::sync::Arc;

use onceward::plumbing::time::instant;
use onceward::store::{Page, Scan, Seen, Store, StoreFuture, Swapped, Version};
use onceward::{Record, RecordId};

use super::Metrics;

pub(super) struct Measured {
    pub store: Arc<dyn Store>,
    pub metrics: Metrics,
}

impl Store for Measured {
    fn load(&self, id: RecordId) -> StoreFuture<'_, Seen> {
        Box::pin(async move {
            let sent = instant();
            let seen = self.store.load(id).await;
            self.metrics.loaded(sent.elapsed());
            seen
        })
    }

    fn swap(&self, id: RecordId, expect: Option<Version>, next: Record) -> StoreFuture<'_, Swapped> {
        let sent = instant();
        // Called here, so that the record is not kept in this future before it is in the store's.
        let swap = self.store.swap(id, expect, next);
        Box::pin(async move {
            let swapped = swap.await;
            self.metrics.swapped(sent.elapsed());
            swapped
        })
    }

    fn scan(&self, scan: Scan) -> StoreFuture<'_, Page> {
        self.store.scan(scan)
    }

    fn forget(&self, records: Vec<(RecordId, Version)>) -> StoreFuture<'_, usize> {
        self.store.forget(records)
    }
}
