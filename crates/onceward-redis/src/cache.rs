//! Redis as a cache of completed records, in front of another store.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's enums grow; what is not known here is never an answer"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onceward::{
    RecordId,
    engine::{CacheError, CacheFuture, SharedCache},
};
use redis::{Cmd, Value};

use crate::connection::Connection;
use crate::error::Failure;
use crate::options::Options;
use crate::url::RedisUrl;

/// A shared replay cache: never the authority, so losing it, or parts of it, costs reads of the store and nothing else.
///
/// Any `maxmemory-policy` works; `allkeys-lru` is a good choice. Entries contain what the store holds, answers with their headers
/// and bodies, so protect this Redis as you protect the store. Give each store its own prefix.
///
/// ```no_run
/// # async fn example(store: std::sync::Arc<dyn onceward::store::Store>) -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use onceward::{Engine, Identity};
/// use onceward_redis::RedisCache;
///
/// let cache = RedisCache::new("redis://127.0.0.1:6379?prefix=orders".parse()?);
/// let identity = Identity::in_namespace("default").scoped_by("authorization")?;
/// let engine = Engine::builder(store).shared_cache(Arc::new(cache)).open(identity).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisCache {
    inner: Arc<CacheInner>,
}

struct CacheInner {
    url: RedisUrl,
    connection: Mutex<Option<Arc<Connection>>>,
    connecting: AtomicBool,
}

/// A request does not wait longer for the cache.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

impl RedisCache {
    /// Connects on first use, and reconnects by itself: a Redis that is unavailable does not prevent the start. Must be used
    /// within a tokio runtime with time and network.
    pub fn new(url: RedisUrl) -> Self {
        Self {
            inner: Arc::new(CacheInner {
                url,
                connection: Mutex::default(),
                connecting: AtomicBool::new(false),
            }),
        }
    }

    /// The same, but connects now. A Redis that is unavailable is logged, and connected later.
    pub async fn connected(url: RedisUrl) -> Self {
        let cache = Self::new(url);
        cache.inner.clone().connect().await;
        cache
    }

    async fn send(&self, command: Cmd) -> Result<Value, CacheError> {
        let Some(connection) = self.inner.connected() else {
            self.inner.clone().connect_in_the_background();
            return Err(CacheError { reason: format!("{} is not connected yet", self.inner.url) });
        };
        connection.send(&command).await.map_err(|failure: Failure| CacheError { reason: failure.reason() })
    }

    fn key(&self, id: RecordId) -> String {
        format!("{}:c:{id}", self.inner.url.prefix())
    }
}

impl CacheInner {
    fn connected(&self) -> Option<Arc<Connection>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        connection.filter(|connection| match &**connection {
            Connection::SingleServer(single) => single.is_connected(),
            Connection::Cluster(_) => true,
        })
    }

    fn connect_in_the_background(self: Arc<Self>) {
        if !self.connecting.load(Ordering::Acquire) {
            tokio::spawn(self.connect());
        }
    }

    async fn connect(self: Arc<Self>) {
        if self.connecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let options = Options { answer_within: ANSWER_WITHIN, ..Options::default() };
        match Connection::connect(&self.url, &options).await {
            Ok(connection) => {
                *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(connection));
                tracing::info!(cache = %self.url, "connected to the shared cache");
            }
            Err(failure) => {
                tracing::warn!(
                    cache = %self.url,
                    cause = failure.reason(),
                    "the shared cache cannot be reached: replays are read from the store, and connecting is tried again"
                );
            }
        }
        self.connecting.store(false, Ordering::Release);
    }
}

impl SharedCache for RedisCache {
    fn get(&self, id: RecordId) -> CacheFuture<'_, Option<Vec<u8>>> {
        Box::pin(async move {
            let mut command = redis::cmd("GET");
            command.arg(self.key(id));
            match self.send(command).await? {
                Value::BulkString(bytes) => Ok(Some(bytes)),
                _ => Ok(None),
            }
        })
    }

    fn put(&self, id: RecordId, entry: Vec<u8>, keep: Duration) -> CacheFuture<'_, ()> {
        Box::pin(async move {
            let mut command = redis::cmd("SET");
            command.arg(self.key(id)).arg(entry).arg("PX").arg(keep.as_millis().max(1).to_string());
            self.send(command).await.map(drop)
        })
    }
}

impl std::fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisCache").field("url", &self.inner.url).finish_non_exhaustive()
    }
}
