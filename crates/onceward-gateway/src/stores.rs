//! The store that the configuration names, and the cache in front of it: opened at the start, closed at the end.
//!
//! Only this room knows that there are several kinds.

use std::sync::Arc;
use std::time::Duration;

use onceward::event::Expiry;
use onceward::store::{Finding, Health, Store};
use onceward::{MemoryStore, RecordFormat, SharedCache, Sweeping};
use onceward_postgres::{Migrate, PostgresStore, PostgresUrl};
use onceward_redis::{RedisCache, RedisStore};
use onceward_sqlite::SqliteStore;

use crate::Failure;
use crate::settings::{Settings, StoreUrl};
use crate::telemetry::metrics::{Batches, Metrics};

/// What is to be closed at the end.
#[derive(Debug)]
pub enum Opened {
    /// Nothing of it survives.
    Memory(Arc<MemoryStore>),
    /// A file of this machine.
    Sqlite(SqliteStore),
    /// Tables that other gateways use too.
    Postgres(PostgresStore),
    /// Keys that other gateways use too.
    Redis(RedisStore),
}

impl Opened {
    /// Opens the store. A PostgreSQL schema that is missing or older is brought up to date.
    pub async fn open(url: &StoreUrl) -> Result<Self, Failure> {
        Ok(match url {
            StoreUrl::Memory => {
                tracing::warn!(
                    "store = \"memory:\" forgets everything when the gateway ends: retries then execute again"
                );
                Self::Memory(Arc::default())
            }
            StoreUrl::Sqlite(path) => {
                Self::Sqlite(SqliteStore::open(path, onceward_sqlite::Options::default())?)
            }
            StoreUrl::Postgres(url) => {
                let options = onceward_postgres::Options {
                    migrate: Migrate::Apply,
                    batching: url.batching(),
                    ..Default::default()
                };
                let store = PostgresStore::connect(url, options).await?;
                tell(url).await;
                Self::Postgres(store)
            }
            StoreUrl::Redis(url) => {
                Self::Redis(RedisStore::connect(url, onceward_redis::Options::default()).await?)
            }
        })
    }

    /// What the engine uses.
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => store.clone(),
            Self::Sqlite(store) => Arc::new(store.clone()),
            Self::Postgres(store) => Arc::new(store.clone()),
            Self::Redis(store) => Arc::new(store.clone()),
        }
    }

    /// The format to write records in. Nobody shares an embedded store, so it always gets the newest; what an existing
    /// shared store gets is the operator's decision, because a gateway of an older version cannot read the newest.
    pub fn record_format(&self, chosen: Option<RecordFormat>) -> Option<RecordFormat> {
        match self {
            Self::Memory(_) | Self::Sqlite(_) => chosen.or(Some(RecordFormat::Two)),
            Self::Postgres(_) | Self::Redis(_) => chosen,
        }
    }

    /// How expired records are looked for. A database takes larger bites than a file that claims wait for.
    pub fn sweeping(&self, expiry: Expiry) -> Sweeping {
        let defaults = Sweeping { expiry, ..Sweeping::default() };
        match self {
            Self::Memory(_) | Self::Sqlite(_) | Self::Redis(_) => defaults,
            Self::Postgres(_) => Sweeping { batch: 1_000, pause: Duration::from_millis(10), ..defaults },
        }
    }

    /// Tells the metrics where to read how many writes shared a commit.
    pub fn measure(&self, metrics: &Metrics) {
        match self {
            // Neither has batches.
            Self::Memory(_) | Self::Redis(_) => {}
            Self::Sqlite(store) => {
                let store = store.clone();
                metrics.batches(move || store.statistics().into());
            }
            Self::Postgres(store) => {
                let store = store.clone();
                metrics.batches(move || store.statistics().into());
            }
        }
    }

    /// Writes what waits, and lets go.
    pub async fn close(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Sqlite(store) => store.close().await,
            Self::Postgres(store) => store.close().await,
            // Its connections end with it.
            Self::Redis(_) => {}
        }
    }
}

/// Says at the start what the database's settings mean for the promise, where they weaken it. Redis' store does so itself.
async fn tell(url: &PostgresUrl) {
    match onceward_postgres::examine(url).await {
        Ok(findings) => {
            for Finding { health, subject: setting, text } in findings {
                match health {
                    Health::Good => {}
                    Health::Warning => tracing::warn!(server = %url, setting, "{text}"),
                    Health::Problem => tracing::error!(server = %url, setting, "{text}"),
                }
            }
        }
        Err(error) => tracing::warn!(%error, "the database's settings could not be looked at"),
    }
}

/// The cache that the configuration names. One that cannot be reached is no reason not to start.
pub async fn cache(settings: &Settings) -> Option<Arc<dyn SharedCache>> {
    match &settings.cache {
        Some(url) => Some(Arc::new(RedisCache::connected(url.clone()).await)),
        None => None,
    }
}

impl From<onceward_sqlite::Statistics> for Batches {
    fn from(statistics: onceward_sqlite::Statistics) -> Self {
        Self { batches: statistics.batches, writes: statistics.writes, statements: 0 }
    }
}

impl From<onceward_postgres::Statistics> for Batches {
    fn from(statistics: onceward_postgres::Statistics) -> Self {
        Self { batches: statistics.batches, writes: statistics.swaps, statements: statistics.statements }
    }
}

/// What Redis takes for one value unless its `proto-max-bulk-len` says otherwise.
const REDIS_VALUE_BYTES: usize = 512 << 20;

/// What a store keeps for one operation, where it has a limit of its own.
pub(crate) fn record_bytes_max(store: &StoreUrl) -> Option<usize> {
    match store {
        StoreUrl::Sqlite(_) => Some(onceward_sqlite::RECORD_BYTES_MAX),
        StoreUrl::Postgres(_) => Some(onceward_postgres::RECORD_BYTES_MAX),
        StoreUrl::Redis(_) => Some(REDIS_VALUE_BYTES),
        StoreUrl::Memory => None,
    }
}
