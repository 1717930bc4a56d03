//! Redis as a cache in front of PostgreSQL: losing it costs speed, and nothing else.

use onceward_testkit::servers::{RedisServer, shared_postgres};
use onceward_testkit::wait::{self, seen};

use super::crowd::Crowd;
use super::on;
use crate::harness::Gateway;
use crate::ledger::Ledger;

fn cached(store: &str, redis: &RedisServer, folder: &std::path::Path, ledger: &Ledger) -> Gateway {
    Gateway::spawn(on(store, folder, ledger).args(["--cache", &redis.url()]))
}

#[tokio::test]
async fn a_gateway_replays_an_answer_that_another_one_cached_without_asking_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let (store, redis) = (shared_postgres(), RedisServer::start(&[]));
    let first = cached(&store, &redis, folder.path(), &ledger);
    let executed = first.charge("k").await;
    assert_eq!((executed.status, executed.is_replayed()), (201, false), "{executed:?}");
    // The gateway writes to the cache in the background.
    wait::until_blocking("the cache has an entry", || {
        seen(redis.cli(&["DBSIZE"]), |size| size.trim() != "0")
    });
    let second = cached(&store, &redis, folder.path(), &ledger);
    let before = second.metric_or_zero("api_idempotency_store_swap_seconds_count").await;
    let replayed = second.charge("k").await;
    assert!(replayed.is_replayed(), "{replayed:?}");
    assert_eq!(second.metric_or_zero("api_idempotency_store_swap_seconds_count").await, before);
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_cache_that_is_flushed_killed_and_restarted_under_load_loses_no_answer_and_repeats_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let (store, redis) = (shared_postgres(), RedisServer::start(&[]));
    let gateways =
        [cached(&store, &redis, folder.path(), &ledger), cached(&store, &redis, folder.path(), &ledger)];
    let mut crowd = Crowd::of(&[gateways[0].address, gateways[1].address]);
    for _ in 0..10 {
        crowd.progress(30).await;
        redis.cli(&["FLUSHALL"]);
    }
    for _ in 0..3 {
        crowd.progress(30).await;
        redis.kill();
        crowd.progress(30).await;
        redis.begin();
    }
    let counts = crowd.check(&gateways[1], &ledger).await;
    assert_eq!((counts.completed, counts.unknown, counts.begun_late), (0, 0, 0), "{counts:?}");
}
