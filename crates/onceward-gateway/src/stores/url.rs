//! What is known of a store from its URL alone.

use std::fmt;
use std::path::{Path, PathBuf};

use onceward::record::RecordFormat;
use onceward_postgres::PostgresUrl;
use onceward_redis::NotARedisUrl;

use crate::settings::StoreUrl;

/// The largest value of Redis at the default `proto-max-bulk-len`.
const REDIS_VALUE_BYTES: usize = 512 << 20;

impl StoreUrl {
    /// The expected form, after "it must be".
    pub const EXPECTED: &'static str =
        "\"sqlite:PATH\", \"postgres://USER@HOST/DATABASE\", \"redis://HOST\", or \"memory:\" for tests";
    /// Examples, for the schema.
    pub const EXAMPLES: &'static [&'static str] = &[
        "sqlite:onceward.db",
        "sqlite:/var/lib/onceward/onceward.db",
        "postgres://onceward@db.internal/payments",
        "redis://127.0.0.1:6379",
        "memory:",
    ];

    /// Parses it. The error ends a sentence that begins with "it".
    pub fn parse(text: &str) -> Result<Self, String> {
        let scheme = text.split(':').next().unwrap_or_default();
        match (scheme, text.strip_prefix("sqlite:"), text.strip_prefix("memory:")) {
            (_, _, Some("")) => Ok(Self::Memory),
            (_, Some("" | ":memory:"), _) => {
                Err("names no file: write \"sqlite:onceward.db\", or \"memory:\" for tests".to_owned())
            }
            (_, Some(path), _) if path.starts_with("//") && !path.starts_with("///") => {
                let path = path.trim_start_matches('/');
                Err(format!(
                    "has two slashes where a path begins: write \"sqlite:{path}\" for a file in the working directory, \
                     or \"sqlite:/{path}\" for one at the root"
                ))
            }
            (_, Some(path), _) => Ok(Self::Sqlite(plain(path))),
            ("postgres" | "postgresql", _, _) => {
                let url = PostgresUrl::parse(text).map_err(|error| error.problem().to_owned())?;
                Ok(Self::Postgres(url))
            }
            ("redis" | "rediss", _, _) => {
                text.parse().map(Self::Redis).map_err(|error: NotARedisUrl| error.to_string())
            }
            (_, None, _) => Err(format!("must be {}", Self::EXPECTED)),
        }
    }

    /// Whether several gateways can use it at once.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Memory | Self::Sqlite(_) => false,
            Self::Postgres(_) | Self::Redis(_) => true,
        }
    }

    /// Whether records survive a restart of the gateway.
    pub fn is_durable(&self) -> bool {
        match self {
            Self::Memory => false,
            Self::Sqlite(_) | Self::Postgres(_) | Self::Redis(_) => true,
        }
    }

    /// The database file of an embedded store. Its secret and its token lie beside it.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Sqlite(path) => Some(path),
            Self::Memory | Self::Postgres(_) | Self::Redis(_) => None,
        }
    }

    /// The largest record that it keeps, where it has a limit of its own.
    pub(crate) fn record_bytes_max(&self) -> Option<usize> {
        match self {
            Self::Sqlite(_) => Some(onceward_sqlite::RECORD_BYTES_MAX),
            Self::Postgres(_) => Some(onceward_postgres::RECORD_BYTES_MAX),
            Self::Redis(_) => Some(REDIS_VALUE_BYTES),
            Self::Memory => None,
        }
    }

    /// The format to write records in; `None` keeps the one that the store has. Other gateways may share a store and be of an
    /// older version, which cannot read the newest format, so there the operator decides. Other stores get the newest.
    pub(crate) fn record_format(&self, chosen: Option<RecordFormat>) -> Option<RecordFormat> {
        if self.is_shared() { chosen } else { chosen.or(Some(RecordFormat::Two)) }
    }
}

/// Without a password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => url.fmt(f),
            Self::Redis(url) => url.fmt(f),
        }
    }
}

/// `///var/x` and `/var/x` are one file; the shorter spelling is used.
fn plain(path: &str) -> PathBuf {
    match path.strip_prefix("//") {
        Some(rest) => PathBuf::from(rest),
        None => PathBuf::from(path),
    }
}
