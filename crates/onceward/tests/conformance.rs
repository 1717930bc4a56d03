//! The reference store runs the suite that every store runs.

use std::sync::Arc;

use onceward::MemoryStore;
use onceward_testkit::VirtualClock;
use onceward_testkit::conformance::Specimen;

async fn memory(clock: Arc<VirtualClock>) -> Specimen {
    let store = MemoryStore::with_clock(clock);
    let disk = store.clone();
    Specimen::new(store).damaged_by(move |id| {
        disk.damage(id, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
        std::future::ready(())
    })
}

onceward_testkit::conformance!(memory, with damage);
