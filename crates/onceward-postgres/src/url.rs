//! The database's URL: an ordinary PostgreSQL URL with some parameters of Onceward's own.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::Batching;
use percent_encoding::percent_decode_str;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// Which database speaks PostgreSQL's protocol. They differ in their DDL, and in what one statement may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flavor {
    /// PostgreSQL, and hosted PostgreSQL.
    #[default]
    Postgres,
    /// Citus: tables are distributed by id.
    Citus,
    /// CockroachDB.
    Cockroach,
    /// YugabyteDB.
    Yugabyte,
}

/// Whether statements are prepared once for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prepared {
    /// Once for each connection: the server plans them once.
    #[default]
    On,
    /// Never: for PgBouncer below 1.21 in transaction mode, which may send each statement over another connection.
    Off,
}

/// Whether connections are encrypted, and whether the server's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tls {
    /// Plain text.
    Disable,
    /// Encrypted if the server supports it. The certificate is not checked.
    #[default]
    Prefer,
    /// Encrypted. The certificate is checked only with `sslrootcert`; it is then checked as by `verify-full`.
    Require,
    /// Encrypted. The certificate must be trusted, and name the host.
    VerifyFull,
}

/// A database's address, and how to use it. Neither its text nor its debug form shows the password.
///
/// ```
/// use onceward_postgres::PostgresUrl;
/// let url = PostgresUrl::parse("postgres://app:hunter2@db.internal/shop?pool=8&sslmode=verify-full")?;
/// assert_eq!(url.to_string(), "postgres://app:…@db.internal/shop?pool=8&sslmode=verify-full");
/// assert_eq!(url.pool(), 8);
/// # Ok::<(), onceward_postgres::UrlError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    pub(crate) config: tokio_postgres::Config,
    pub(crate) flavor: Flavor,
    pub(crate) prepared: Prepared,
    pub(crate) schema: String,
    pub(crate) pool: usize,
    pub(crate) batching: Batching,
    pub(crate) partitions: u32,
    pub(crate) tls: Tls,
    pub(crate) root_certificate: Option<PathBuf>,
    shown: String,
}

/// A URL that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store's URL {url} {problem}")]
pub struct UrlError {
    url: String,
    problem: String,
}

/// More connections from one process make smaller batches, and nothing faster.
const POOL_MAX: usize = 64;
/// Few enough that a statement over all of them is planned quickly.
const PARTITIONS_MAX: u32 = 256;
/// One batch is in flight while the next one fills. More connections make smaller batches and more commits: with 64
/// concurrent requests on two cores, four connections sent 0.24 statements for each new key and answered 3,754 keys a
/// second; two sent 0.14 and answered 4,674; one sent 0.09 and answered 3,841.
const POOL_DEFAULT: usize = 2;
/// Callers of a claim give up soon after.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// PostgreSQL truncates longer names, which then collide.
const NAME_BYTES_MAX: usize = 63;

const OWN_PARAMETERS: &str = "flavor, prepared, schema, pool, batching, partitions, sslmode, sslrootcert, application_name, \
     connect_timeout, host, port, user, password, dbname, hostaddr, keepalives, keepalives_idle, tcp_user_timeout, \
     channel_binding and sslnegotiation";

impl UrlError {
    /// What is wrong, as a phrase that follows the name of the setting.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl PostgresUrl {
    /// Reads a URL such as `postgres://user:password@host:5432/database?pool=8`.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let shown = redacted(text);
        let refused = |problem: String| UrlError { url: shown.clone(), problem };
        let (address, query) = text.split_once('?').unwrap_or((text, ""));
        if !address.starts_with("postgres://") && !address.starts_with("postgresql://") {
            return Err(refused("must begin with postgres:// or postgresql://".to_owned()));
        }
        let mut url = Self {
            config: tokio_postgres::Config::new(),
            flavor: Flavor::default(),
            prepared: Prepared::default(),
            schema: "onceward".to_owned(),
            pool: POOL_DEFAULT,
            batching: Batching::default(),
            partitions: 0,
            tls: Tls::default(),
            root_certificate: None,
            shown: shown.clone(),
        };
        let mut passed_on = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, raw) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(raw)
                .decode_utf8()
                .map_err(|_| refused(format!("has a {name} that is not UTF-8: percent-encode it")))?;
            match url.own(name, &value).map_err(&refused)? {
                Parameter::Own => {}
                Parameter::PassedOn => passed_on.push(pair),
            }
        }
        let mut plain = address.to_owned();
        if !passed_on.is_empty() {
            plain.push('?');
            plain.push_str(&passed_on.join("&"));
        }
        // The library's error may repeat a part of the URL, and with it the password.
        url.config = plain.parse().map_err(|_| {
            refused(format!(
                "cannot be read: write postgres://user:password@host:5432/database, percent-encode special characters in \
                 user and password, and use only the parameters {OWN_PARAMETERS}"
            ))
        })?;
        url.complete().map_err(refused)?;
        Ok(url)
    }

    /// Applies a parameter of Onceward's own.
    fn own(&mut self, name: &str, value: &str) -> Result<Parameter, String> {
        match name {
            "flavor" => {
                self.flavor = match value {
                    "postgres" => Flavor::Postgres,
                    "citus" => Flavor::Citus,
                    "cockroach" => Flavor::Cockroach,
                    "yugabyte" => Flavor::Yugabyte,
                    _ => return Err(one_of(name, value, "postgres, citus, cockroach or yugabyte")),
                }
            }
            "prepared" => {
                self.prepared = match value {
                    "on" => Prepared::On,
                    "off" => Prepared::Off,
                    _ => return Err(one_of(name, value, "on or off")),
                }
            }
            "sslmode" => {
                self.tls = match value {
                    "disable" => Tls::Disable,
                    "prefer" => Tls::Prefer,
                    "require" => Tls::Require,
                    "verify-full" => Tls::VerifyFull,
                    _ => return Err(one_of(name, value, "disable, prefer, require or verify-full")),
                }
            }
            "sslrootcert" => self.root_certificate = Some(PathBuf::from(value)),
            "schema" => self.schema = schema_name(value)?,
            "pool" => self.pool = number(name, value, 1, POOL_MAX)?,
            "batching" => self.batching = batching(value)?,
            "partitions" => self.partitions = number(name, value, 0, PARTITIONS_MAX)?,
            "application_name" | "connect_timeout" | "host" | "port" | "user" | "password" | "dbname"
            | "hostaddr" | "keepalives" | "keepalives_idle" | "tcp_user_timeout" | "channel_binding"
            | "sslnegotiation" => return Ok(Parameter::PassedOn),
            _ => return Err(format!("has the unknown parameter {name:?}: there are {OWN_PARAMETERS}")),
        }
        Ok(Parameter::Own)
    }

    /// Applies defaults, and refuses combinations that do not work.
    fn complete(&mut self) -> Result<(), String> {
        if self.config.get_hosts().is_empty() && self.config.get_hostaddrs().is_empty() {
            return Err("names no host: write postgres://user@host/database".to_owned());
        }
        let over_a_socket = self.config.get_hosts().iter().any(|host| matches!(host, Host::Unix(_)));
        if over_a_socket && self.tls == Tls::VerifyFull {
            return Err(
                "asks for sslmode=verify-full over a unix socket, which has no TLS: use a host".to_owned()
            );
        }
        // A standby answers reads too, and may not have received a record yet, which would then look absent.
        self.config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        self.config.ssl_mode(match self.tls {
            Tls::Disable => SslMode::Disable,
            Tls::Prefer => SslMode::Prefer,
            Tls::Require | Tls::VerifyFull => SslMode::Require,
        });
        if self.config.get_connect_timeout().is_none() {
            self.config.connect_timeout(CONNECT_TIMEOUT);
        }
        if self.config.get_application_name().is_none() {
            self.config.application_name("onceward");
        }
        Ok(())
    }

    /// How many connections carry swaps and loads. Scans have one more.
    pub fn pool(&self) -> usize {
        self.pool
    }

    /// Whether concurrent swaps share a statement. Off is for comparison.
    pub fn batching(&self) -> Batching {
        self.batching
    }

    /// The database.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Into how many hash partitions the migration divides the table; 0 for none.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// The schema that holds the tables.
    pub fn schema(&self) -> &str {
        &self.schema
    }
}

impl FromStr for PostgresUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        Self::parse(text)
    }
}

enum Parameter {
    Own,
    PassedOn,
}

fn one_of(name: &str, value: &str, choices: &str) -> String {
    format!("has {name}={value:?}: write {choices}")
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    name: &str,
    value: &str,
    least: T,
    most: T,
) -> Result<T, String> {
    match value.parse() {
        Ok(number) if number >= least && number <= most => Ok(number),
        Ok(_) | Err(_) => Err(format!("has {name}={value:?}: write a number from {least} to {most}")),
    }
}

/// The name is part of statements, so it must not need quotes.
pub(crate) fn schema_name(value: &str) -> Result<String, String> {
    let plain = value.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    let begins = value.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if plain && begins && value.len() <= NAME_BYTES_MAX && !value.starts_with("pg_") {
        return Ok(value.to_owned());
    }
    Err(format!(
        "has schema={value:?}: write a name of at most {NAME_BYTES_MAX} lower-case letters, digits and underscores that \
         begins with a letter"
    ))
}

/// The URL without its password, wherever it stands.
fn redacted(text: &str) -> String {
    let (address, query) =
        text.split_once('?').map_or((text, None), |(address, query)| (address, Some(query)));
    let mut shown = match address.split_once("://") {
        Some((scheme, rest)) => {
            // The last `@`, because an unencoded password may contain one.
            match rest.rsplit_once('@') {
                Some((who, place)) => match who.split_once(':') {
                    Some((user, _)) => format!("{scheme}://{user}:…@{place}"),
                    None => format!("{scheme}://{who}@{place}"),
                },
                None => address.to_owned(),
            }
        }
        // Unknown text may contain a secret.
        None => "…".to_owned(),
    };
    if let Some(query) = query {
        let pairs: Vec<_> = query
            .split('&')
            .map(|pair| if pair.starts_with("password") { "password=…" } else { pair })
            .collect();
        shown.push('?');
        shown.push_str(&pairs.join("&"));
    }
    shown
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresUrl").field(&self.shown).finish()
    }
}

fn batching(value: &str) -> Result<Batching, String> {
    match value {
        "on" => Ok(Batching::On),
        "off" => Ok(Batching::Off),
        _ => Err(format!("has batching={value}, which must be on or off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_shown_nowhere_and_in_no_error() {
        for text in [
            "postgres://app:hunter2@db/shop",
            "postgres://app:hunter2@db/shop?pool=0",
            "postgres://app:hun@ter2@db/shop?flavour=x",
            "postgres://app@db/shop?password=hunter2",
            "postgres://app@db/shop?password=hunter2&bogus=1",
            "postgres://app:hunter2@db:port/shop",
            "mysql://app:hunter2@db/shop",
            "app:hunter2@db",
        ] {
            let shown = match PostgresUrl::parse(text) {
                Ok(url) => format!("{url} {url:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains("hunter2") && !shown.contains("ter2"), "{shown}");
        }
    }

    #[test]
    fn our_own_parameters_are_read_and_the_others_are_passed_on() {
        let url = PostgresUrl::parse(
            "postgresql://app@db:6432/shop?flavor=citus&prepared=off&schema=once_2&pool=64&partitions=8\
             &sslmode=require&sslrootcert=%2Fetc%2Fca.pem&application_name=pay",
        )
        .unwrap();
        assert_eq!(
            (url.flavor, url.prepared, url.pool, url.partitions),
            (Flavor::Citus, Prepared::Off, 64, 8)
        );
        assert_eq!((url.schema(), url.tls), ("once_2", Tls::Require));
        assert_eq!(url.root_certificate, Some(PathBuf::from("/etc/ca.pem")));
        assert_eq!(url.config.get_application_name(), Some("pay"));
        assert_eq!(url.config.get_ports(), [6432]);
    }

    #[test]
    fn what_is_unknown_or_out_of_range_is_refused_with_what_to_write() {
        for (query, advice) in [
            ("flavour=citus", "flavor"),
            ("flavor=oracle", "postgres, citus, cockroach or yugabyte"),
            ("pool=0", "from 1 to 64"),
            ("pool=65", "from 1 to 64"),
            ("partitions=257", "from 0 to 256"),
            ("prepared=maybe", "on or off"),
            ("sslmode=verify", "disable, prefer, require or verify-full"),
            ("schema=a-b", "lower-case"),
            ("schema=", "lower-case"),
            ("options=-c%20fsync=off", "unknown parameter"),
        ] {
            let error =
                PostgresUrl::parse(&format!("postgres://app@db/shop?{query}")).unwrap_err().to_string();
            assert!(error.contains(advice), "{query}: {error}");
        }
        assert!(PostgresUrl::parse("postgres://").unwrap_err().to_string().contains("host"));
    }
}
