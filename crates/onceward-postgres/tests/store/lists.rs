//! Long lists, and entries of `due` that are wrong.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{observer, open, put, url};
use onceward::store::{Due, Filter, Scan, Store, Which};
use onceward::{RecordId, Timestamp, record::Letter};
use onceward_postgres::{Options, PostgresStore};
use onceward_testkit::{VirtualClock, sample};
use tokio::task::JoinSet;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn listed(store: &PostgresStore, which: Which, limit: usize) -> Vec<RecordId> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.scan(Scan { which: which.clone(), after, limit }).await.unwrap();
        all.extend(page.entries.into_iter().map(|entry| entry.id));
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

async fn put_many(store: &PostgresStore, count: u64, record: impl Fn(u64) -> onceward::Record) {
    let mut tasks = JoinSet::new();
    for n in 0..count {
        let (store, record) = (store.clone(), record(n));
        tasks.spawn(async move { put(&store, sample::id(n), None, record).await });
    }
    tasks.join_all().await;
}

fn clocked() -> (Arc<VirtualClock>, Options) {
    let clock = Arc::new(VirtualClock::standing_at(sample::START));
    (clock.clone(), Options { clock: Some(clock), ..Options::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowded_minute_is_listed_once_and_so_are_the_quiet_ones_around_it() {
    let (clock, options) = clocked();
    let store = open(&url(""), options).await;
    put_many(&store, 5_100, |n| {
        let mut record =
            sample::in_state("k", sample::completed(sample::START.after(Duration::from_secs(n % 7))));
        // Some before, most in one minute, some after.
        let minute = if n < 50 {
            0
        } else if n < 5_050 {
            10
        } else {
            20 + n % 3
        };
        record.created_at = sample::START.after(Duration::from_secs(minute * 100));
        record
    })
    .await;
    assert_eq!(listed(&store, Which::Due(Due::Expired), 300).await.len(), 5_100_usize.div_ceil(7));
    clock.advance(DAY);
    for limit in [299, 1_000] {
        let all = listed(&store, Which::Due(Due::Expired), limit).await;
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "something was listed twice");
        assert_eq!(all.len(), 5_100);
    }
    assert_eq!(listed(&store, Which::Filter(Filter::default()), 777).await.len(), 5_100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minutes_in_which_nothing_expires_are_not_read_in_every_sweep() {
    let (clock, options) = clocked();
    let store = open(&url("pool=1"), options).await;
    for n in 0..40 {
        let created_at = sample::START.after(Duration::from_secs(n * 3_600));
        let state = sample::completed(created_at.after(DAY * 7));
        put(&store, sample::id(n), None, onceward::Record { created_at, ..sample::in_state("k", state) })
            .await;
    }
    clock.advance(DAY * 2);
    let cost = |before: u64| store.statistics().statements - before;
    let before = store.statistics().statements;
    assert_eq!(listed(&store, Which::Due(Due::Expired), 100).await, []);
    assert!(cost(before) > 40, "each hour was read");
    let before = store.statistics().statements;
    assert_eq!(listed(&store, Which::Due(Due::Expired), 100).await, []);
    assert!(cost(before) < 5, "and is left alone now: {}", cost(before));
    clock.advance(DAY * 5 + Duration::from_secs(1));
    assert_eq!(listed(&store, Which::Due(Due::Expired), 100).await, [sample::id(0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_lapsed_leases_become_due_in_steps_and_are_listed_once() {
    let (clock, options) = clocked();
    let url = url("");
    let store = open(&url, options).await;
    put_many(&store, 300, |n| {
        sample::in_state("k", sample::in_progress(sample::START.after(Duration::from_secs(n % 10))))
    })
    .await;
    clock.advance(DAY);
    let all = listed(&store, Which::Due(Due::Leases), 17).await;
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 300);
    assert_eq!(all.len(), 300);
    // Entries of operations that were settled are deleted by the next list.
    for id in &all {
        let seen = store.load(*id).await.unwrap().record.unwrap();
        put(&store, *id, Some(seen.version), sample::in_state("k", sample::completed(Timestamp::NEVER)))
            .await;
    }
    assert_eq!(listed(&store, Which::Due(Due::Leases), 17).await, []);
    let noted = format!("SELECT count(*) FROM {}.due", url.schema());
    assert_eq!(observer().await.query_one(&noted, &[]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_was_committed_after_the_watermark_had_passed_is_found_by_the_expiry_sweep() {
    let (clock, options) = clocked();
    let url = url("");
    let store = open(&url, options).await;
    put(&store, sample::id(1), None, sample::in_state("k", sample::in_progress(sample::START))).await;
    put(&store, sample::id(2), None, sample::in_state("k", sample::unknown(sample::START, Letter::Live)))
        .await;
    // As if it had become visible only now: the watermark has passed it, and `due` has no entry.
    let pass = format!("UPDATE {0}.watermark SET upto = 'infinity'; DELETE FROM {0}.due", url.schema());
    observer().await.batch_execute(&pass).await.unwrap();
    clock.advance(DAY);
    assert_eq!(listed(&store, Which::Due(Due::Leases), 10).await, []);
    assert_eq!(listed(&store, Which::Due(Due::Expired), 10).await, []);
    assert_eq!(listed(&store, Which::Due(Due::Leases), 10).await, [sample::id(1)]);
    assert_eq!(listed(&store, Which::Due(Due::Reconcile), 10).await, [sample::id(2)]);
}
