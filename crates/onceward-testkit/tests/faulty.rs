//! The faulty store fails exactly as its plan says, and is an ordinary store otherwise.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests report by panicking, as tests do"
)]

use std::sync::Arc;
use std::time::Duration;

use onceward::store::{Due, Filter, Page, Scan, Store, StoreError, Swapped, Which};
use onceward::{MemoryStore, plumbing::time};
use onceward_testkit::conformance::Specimen;
use onceward_testkit::{Call, Fault, FaultyStore, Method, VirtualClock, sample};

mod without_faults {
    use super::*;

    async fn faulty(clock: Arc<VirtualClock>) -> Specimen {
        let memory = MemoryStore::with_clock(clock);
        let disk = memory.clone();
        Specimen::new(FaultyStore::scripted(memory, [])).damaged_by(move |id| {
            disk.damage(id, |bytes| bytes[7] ^= 0x80);
            std::future::ready(())
        })
    }

    onceward_testkit::conformance!(faulty, with damage);
}

/// A store whose first swap meets this fault, and the store behind it.
fn first_swap(fault: Fault) -> (FaultyStore, MemoryStore) {
    let memory = MemoryStore::default();
    (FaultyStore::scripted(memory.clone(), [(Method::Swap, 1, fault)]), memory)
}

async fn swap(store: &impl Store) -> Result<Swapped, StoreError> {
    store.swap(sample::id(1), None, sample::record("k")).await
}

async fn is_written(memory: &MemoryStore) -> bool {
    memory.load(sample::id(1)).await.unwrap().record.is_some()
}

#[tokio::test]
async fn an_unavailable_or_overloaded_store_has_not_written() {
    let (store, memory) = first_swap(Fault::Unavailable);
    assert!(matches!(swap(&store).await, Err(StoreError::Unavailable { .. })));
    assert!(!is_written(&memory).await);
    let (store, memory) = first_swap(Fault::Overloaded);
    assert!(matches!(swap(&store).await, Err(StoreError::Overloaded { .. })));
    assert!(!is_written(&memory).await);
}

#[tokio::test]
async fn a_stalled_swap_is_carried_out_when_the_stall_ends_whether_or_not_its_caller_waits() {
    let (store, memory) = first_swap(Fault::Stalls);
    let mut waiting = Box::pin(swap(&store));
    assert!(
        std::future::poll_fn(|context| std::task::Poll::Ready(waiting.as_mut().poll(context).is_pending()))
            .await
    );
    assert!(!is_written(&memory).await);
    store.land().await;
    assert!(matches!(waiting.await, Ok(Swapped::Applied { .. })));
    let (store, memory) = first_swap(Fault::Stalls);
    let mut given_up = Box::pin(swap(&store));
    assert!(
        std::future::poll_fn(|context| std::task::Poll::Ready(given_up.as_mut().poll(context).is_pending()))
            .await
    );
    drop(given_up);
    store.land().await;
    assert!(is_written(&memory).await);
}

#[tokio::test]
async fn an_ambiguous_swap_was_written_where_the_answer_was_lost_and_not_where_the_call_was() {
    let (store, memory) = first_swap(Fault::AnswerLost);
    assert!(matches!(swap(&store).await, Err(StoreError::Ambiguous { .. })));
    assert!(is_written(&memory).await);
    let (store, memory) = first_swap(Fault::CallLost);
    assert!(matches!(swap(&store).await, Err(StoreError::Ambiguous { .. })));
    assert!(!is_written(&memory).await);
}

#[tokio::test]
async fn only_the_planned_call_meets_its_fault() {
    let (store, _) = first_swap(Fault::Unavailable);
    assert!(swap(&store).await.is_err());
    assert!(matches!(swap(&store).await, Ok(Swapped::Applied { .. })));
    assert!(matches!(swap(&store).await, Ok(Swapped::Conflict(_))));
}

#[tokio::test]
async fn a_held_back_write_lands_when_told_and_loses_to_whoever_came_first() {
    let (store, memory) = first_swap(Fault::LandsWhenTold);
    assert!(matches!(swap(&store).await, Err(StoreError::Ambiguous { .. })));
    assert!(!is_written(&memory).await);
    store.land().await;
    assert!(is_written(&memory).await);

    let (store, memory) = first_swap(Fault::LandsWhenTold);
    assert!(swap(&store).await.is_err());
    store.swap(sample::id(1), None, sample::record("first")).await.unwrap();
    store.land().await;
    let winner = memory.load(sample::id(1)).await.unwrap().record.unwrap();
    assert_eq!(winner.record, sample::record("first"), "a late write is still a compare-and-swap");
}

#[tokio::test(start_paused = true)]
async fn a_late_write_lands_after_its_delay() {
    let (store, memory) = first_swap(Fault::LandsAfter(Duration::from_secs(5)));
    assert!(matches!(swap(&store).await, Err(StoreError::Ambiguous { .. })));
    time::sleep(Duration::from_millis(4999)).await;
    assert!(!is_written(&memory).await);
    time::sleep(Duration::from_millis(2)).await;
    assert!(is_written(&memory).await);
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_is_slow_on_both_ways() {
    let slow = Fault::Slow { before: Duration::from_secs(2), after: Duration::from_secs(3) };
    let (store, memory) = first_swap(slow);
    let started = time::instant();
    let (swapped, ()) = tokio::join!(swap(&store), async {
        time::sleep(Duration::from_millis(1999)).await;
        assert!(!is_written(&memory).await);
        time::sleep(Duration::from_millis(2)).await;
        assert!(is_written(&memory).await);
    });
    assert!(matches!(swapped, Ok(Swapped::Applied { .. })));
    assert_eq!(time::instant().duration_since(started), Duration::from_secs(5));
}

#[tokio::test]
async fn unreadable_records_are_errors_in_a_load_and_a_conflict_and_entries_in_a_page() {
    let memory = MemoryStore::default();
    let store = FaultyStore::new(memory.clone(), |_| Fault::Unreadable);
    assert!(store.load(sample::id(1)).await.unwrap().record.is_none(), "what is absent stays absent");
    let Ok(Swapped::Applied { version, .. }) = swap(&store).await else { panic!("a write is a write") };
    let unreadable = |error| matches!(error, StoreError::Unreadable { id, version: at, .. } if (id, at) == (sample::id(1), version));
    assert!(unreadable(store.load(sample::id(1)).await.unwrap_err()));
    assert!(unreadable(swap(&store).await.unwrap_err()));
    let Page { entries, .. } = scan(&store).await.unwrap();
    assert!(entries.len() == 1 && entries[0].record.is_err());
    assert_eq!(store.forget(vec![(sample::id(1), version)]).await, Ok(1));
}

async fn scan(store: &impl Store) -> Result<Page, StoreError> {
    store.scan(Scan { which: Which::Filter(Filter::default()), after: None, limit: 10 }).await
}

#[tokio::test]
async fn every_method_can_fail_and_a_plan_knows_what_it_fails() {
    let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let store = FaultyStore::new(MemoryStore::default(), move |call| {
        seen.lock().unwrap().push(call);
        Fault::AnswerLost
    });
    assert!(matches!(store.load(sample::id(7)).await, Err(StoreError::Ambiguous { .. })));
    assert!(matches!(swap(&store).await, Err(StoreError::Ambiguous { .. })));
    assert!(matches!(scan(&store).await, Err(StoreError::Ambiguous { .. })));
    let due = Scan { which: Which::Due(Due::Leases), after: None, limit: 1 };
    assert!(matches!(store.scan(due).await, Err(StoreError::Ambiguous { .. })));
    assert!(matches!(store.forget(Vec::new()).await, Err(StoreError::Ambiguous { .. })));
    let expected = [
        Call { method: Method::Load, nth: 1, id: Some(sample::id(7)) },
        Call { method: Method::Swap, nth: 1, id: Some(sample::id(1)) },
        Call { method: Method::Scan, nth: 1, id: None },
        Call { method: Method::Scan, nth: 2, id: None },
        Call { method: Method::Forget, nth: 1, id: None },
    ];
    assert_eq!(*calls.lock().unwrap(), expected);
}
