//! Redis as the store, which refuses to serve after a loss.

use onceward_testkit::servers::RedisServer;
use onceward_testkit::wait::{self, seen};

use super::{on, start};
use crate::harness::{Gateway, onceward};
use crate::ledger::Ledger;

const UNAVAILABLE: &str = "idempotency_store_unavailable";

#[tokio::test]
async fn a_flushed_redis_answers_no_key_until_the_loss_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let redis = RedisServer::start(&[]);
    let gateway = start(&redis.url(), folder.path(), &ledger);
    assert_eq!(gateway.charge("k").await.status, 201);
    redis.cli(&["FLUSHALL"]);
    // Lost records cannot be told from new keys, so no key is claimed.
    for key in ["k-2", "k-3"] {
        let refused = gateway.charge(key).await;
        assert_eq!(refused.status_and_code(), (503, UNAVAILABLE.to_owned()), "{refused:?}");
    }
    assert_eq!(ledger.count(), 1);
    let accepted =
        onceward(folder.path()).args(["store", "accept-loss", "--store", &redis.url()]).output().unwrap();
    assert!(accepted.status.success(), "{accepted:?}");
    // The running gateway notices by itself that the loss was accepted.
    let executed = wait::until("the store is available", async || {
        seen(gateway.charge("k-2").await, |answer| answer.status != 503)
    })
    .await;
    assert_eq!((executed.status, executed.is_replayed()), (201, false), "{executed:?}");
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn a_redis_that_may_evict_keys_is_refused_with_the_setting_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let redis = RedisServer::start(&[]);
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (code, printed) = Gateway::refused(&mut on(&redis.url(), folder.path(), &ledger));
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("maxmemory-policy") && printed.contains("noeviction"), "{printed}");
}

#[tokio::test]
async fn two_gateways_on_one_redis_execute_a_key_once() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let redis = RedisServer::start(&[]);
    let gateways = [start(&redis.url(), folder.path(), &ledger), start(&redis.url(), folder.path(), &ledger)];
    let mut crowd = super::crowd::Crowd::of(&[gateways[0].address, gateways[1].address]);
    crowd.progress(300).await;
    let counts = crowd.check(&gateways[1], &ledger).await;
    assert_eq!((counts.completed, counts.unknown, counts.begun_late), (0, 0, 0), "{counts:?}");
}
