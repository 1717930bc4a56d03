//! Redis as the shared cache of several engines, flushed and killed under load.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onceward::{
    Claim, Engine, Fingerprint, Identity, Key, MemoryStore, Outcome, Ran, RecordId, Reply, Scope,
    engine::SharedCache,
};
use onceward_redis::RedisCache;
use onceward_testkit::servers::{RedisCluster, RedisServer};
use onceward_testkit::wait;

async fn engine(store: &MemoryStore, cache: &RedisCache) -> Engine {
    let identity = Identity::in_namespace("n").scoped_by("fixed").unwrap();
    let builder = Engine::builder(Arc::new(store.clone())).shared_cache(Arc::new(cache.clone()));
    builder.open(identity).await.unwrap()
}

fn claim(n: usize) -> Claim {
    let key = Key::new(&n.to_string()).unwrap();
    Claim::new(Scope::new("s").unwrap(), key, Fingerprint::of_bytes(b"b"))
}

/// An unconnected cache refuses, and each refusal starts a connection.
async fn connected(url: &str) -> RedisCache {
    let cache = RedisCache::new(url.parse().unwrap());
    wait::until("the cache is connected", async || cache.get(RecordId::from_bytes([1; 16])).await).await;
    cache
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_is_got_by_others_and_ends_by_itself_on_a_server_and_on_a_cluster() {
    let (server, cluster) = (RedisServer::start(&[]), RedisCluster::start(&[]));
    for url in [server.url(), cluster.url()] {
        let (one, other) = (connected(&url).await, connected(&url).await);
        for n in 0..32 {
            let id = RecordId::from_bytes([n; 16]);
            one.put(id, vec![n, 0, 0xff], Duration::from_secs(60)).await.unwrap();
            assert_eq!(other.get(id).await.unwrap(), Some(vec![n, 0, 0xff]));
        }
        assert_eq!(other.get(RecordId::from_bytes([99; 16])).await.unwrap(), None);
    }
    let left = server.cli(&["pttl", &format!("onceward:c:{}", RecordId::from_bytes([7; 16]))]);
    assert!((1..=60_000).contains(&left.trim().parse::<i64>().unwrap()), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_is_flushed_and_killed_under_load_costs_only_calls_of_the_store() {
    const KEYS: usize = 300;
    const ROUNDS: usize = 30;
    let server = RedisServer::start(&[]);
    let cache = connected(&server.url()).await;
    let store = MemoryStore::default();
    let ledger: Arc<Vec<AtomicU64>> = Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect());
    let engines = [engine(&store, &cache).await, engine(&store, &cache).await];
    let done = Arc::new(tokio::sync::Semaphore::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|task: usize| {
            let (engine, ledger, done) = (engines[task % 2].clone(), ledger.clone(), done.clone());
            tokio::spawn(async move {
                for step in 0..KEYS * ROUNDS / 8 {
                    let n = (step * 7 + task * 11) % KEYS;
                    let ledger = ledger.clone();
                    let ran = engine
                        .run(claim(n), async move |_| {
                            ledger[n].fetch_add(1, Ordering::SeqCst);
                            Outcome::completed(Reply::new("done"))
                        })
                        .await;
                    // Another task may be executing it; no other answer is allowed.
                    assert!(
                        matches!(ran, Ok(Ran::Executed { .. } | Ran::Replayed { .. } | Ran::Refused(_))),
                        "{ran:?}"
                    );
                    done.add_permits(1);
                }
            })
        })
        .collect();
    let quarter = u32::try_from(KEYS * ROUNDS / 4).unwrap();
    for act in ["flush", "kill"] {
        done.acquire_many(quarter).await.unwrap().forget();
        if act == "flush" {
            server.cli(&["flushall"]);
        } else {
            server.kill();
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    for (n, count) in ledger.iter().enumerate() {
        assert_eq!(count.load(Ordering::SeqCst), 1, "key {n}");
    }
}
