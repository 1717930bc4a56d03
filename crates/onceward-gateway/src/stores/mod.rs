//! The configured store and the cache in front of it: opened at the start, closed at the end.
//!
//! Only this module knows that there are several kinds of store. `url.rs` has what is known from a URL alone, this file
//! what needs the open store.

mod check;
pub(crate) mod maintenance;
mod receipts;
mod url;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onceward::event::Expiry;
use onceward::http::ScopeRuleError;
use onceward::store::{Finding, Health, Store};
use onceward::{
    Identity, MemoryStore, Secret, Sweeping,
    engine::{Recognition, SharedCache},
};
use onceward_postgres::{Migrate, PostgresStore, PostgresUrl};
use onceward_redis::{RedisCache, RedisStore};
use onceward_sqlite::SqliteStore;

use crate::Failure;
use crate::settings::{Settings, StoreUrl};
use crate::telemetry::metrics::{Batches, Metrics};

pub(crate) use self::check::check;
pub(crate) use self::receipts::receipt_finder;

/// A store that was opened, and is to be closed at the end.
#[derive(Debug)]
pub enum OpenStore {
    /// In memory.
    Memory(Arc<MemoryStore>),
    /// A file on this machine.
    Sqlite(SqliteStore),
    /// Tables that other gateways use too.
    Postgres(PostgresStore),
    /// Keys that other gateways use too.
    Redis(RedisStore),
}

impl OpenStore {
    /// Opens the store. A PostgreSQL schema that is missing or older is brought up to date.
    pub async fn open(url: &StoreUrl) -> Result<Self, Failure> {
        Ok(match url {
            StoreUrl::Memory => Self::Memory(Arc::default()),
            StoreUrl::Sqlite(path) => {
                let options =
                    onceward_sqlite::Options { on_fatal: Arc::new(stop_the_process), ..Default::default() };
                let store = SqliteStore::open(path, options)?;
                for file in readable_by_all(store.path()) {
                    tracing::warn!("{file}");
                }
                Self::Sqlite(store)
            }
            StoreUrl::Postgres(url) => {
                let options = onceward_postgres::Options {
                    migrate: Migrate::Apply,
                    batching: url.batching(),
                    ..Default::default()
                };
                let store = PostgresStore::connect(url, options).await?;
                log_settings(url).await;
                Self::Postgres(store)
            }
            StoreUrl::Redis(url) => {
                Self::Redis(RedisStore::connect(url, onceward_redis::Options::default()).await?)
            }
        })
    }

    /// The store for the engine.
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => store.clone(),
            Self::Sqlite(store) => Arc::new(store.clone()),
            Self::Postgres(store) => Arc::new(store.clone()),
            Self::Redis(store) => Arc::new(store.clone()),
        }
    }

    /// The secret to open the engine with: the configured one, or the one that an embedded store keeps beside it. A new embedded
    /// store gets one here; one that has lost its own is refused. A shared store is used only with a configured one. `identity`
    /// has no secret yet.
    pub async fn secret(
        &self,
        configured: Option<&Secret>,
        identity: &Identity,
    ) -> Result<Option<Secret>, Failure> {
        match (configured, self) {
            (Some(secret), _) => Ok(Some(secret.clone())),
            (None, Self::Sqlite(store)) => Ok(store.secret_or_new(identity).await?),
            (None, Self::Memory(_) | Self::Postgres(_) | Self::Redis(_)) => Ok(None),
        }
    }

    /// How expired records are swept. A database takes larger batches than a file, for which claims wait meanwhile.
    pub fn sweeping(&self, expiry: Expiry) -> Sweeping {
        let defaults = Sweeping::default().expiry(expiry);
        match self {
            Self::Memory(_) | Self::Sqlite(_) | Self::Redis(_) => defaults,
            Self::Postgres(_) => defaults.batch(1_000).pause(Duration::from_millis(10)),
        }
    }

    /// Gives the metrics a function that reads how many writes shared a commit.
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

    /// What may be wrong with the secret of a store that was used under another identity, to be added to that error. Empty where
    /// the secret is not the reason.
    pub fn secret_advice(&self, configured: Option<&Secret>) -> String {
        match self {
            Self::Sqlite(store) => secret_advice(configured, store.path()),
            Self::Memory(_) | Self::Postgres(_) | Self::Redis(_) => String::new(),
        }
    }

    /// A warning about an embedded store that is used without a secret.
    pub fn secret_warning(&self, secret: Option<&Secret>) -> Option<&'static str> {
        match (self, secret) {
            (Self::Sqlite(_), None) => Some(USED_WITHOUT_SECRET),
            (Self::Sqlite(_) | Self::Memory(_) | Self::Postgres(_) | Self::Redis(_), _) => None,
        }
    }

    /// Writes what is queued, and closes files and connections.
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

/// A sync has failed, so the disk may have lost acknowledged writes. The log is written synchronously, so this line is not lost
/// with the process.
fn stop_the_process(cause: &str) {
    tracing::error!(
        cause,
        next = "see to the disk, then start the gateway again: it recovers what the journal holds",
        "the embedded store cannot trust its disk any more: the process is stopped at once"
    );
    std::process::abort();
}

const USED_WITHOUT_SECRET: &str = "the store was used without a secret: reading it is enough to test guesses about its keys, callers and bodies. A secret \
     cannot be added to it; a new store gets one";

/// A warning where the store was used with an outdated scope and may go on with it; an error where it was not.
pub async fn outdated_scope(
    store: &dyn Store,
    identity: &Identity,
    outdated: &ScopeRuleError,
) -> Result<String, Failure> {
    match identity.recognised_by(store).await? {
        Recognition::Known => Ok(format!(
            "{outdated}. This store was used with it and goes on, because with another scope every stored key would be forgotten: \
             change it when you begin a new store"
        )),
        Recognition::New | Recognition::Other => Err(outdated.to_string().into()),
    }
}

fn secret_advice(configured: Option<&Secret>, store: &Path) -> String {
    let path = SqliteStore::secret_path(store);
    let name = path.display();
    match (configured, path.exists()) {
        (None, true) => format!(
            ". The secret in {name} was used: if that file is another store's, put this store's own back, or move it away if \
             the store was used without a secret"
        ),
        (Some(_), true) => format!(
            ". The configured `secret` was used and not the one in {name}: if the store was used with that, remove `secret` from \
             the configuration"
        ),
        // Without either, the secret is missing, and nothing was opened.
        (Some(_) | None, false) => String::new(),
    }
}

/// A warning for each file of an embedded store that every user of the machine can read. The store makes private files; a
/// copied file has the mode of the copy.
#[cfg(unix)]
fn readable_by_all(store: &Path) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let named = |ending: &str| {
        let mut name = store.to_owned().into_os_string();
        name.push(ending);
        PathBuf::from(name)
    };
    let files = ["", "-wal", ".journal-0", ".journal-1"].map(named);
    let open = files.iter().filter_map(|path| {
        let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
        let name = path.display();
        (mode & 0o007 != 0).then(|| {
            format!("{name} holds stored answers, and every user of this machine can read it (mode {mode:o}): run `chmod 600 {name}`")
        })
    });
    open.collect()
}

/// Elsewhere the directory's rights are the files'.
#[cfg(not(unix))]
fn readable_by_all(_: &Path) -> Vec<String> {
    Vec::new()
}

/// Logs at the start which of the database's settings weaken the promise. The Redis store does so itself.
async fn log_settings(url: &PostgresUrl) {
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
        Err(error) => tracing::warn!(
            cause = %error,
            next = "run `onceward check`, which reads them again",
            "the database's settings could not be read: whether they weaken the promise is not known"
        ),
    }
}

/// The configured cache. The gateway starts without one that cannot be reached.
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
