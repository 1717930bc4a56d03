//! Servers that the tests of one binary share, and stores of their own in them.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use onceward_redis::{Options, RedisStore, RedisUrl};
use onceward_testkit::VirtualClock;
use onceward_testkit::conformance::Specimen;
use onceward_testkit::servers::{RedisCluster, RedisServer};

/// The URL in `ONCEWARD_TEST_REDIS`, or a server that this test binary started.
pub fn server() -> String {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    std::env::var("ONCEWARD_TEST_REDIS")
        .unwrap_or_else(|_| SERVER.get_or_init(|| RedisServer::start(&[])).url())
}

/// A cluster that this test binary started.
pub fn cluster() -> String {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| RedisCluster::start(&[])).url()
}

/// A URL with a new prefix.
pub fn fresh(url: &str) -> RedisUrl {
    static USED: AtomicU64 = AtomicU64::new(0);
    let number = USED.fetch_add(1, Ordering::Relaxed);
    let url: RedisUrl = url.parse().unwrap();
    url.with_prefix(&format!("test-{}-{number}", std::process::id())).unwrap()
}

/// A new, empty store with this clock.
pub async fn specimen(url: &str, clock: Arc<VirtualClock>) -> Specimen {
    let url = fresh(url);
    let store =
        RedisStore::connect(&url, Options { clock: Some(clock), ..Options::default() }).await.unwrap();
    Specimen::new(store).damaged_by(move |id| {
        let url = url.clone();
        async move {
            let key = format!("{{{}:{:02x}}}:r:{id}", url.prefix(), id.as_bytes()[0]);
            let plain = url.to_string();
            let plain = plain.split('?').next().unwrap().to_owned();
            if url.to_string().contains("cluster=true") {
                let client = redis::cluster::ClusterClient::new(vec![plain]).unwrap();
                flip(&mut client.get_async_connection().await.unwrap(), &key).await;
            } else {
                let client = redis::Client::open(plain).unwrap();
                flip(&mut client.get_multiplexed_async_connection().await.unwrap(), &key).await;
            }
        }
    })
}

async fn flip(connection: &mut impl redis::aio::ConnectionLike, key: &str) {
    let mut stored: Vec<u8> = redis::cmd("GET").arg(key).query_async(connection).await.unwrap();
    *stored.last_mut().unwrap() ^= 1;
    redis::cmd("SET").arg(key).arg(stored).exec_async(connection).await.unwrap();
}
