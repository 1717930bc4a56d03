//! Invariant 9: every buffer, queue, wait and list has a named limit, and nonsense is refused with its value.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onceward::store::{Cursor, Filter, Page, Scan, Seen, Store, StoreFuture, Swapped, Version, Which};
use onceward::{
    Claim, Engine, EngineError, Limits, MemoryStore, OnLapse, OpenError, Outcome, Ran, Record, RecordId,
    Refusal, Reply, Sweeping, Terms, claim::ClaimError, engine::OptionsError, store::Clock as _,
};
use tokio::sync::oneshot;

use super::{SECOND, builder, claim, claim_of, clock, identity_of_tests, retry};

async fn limited(limits: Limits) -> Engine {
    let store = MemoryStore::with_clock(clock());
    builder(Arc::new(store), 1).limits(limits).open(identity_of_tests()).await.unwrap()
}

async fn occupy(engine: &Engine, key: &'static str) -> oneshot::Sender<()> {
    let (began, begins) = oneshot::channel();
    let (go, goes) = oneshot::channel();
    let engine = engine.clone();
    tokio::spawn(async move {
        engine
            .run(claim_of(key, "b"), async move |_| {
                began.send(()).unwrap();
                goes.await.unwrap();
                Outcome::completed(Reply::new("done"))
            })
            .await
    });
    begins.await.unwrap();
    go
}

#[tokio::test(start_paused = true)]
async fn invariant_09_one_execution_more_than_the_limit_is_shed_before_it_claims() {
    let engine = limited(Limits::default().executions(2)).await;
    let busy = [occupy(&engine, "a").await, occupy(&engine, "b").await];
    let ran = retry(&engine).await;
    assert_eq!(ran, Err(EngineError::Overloaded { what: "executions", limit: 2 }));
    assert_eq!(engine.load(super::id()).await.unwrap(), None, "nothing was claimed");
    for go in busy {
        go.send(()).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_09_one_attached_caller_more_than_the_limit_is_shed() {
    let engine = limited(Limits::default().attached(1)).await;
    let go = occupy(&engine, "k").await;
    let wait = || {
        let engine = engine.clone();
        let claim = claim_of("k", "b").attach(SECOND * 9).unwrap();
        tokio::spawn(async move { engine.run(claim, async |_| panic!("must not execute")).await })
    };
    let (first, second) = (wait(), wait());
    assert_eq!(second.await.unwrap(), Err(EngineError::Overloaded { what: "attached callers", limit: 1 }));
    go.send(()).unwrap();
    assert!(matches!(first.await.unwrap().unwrap(), Ran::Replayed { .. }));
}

#[tokio::test(start_paused = true)]
async fn invariant_09_a_reply_at_its_limit_is_kept_and_one_byte_more_is_left_to_an_operator() {
    let engine = limited(Limits::default().reply_bytes(10)).await;
    let run = |key, bytes| {
        engine.run(claim_of(key, "b"), async move |_| Outcome::completed(Reply::new(vec![b'x'; bytes])))
    };
    assert!(matches!(run("fits", 10).await.unwrap(), Ran::Executed { .. }));
    assert!(matches!(run("large", 11).await.unwrap(), Ran::Unknown(_)));
    let again = run("large", 1).await.unwrap();
    assert!(matches!(again, Ran::Refused(Refusal::Unknown { .. })), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn invariant_09_the_cache_is_bounded_by_bytes_and_replays_go_on_without_it() {
    let engine = limited(Limits::default().cache_bytes(4096)).await;
    for round in 0..2 {
        for n in 0..50 {
            let key = format!("k{n}");
            let run = engine
                .run(claim_of(&key, "b"), async move |_| Outcome::completed(Reply::new(vec![b'x'; 1024])));
            match (round, run.await.unwrap()) {
                (0, Ran::Executed { .. }) | (1, Ran::Replayed { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused_with_their_value() {
    let open = async |limits: Limits, sweeping: Sweeping| {
        let builder = builder(Arc::new(MemoryStore::default()), 1).limits(limits).sweeping(sweeping);
        match builder.open(identity_of_tests()).await {
            Err(OpenError::Options(error)) => error,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it was opened"),
        }
    };
    let none = Limits::default().executions(0);
    assert_eq!(open(none, Sweeping::default()).await, OptionsError::Zero { setting: "executions" });
    let spinning = Sweeping::default().leases_every(Duration::ZERO);
    let error = open(Limits::default(), spinning).await;
    assert_eq!(error, OptionsError::Duration { setting: "leases_every", value: Duration::ZERO });
    let endless = Limits::default().linger(Duration::MAX);
    assert!(matches!(
        open(endless, Sweeping::default()).await,
        OptionsError::Duration { setting: "linger", .. }
    ));
}

#[test]
fn claims_that_make_no_sense_are_refused_with_their_value() {
    let terms = |terms: Terms| claim().terms(terms).map(|_| ());
    let lease = Terms { lease: Claim::MIN_LEASE, ..Terms::default() };
    assert_eq!(terms(lease.clone()), Ok(()));
    let lease = Terms { lease: Claim::MIN_LEASE - Duration::from_nanos(1), ..lease };
    assert!(matches!(terms(lease), Err(ClaimError::Duration { setting: "lease", .. })));
    let retention = Terms { retention: Duration::MAX, ..Terms::default() };
    let error = terms(retention).unwrap_err();
    assert!(error.to_string().starts_with("retention = "), "{error}");
    let never = OnLapse::Resume { attempts: 1, within: SECOND };
    let error = terms(Terms { on_lapse: never, ..Terms::default() }).unwrap_err();
    assert!(error.to_string().contains("never resumes"), "{error}");
    assert!(claim().attach(Duration::MAX).is_err());
    assert!(claim().timeout(Duration::ZERO).is_err());
    assert!(claim().route("").is_err());
    assert!(claim().route(&"r".repeat(Claim::MAX_ROUTE_BYTES)).is_ok());
    assert!(claim().route(&"r".repeat(Claim::MAX_ROUTE_BYTES + 1)).is_err());
}

/// A store whose pages have no records, but always a next page.
struct Barren(MemoryStore, AtomicU64);

impl Store for Barren {
    fn load(&self, id: RecordId) -> StoreFuture<'_, Seen> {
        self.0.load(id)
    }
    fn swap(&self, id: RecordId, expect: Option<Version>, next: Record) -> StoreFuture<'_, Swapped> {
        self.0.swap(id, expect, next)
    }
    fn scan(&self, scan: Scan) -> StoreFuture<'_, Page> {
        if matches!(scan.which, Which::Due(_)) {
            return self.0.scan(scan);
        }
        let number = self.1.fetch_add(1, Ordering::SeqCst) + 1;
        let next = Some(Cursor::from_bytes(number.to_be_bytes()));
        Box::pin(async move {
            // Slow, so that an endless search exceeds a time limit.
            onceward::plumbing::time::sleep(Duration::from_millis(1)).await;
            Ok(Page { now: clock().now(), entries: Vec::new(), next })
        })
    }
    fn forget(&self, records: Vec<(RecordId, Version)>) -> StoreFuture<'_, usize> {
        self.0.forget(records)
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_09_a_list_that_finds_nothing_ends_after_so_many_pages_and_says_where_to_go_on() {
    let store = Arc::new(Barren(MemoryStore::with_clock(clock()), AtomicU64::new(0)));
    let engine = builder(store.clone(), 1).open(identity_of_tests()).await.unwrap();
    let mut after = None;
    for part in 1..=3 {
        let scan = Scan { which: Which::Filter(Filter::default()), after, limit: 10 };
        let page = tokio::time::timeout(SECOND, engine.list(scan)).await.unwrap().unwrap();
        let looked = part * Engine::LIST_PAGES_MAX as u64;
        assert_eq!((page.entries.len(), store.1.load(Ordering::SeqCst)), (0, looked));
        assert_eq!(page.next, Some(Cursor::from_bytes(looked.to_be_bytes())));
        after = page.next;
    }
}
