//! Onceward on Redis: a store for low stakes and high rates, and a shared replay cache in front of another store.
//!
//! **As a store** ([`RedisStore`]) a record is as durable as the server's settings make it: with `appendfsync everysec` a crash of
//! the server can lose the last second, and a failover can lose writes that were not replicated. The store cannot prevent such a
//! loss, but detects it: every bucket of records has a marker that counts its writes, and the script of each call compares the
//! marker with the last known one. After a flush, a restart without persistence or a rollback, every call is refused until an
//! operator accepts the loss ([`RedisStore::accept_loss`]).
//!
//! **As a cache** ([`RedisCache`]) it holds copies of completed records. Losing it costs only reads of the store.
//!
//! Both work on one server, over TLS, and on Redis Cluster. `docs/redis.md` describes settings and guarantees.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use onceward::{Engine, Identity};
//! use onceward_redis::{Options, RedisStore, RedisUrl};
//!
//! let url: RedisUrl = "redis://127.0.0.1:6379".parse()?;
//! let store = RedisStore::connect(&url, Options::default()).await?;
//! let identity = Identity::in_namespace("default").scoped_by("authorization")?;
//! let engine = Engine::builder(Arc::new(store)).open(identity).await?;
//! # Ok(())
//! # }
//! ```

mod cache;
mod connection;
mod cursor;
mod error;
mod examine;
mod keys;
mod loss_detector;
mod marker;
mod monitor;
mod options;
mod reply;
mod scan;
mod script;
mod statistics;
mod store;
mod url;

pub use cache::RedisCache;
pub use error::OpenError;
pub use examine::examine;
pub use options::{FirstUse, Options};
pub use statistics::Statistics;
pub use store::RedisStore;
pub use url::{NotARedisUrl, RedisUrl};
