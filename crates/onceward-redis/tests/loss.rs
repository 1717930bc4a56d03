//! Redis loses records: the store detects it, and refuses all calls until an operator accepts the loss.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onceward::store::{Health, Stamped, Store, StoreError, Swapped, Version};
use onceward::{
    Claim, Engine, Fingerprint, Identity, Key, Limits, Outcome, Ran, Record, RecordId, Reply, Scope,
};
use onceward_redis::{FirstUse, OpenError, Options, RedisStore, RedisUrl, examine};
use onceward_testkit::servers::{RedisCluster, RedisServer};
use onceward_testkit::{sample, wait};

/// Waits while a connection is being made; any other result is the answer.
async fn load(store: &RedisStore, id: RecordId) -> Result<Option<Stamped>, String> {
    wait::until("the store is connected", async || match store.load(id).await {
        Ok(seen) => Ok(Ok(seen.record)),
        Err(StoreError::Unavailable { reason }) if reason.contains("accept-loss") => Ok(Err(reason)),
        Err(error) => Err(error),
    })
    .await
}

/// Waits until the store serves again.
async fn served(store: &RedisStore) {
    wait::until("the store serves again", async || store.load(sample::id(0)).await).await;
}

async fn put(store: &RedisStore, n: u64) -> Version {
    match store.swap(sample::id(n), None, sample::record(&n.to_string())).await.unwrap() {
        Swapped::Applied { version, .. } => version,
        Swapped::Conflict(seen) => panic!("{seen:?}"),
    }
}

fn url(server: &RedisServer) -> RedisUrl {
    server.url().parse().unwrap()
}

async fn connect(server: &RedisServer) -> RedisStore {
    RedisStore::connect(&url(server), Options::default()).await.unwrap()
}

async fn claim(store: &RedisStore, n: u64) -> Result<Swapped, StoreError> {
    let record: Record = sample::record("again");
    store.swap(sample::id(n), None, record).await
}

/// Claims again and again until a claim is applied.
async fn claimed(store: &RedisStore, n: u64) {
    let applied = |answer: &_| matches!(answer, Ok(Swapped::Applied { .. }));
    wait::until("a claim is applied", async || wait::seen(claim(store, n).await, applied)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_flush_not_one_claim_slips_through_and_accepting_the_loss_goes_on() {
    let server = RedisServer::start(&[]);
    let store = connect(&server).await;
    put(&store, 1).await;
    server.cli(&["flushall"]);
    // The very first call after the flush: the monitor has not run yet.
    let refused = claim(&store, 1).await;
    assert!(matches!(&refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    assert!(load(&store, sample::id(1)).await.unwrap_err().contains("onceward store accept-loss"));
    assert!(store.loss().is_some());
    assert_eq!(store.statistics().losses, 1);
    assert_eq!(server.cli(&["dbsize"]).trim(), "0", "something was written");
    RedisStore::accept_loss(&url(&server)).await.unwrap();
    served(&store).await;
    assert!(matches!(claim(&store, 1).await, Ok(Swapped::Applied { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_starts_on_an_emptied_server_does_not_silence_one_that_misses_its_records() {
    let server = RedisServer::start(&[]);
    let old = connect(&server).await;
    put(&old, 1).await;
    server.cli(&["flushall"]);
    let refused =
        RedisStore::connect(&url(&server), Options { first_use: FirstUse::Refuse, ..Options::default() })
            .await;
    assert!(matches!(refused, Err(OpenError::Empty { .. })), "{refused:?}");
    let new = connect(&server).await;
    put(&new, 2).await;
    assert!(claim(&old, 1).await.is_err());
    assert!(load(&old, sample::id(1)).await.is_err());
    RedisStore::accept_loss(&url(&server)).await.unwrap();
    served(&old).await;
    served(&new).await;
    assert_eq!(load(&old, sample::id(2)).await.unwrap().unwrap().record.subject.key, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_persistence_is_noticed() {
    let server = RedisServer::start(&[]);
    let store = connect(&server).await;
    put(&store, 1).await;
    server.kill();
    assert!(claim(&store, 1).await.is_err());
    server.begin();
    assert!(load(&store, sample::id(1)).await.is_err());
    assert!(matches!(claim(&store, 1).await, Err(StoreError::Unavailable { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_from_an_old_snapshot_is_noticed_and_stops_every_gateway() {
    let server = RedisServer::start(&[]);
    let (writer, other) = (connect(&server).await, connect(&server).await);
    put(&writer, 1).await;
    assert_eq!(server.cli(&["save"]).trim(), "OK");
    put(&writer, 2).await;
    server.kill();
    server.begin();
    // The marker and the first record exist; only the gateway that saw the second record can miss it. Reconnecting takes a
    // moment. Nothing is answered before or after it.
    wait::until("the writer notices the rollback", async || {
        let refused = load(&writer, sample::id(2)).await.unwrap_err();
        wait::seen(refused, |reason| reason.contains("rolled back"))
    })
    .await;
    wait::until("the other gateway notices the loss", async || other.loss().ok_or("no loss")).await;
    assert!(matches!(
        RedisStore::connect(&url(&server), Options::default()).await,
        Err(OpenError::Lost { .. })
    ));
    RedisStore::accept_loss(&url(&server)).await.unwrap();
    served(&writer).await;
    assert!(load(&writer, sample::id(1)).await.unwrap().is_some());
    assert!(put(&writer, 2).await.as_number() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_loss_soon_after_the_first_is_accepted_by_accepting_it_once() {
    let server = RedisServer::start(&[]);
    let store = connect(&server).await;
    RedisStore::accept_loss(&url(&server)).await.unwrap();
    claimed(&store, 1).await;
    server.cli(&["flushall"]);
    assert!(load(&store, sample::id(1)).await.is_err());
    RedisStore::accept_loss(&url(&server)).await.unwrap();
    served(&store).await;
    put(&store, 1).await;
    assert_eq!(store.loss(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_in_which_an_older_loss_was_accepted_is_not_taken_for_acceptance() {
    let server = RedisServer::start(&[]);
    let store = connect(&server).await;
    for n in 1..=2 {
        RedisStore::accept_loss(&url(&server)).await.unwrap();
        claimed(&store, n).await;
        if n == 1 {
            assert_eq!(server.cli(&["save"]).trim(), "OK");
        }
    }
    server.kill();
    server.begin();
    // The second record is missing, and no operator has accepted that.
    assert!(load(&store, sample::id(2)).await.unwrap_err().contains("accept-loss"));
    assert!(matches!(claim(&store, 2).await, Err(StoreError::Unavailable { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_become_a_replica_is_left_for_the_new_master() {
    let server = RedisServer::start(&[]);
    let store = connect(&server).await;
    let before = store.statistics().reconnects;
    // No server listens there, so its records stay as they are.
    server.cli(&["replicaof", "127.0.0.1", "1"]);
    assert!(matches!(claim(&store, 1).await, Err(StoreError::Unavailable { .. })));
    let reconnects = async || wait::seen(store.statistics().reconnects, |&now| now != before);
    wait::until("the store reconnects", reconnects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_appendfsync_always_a_killed_server_loses_nothing_that_was_answered() {
    let server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = connect(&server).await;
    let mut versions = Vec::new();
    for n in 0..50 {
        versions.push(put(&store, n).await);
    }
    server.kill();
    server.begin();
    for (n, version) in (0..).zip(versions) {
        let stamped = load(&store, sample::id(n)).await.unwrap().unwrap();
        assert_eq!((stamped.version, stamped.record), (version, sample::record(&n.to_string())));
    }
    assert_eq!(store.loss(), None);
    let findings = examine(&url(&server)).await.unwrap();
    assert!(findings.iter().all(|finding| finding.health == Health::Good), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_evicts_is_refused_with_the_setting_to_change() {
    let server = RedisServer::start(&["--maxmemory-policy", "allkeys-lru"]);
    let refused = RedisStore::connect(&url(&server), Options::default()).await.unwrap_err();
    assert!(refused.to_string().contains("maxmemory-policy noeviction"), "{refused}");
    assert_eq!(server.cli(&["dbsize"]).trim(), "0", "something was written");
    let findings = examine(&url(&server)).await.unwrap();
    assert!(
        findings
            .iter()
            .any(|finding| finding.health == Health::Problem && finding.subject == "maxmemory-policy")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_flushed_node_of_a_cluster_is_noticed() {
    let cluster = RedisCluster::start(&[]);
    let url: RedisUrl = cluster.url().parse().unwrap();
    let store = RedisStore::connect(&url, Options::default()).await.unwrap();
    for n in 0..30 {
        put(&store, n).await;
    }
    cluster.nodes[1].cli(&["flushall"]);
    let mut refused = 0;
    for n in 0..30 {
        match claim(&store, n).await {
            Ok(Swapped::Conflict(seen)) => assert!(seen.record.is_some()),
            Ok(Swapped::Applied { .. }) => panic!("record {n} was treated as new"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0, "nothing lay on that node");
    assert!(store.loss().is_some());
    RedisStore::accept_loss(&url).await.unwrap();
    served(&store).await;
    let single: RedisUrl = cluster.nodes[0].url().parse().unwrap();
    let refused = RedisStore::connect(&single, Options::default()).await.unwrap_err();
    assert!(refused.to_string().contains("cluster=true"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_never_shown() {
    let server = RedisServer::start(&["--requirepass", "hunter2"]);
    let with = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    let store = RedisStore::connect(&with.parse().unwrap(), Options::default()).await.unwrap();
    server.kill();
    let errors = [
        format!("{:?}", store.load(sample::id(1)).await.unwrap_err()),
        format!("{:?}", RedisStore::connect(&with.parse().unwrap(), Options::default()).await.unwrap_err()),
        format!("{store:?}"),
    ];
    server.begin();
    let wrong = format!("redis://:hunter3@127.0.0.1:{}", server.port());
    let refused = RedisStore::connect(&wrong.parse().unwrap(), Options::default()).await.unwrap_err();
    for text in errors.into_iter().chain([refused.to_string()]) {
        assert!(!text.contains("hunter"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_under_load_executes_nothing_twice() {
    const KEYS: usize = 400;
    let server = RedisServer::start(&[]);
    let store = connect(&server).await;
    // The engine caches nothing, so that every retry reads Redis.
    let limits = Limits::default()
        .cache_bytes(1)
        .settle_patience(Duration::from_millis(200))
        .settle_give_up(Duration::from_millis(200))
        .claim_patience(Duration::from_millis(500));
    let identity = Identity::in_namespace("n").scoped_by("fixed").unwrap();
    let engine = Engine::builder(Arc::new(store.clone())).limits(limits).open(identity).await.unwrap();
    let ledger: Arc<Vec<AtomicU64>> = Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect());
    let executed = Arc::new(tokio::sync::Semaphore::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|task: usize| {
            let (engine, ledger, executed) = (engine.clone(), ledger.clone(), executed.clone());
            tokio::spawn(async move {
                let mut refused = 0;
                for step in 0.. {
                    let n = (step * 7 + task * 3) % KEYS;
                    let (ledger, executed) = (ledger.clone(), executed.clone());
                    let claim = Claim::new(
                        Scope::new("s").unwrap(),
                        Key::new(&n.to_string()).unwrap(),
                        Fingerprint::of_bytes(b"b"),
                    );
                    let ran = engine
                        .run(claim, async move |_| {
                            ledger[n].fetch_add(1, Ordering::SeqCst);
                            executed.add_permits(1);
                            Outcome::completed(Reply::new("done"))
                        })
                        .await;
                    match ran {
                        Ok(Ran::Executed { .. } | Ran::Replayed { .. } | Ran::Refused(_)) if refused == 0 => {
                        }
                        // Requests that were in flight during the flush.
                        Ok(Ran::Unknown(_) | Ran::Refused(_)) => {}
                        Ok(other) => panic!("after the loss was noticed a request got {other:?}"),
                        Err(_) => refused += 1,
                    }
                    if refused == KEYS {
                        return;
                    }
                }
            })
        })
        .collect();
    // Enough was executed that retries are in flight, and half is left.
    executed.acquire_many(u32::try_from(KEYS / 2).unwrap()).await.unwrap().forget();
    server.cli(&["flushall"]);
    for task in tasks {
        task.await.unwrap();
    }
    for (n, count) in ledger.iter().enumerate() {
        assert!(count.load(Ordering::SeqCst) <= 1, "key {n} was executed {count:?} times");
    }
    RedisStore::accept_loss(&url(&server)).await.unwrap();
    served(&store).await;
    let claim = Claim::new(Scope::new("s").unwrap(), Key::new("new").unwrap(), Fingerprint::of_bytes(b"b"));
    let ran = engine.run(claim, async |_| Outcome::completed(Reply::new("done"))).await;
    assert!(matches!(ran, Ok(Ran::Executed { .. })), "{ran:?}");
}
