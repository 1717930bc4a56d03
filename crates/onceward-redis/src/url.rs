//! The URL of a Redis: `redis://[user][:password@]host[:port][/database][?cluster=true&prefix=NAME]`.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's enums grow; what is not known here is never an answer"
)]

use std::fmt;
use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

/// The prefix of every key, unless the URL has another.
const PREFIX: &str = "onceward";

/// The address of one server, or of any node of a cluster.
///
/// `rediss://` is TLS. `?cluster=true` is a cluster. `?prefix=NAME` is the prefix of every key: two prefixes are two stores. The
/// password is never shown.
///
/// ```
/// let url: onceward_redis::RedisUrl = "rediss://:hunter2@cache.internal/0?prefix=orders".parse()?;
/// assert_eq!(url.to_string(), "rediss://:***@cache.internal:6379/0?prefix=orders");
/// # Ok::<(), onceward_redis::NotARedisUrl>(())
/// ```
#[derive(Clone)]
pub struct RedisUrl {
    pub(crate) info: ConnectionInfo,
    pub(crate) topology: Topology,
    pub(crate) prefix: String,
}

/// Whether the address is that of one server or of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    Cluster,
}

/// A text that is not a Redis URL. The message follows the name of the setting, and does not repeat the text, which may
/// contain a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "is not a Redis URL: {problem}; it must be redis://[user][:password@]host[:port][/database][?cluster=true&prefix=NAME], or rediss:// for TLS"
)]
pub struct NotARedisUrl {
    problem: String,
}

fn refused(problem: impl Into<String>) -> NotARedisUrl {
    NotARedisUrl { problem: problem.into() }
}

impl RedisUrl {
    /// The prefix of every key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The same server with another prefix, which is another store.
    pub fn with_prefix(mut self, prefix: &str) -> Result<Self, NotARedisUrl> {
        self.prefix = checked_prefix(prefix)?;
        Ok(self)
    }
}

/// Braces would change the cluster slot of a key.
fn checked_prefix(prefix: &str) -> Result<String, NotARedisUrl> {
    let fits = (1..=64).contains(&prefix.len())
        && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte));
    if fits {
        Ok(prefix.to_owned())
    } else {
        Err(refused("a prefix has 1 to 64 letters, digits or any of -_.:"))
    }
}

impl PartialEq for RedisUrl {
    fn eq(&self, other: &Self) -> bool {
        let password = |url: &Self| url.info.redis_settings().password().map(str::to_owned);
        self.to_string() == other.to_string() && password(self) == password(other)
    }
}

impl Eq for RedisUrl {}

impl FromStr for RedisUrl {
    type Err = NotARedisUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.starts_with("redis://") && !text.starts_with("rediss://") {
            return Err(refused("it begins with neither redis:// nor rediss://"));
        }
        let mut url = redis::parse_redis_url(text).ok_or_else(|| refused("it cannot be parsed"))?;
        let (mut topology, mut prefix) = (Topology::Single, PREFIX.to_owned());
        for (name, value) in url.query_pairs() {
            match (name.as_ref(), value.as_ref()) {
                ("cluster", "true") => topology = Topology::Cluster,
                ("cluster", "false") => topology = Topology::Single,
                ("cluster", _) => return Err(refused("cluster is true or false")),
                ("prefix", value) => prefix = checked_prefix(value)?,
                _ => return Err(refused("it has a parameter that is neither cluster nor prefix")),
            }
        }
        if url.fragment().is_some() {
            return Err(refused("a fragment (#) would disable the check of certificates"));
        }
        url.set_query(None);
        let info = url
            .as_str()
            .into_connection_info()
            .map_err(|error| refused(error.detail().unwrap_or("it cannot be parsed").to_owned()))?;
        if topology == Topology::Cluster && info.redis_settings().db() != 0 {
            return Err(refused("a cluster has only database 0"));
        }
        Ok(Self { info, topology, prefix })
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host, port) = match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => ("redis", host.as_str(), *port),
            ConnectionAddr::TcpTls { host, port, .. } => ("rediss", host.as_str(), *port),
            // Other kinds are refused when the text is parsed.
            _ => ("redis", "?", 0),
        };
        let redis = self.info.redis_settings();
        write!(f, "{scheme}://{}", redis.username().unwrap_or_default())?;
        if redis.password().is_some() {
            f.write_str(":***")?;
        }
        if redis.username().is_some() || redis.password().is_some() {
            f.write_str("@")?;
        }
        write!(f, "{host}:{port}/{}", redis.db())?;
        let mut mark = '?';
        if self.topology == Topology::Cluster {
            write!(f, "{mark}cluster=true")?;
            mark = '&';
        }
        if self.prefix != PREFIX {
            write!(f, "{mark}prefix={}", self.prefix)?;
        }
        Ok(())
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for text in ["redis://:hunter2@h", "rediss://user:hunter2@h:1/2", "redis://u:hunter2@h?cluster=true"]
        {
            let url: RedisUrl = text.parse().unwrap();
            assert!(!format!("{url} {url:?} {url:#?}").contains("hunter2"), "{url}");
        }
        for nonsense in
            ["redis://:hunter2@", "redis://:hunter2@h?x=1", "http://:hunter2@h", "redis://:hunter2@h/x"]
        {
            let error = nonsense.parse::<RedisUrl>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_url_says_what_it_means_and_everything_else_is_refused() {
        let url: RedisUrl = "redis://h:7000?cluster=true&prefix=a.b".parse().unwrap();
        assert_eq!((url.topology, url.prefix()), (Topology::Cluster, "a.b"));
        assert_eq!(url.to_string(), "redis://h:7000/0?cluster=true&prefix=a.b");
        for nonsense in [
            "redis://h?cluster=yes",
            "redis://h/3?cluster=true",
            "redis://h?prefix={a}",
            "redis://h?prefix=",
            "rediss://h/#insecure",
            "unix:///tmp/redis.sock",
            "",
        ] {
            assert!(nonsense.parse::<RedisUrl>().is_err(), "{nonsense}");
        }
    }
}
