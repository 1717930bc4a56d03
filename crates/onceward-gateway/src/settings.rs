//! The settings of a gateway, after they were read and validated.
//!
//! `config` makes them from a file, flags and variables; tests and the demo make them directly. They do not have the origins of
//! values.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery};
use ipnet::IpNet;
use onceward::event::Expiry;
use onceward::http::{Routes, ScopeRules};
use onceward::receipts::TableName;
use onceward::reconcile::{FindTerms, Reconciling};
use onceward::{OnLapse, Secret, record::RecordFormat};
use onceward_postgres::PostgresUrl;
use onceward_redis::RedisUrl;
use serde::{Deserialize, Serialize};

/// Everything that `onceward serve` needs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where clients come in.
    pub listen: SocketAddr,
    /// The API behind.
    pub upstream: Upstream,
    /// Which `Host`, `X-Forwarded-*` and `Forwarded` the API gets.
    pub forwarding: Forwarding,
    /// Where records are kept.
    pub store: StoreUrl,
    /// Where answers are kept that several gateways replay without asking the store.
    pub cache: Option<RedisUrl>,
    /// What makes a tenant.
    pub scope: ScopeRules,
    /// Keeps apart gateways that share a store.
    pub namespace: String,
    /// The format to write records in, if the operator chose one.
    pub record_format: Option<RecordFormat>,
    /// Keys every hash that is stored.
    pub secret: Option<Secret>,
    /// Health, metrics and operations.
    pub admin: Admin,
    /// The policy of every route.
    pub routes: Routes,
    /// When unknown outcomes are dead letters.
    pub reconciling: Reconciling,
    /// The routes whose handlers write receipt rows.
    pub receipts: Vec<ReceiptRoute>,
    /// What becomes of a record past its window.
    pub expiry: Expiry,
    /// What clients put before `/.well-known`, where a proxy in front changes it. Empty where it does not.
    pub public_url: String,
    /// The certificate; clients speak TLS if there is one.
    pub tls: Option<Tls>,
    /// How much is held at once, and for how long.
    pub limits: Limits,
    /// Logs and traces.
    pub telemetry: Telemetry,
}

/// The API behind: the only place that requests are ever sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Plain or TLS.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
    /// The prefix of every path. `None` where it is only a slash.
    pub base_path: Option<PathAndQuery>,
    /// Certificates that are trusted, instead of the machine's.
    pub ca: Option<PathBuf>,
    /// Which requests may be sent on a connection that was used before.
    pub keepalive: Keepalive,
}

/// Which requests may be sent on a connection that was used before.
///
/// A server may close a kept-alive connection at any moment: when it was idle for long enough, or right after an answer. A
/// request that is written at that moment is lost, and cannot be distinguished from one that was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keepalive {
    /// Requests without a key. Each keyed request gets a connection of its own.
    #[default]
    Unkeyed,
    /// All, for an upstream that never closes a kept-alive connection within `upstream_idle`.
    All,
}

/// Which `Host`, `X-Forwarded-*` and `Forwarded` the API gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarding {
    /// Whether `Host` is the one that the client sent. Otherwise it is the upstream's own.
    pub preserve_host: bool,
    /// The proxies in front whose `X-Forwarded-*` and `Forwarded` are kept. Those of other clients are replaced.
    pub trusted_proxies: Vec<IpNet>,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self { preserve_host: true, trusted_proxies: Vec::new() }
    }
}

/// The scheme of the upstream's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// In plain text.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// As it stands in a URL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Where records are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`: lost at the end of the process.
    Memory,
    /// `sqlite:PATH`: on this machine.
    Sqlite(PathBuf),
    /// `postgres://…`: shared by any number of gateways.
    Postgres(PostgresUrl),
    /// `redis://…`: shared too, for records that may be lost.
    Redis(RedisUrl),
}

/// A route whose handlers write receipt rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptRoute {
    /// The route.
    pub route: String,
    /// The handlers' database.
    pub url: ReceiptsUrl,
    /// The name of the table.
    pub table: TableName,
    /// How often, and how soon again, an unknown outcome is asked about.
    pub terms: FindTerms,
}

/// The database of handlers that write receipt rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiptsUrl {
    /// `sqlite:PATH`: on this machine.
    Sqlite(PathBuf),
    /// `postgres://…`.
    Postgres(Box<PostgresUrl>),
}

/// The admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// Where operators come in.
    pub listen: SocketAddr,
    /// Who may do what. Where there is none, one is made and kept beside the store.
    pub tokens: Vec<Token>,
}

/// An operator's credential.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Who it is, for the audit trail.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// The credential itself.
    pub token: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

/// What a token allows. Each role may also do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads operations and metrics.
    Reader,
    /// Claims and settles its own operations.
    Worker,
    /// Resolves and expires.
    Operator,
}

/// What a lapsed lease means. The library's own type has the limits of resuming too, which the file does not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LapseRule {
    /// The outcome is unknown.
    #[default]
    Unknown,
    /// Where there is a recovery point, the work goes on from there.
    Resume,
}

impl From<LapseRule> for OnLapse {
    fn from(rule: LapseRule) -> Self {
        match rule {
            LapseRule::Unknown => Self::Unknown,
            LapseRule::Resume => Self::RESUME,
        }
    }
}

/// The certificate that clients see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// A PEM file with the certificate and those that lead to its root.
    pub certificate: PathBuf,
    /// A PEM file with its private key.
    pub key: PathBuf,
}

/// How much is held at once, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Clients' connections at once. Beyond, they wait to be accepted.
    pub connections: usize,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Bytes of a request's path and query.
    pub url_bytes: usize,
    /// How long a request's head may take once it has begun, and how long a new connection may take to begin one.
    pub header_timeout: Duration,
    /// How long a client's connection is kept between two requests.
    pub idle_timeout: Duration,
    /// How long the body of a request may pause.
    pub body_timeout: Duration,
    /// Bytes of keyed requests' bodies that are held at once. Beyond, keyed requests are refused before they claim.
    pub buffered_bytes: usize,
    /// Connections to the upstream at once, unused ones included. Beyond, requests wait for one.
    pub upstream_connections: usize,
    /// How long connecting to the upstream may take, TLS included.
    pub connect_timeout: Duration,
    /// How long an unused connection to the upstream is kept.
    pub upstream_idle: Duration,
    /// How long an answer to a request without a key may take to begin.
    pub response_timeout: Duration,
    /// Bytes of completed records kept in memory for replays.
    pub cache_bytes: u64,
    /// How long work in flight may take to end after SIGTERM.
    pub drain: Duration,
    /// Bytes of a reply that the engine keeps: the largest `max_response_body` of any route, and room for its headers.
    /// The configuration computes it; it has no key.
    pub reply_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            header_bytes: 64 << 10,
            url_bytes: 8 << 10,
            header_timeout: Duration::from_secs(30),
            // Longer than the 60 seconds for which common balancers keep a connection. If this side closed first, a balancer
            // could send a request on a connection that is being closed, and could not know whether it was executed.
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            buffered_bytes: 256 << 20,
            upstream_connections: 1024,
            connect_timeout: Duration::from_secs(5),
            // Shorter than what servers commonly allow (gunicorn 2 s, uvicorn and Node 5 s), so that they seldom close first.
            upstream_idle: Duration::from_millis(1500),
            response_timeout: Duration::from_secs(60),
            cache_bytes: 64 << 20,
            drain: Duration::from_secs(30),
            reply_bytes: 2 << 20,
        }
    }
}

/// Logs and traces.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Telemetry {
    /// The form of its log, on standard error.
    pub logs: LogFormat,
    /// Whether every answered request is logged, as one line at the target `access`.
    pub access: bool,
    /// How much it logs: a level, or directives of `tracing-subscriber`'s filter. Empty means `info`.
    pub level: String,
    /// The OTLP collector (over HTTP), such as `http://127.0.0.1:4318`. `None` sends no traces.
    pub otlp: Option<String>,
}

/// The form of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON object a line.
    Json,
}

impl Role {
    /// As it stands in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Worker => "worker",
            Self::Operator => "operator",
        }
    }
}

impl Admin {
    /// The default address of the admin listener.
    pub const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8421);
}

impl Settings {
    /// The keys that differ from another configuration's and cannot change while a gateway runs. Only routes, the certificate
    /// and tokens can.
    pub fn fixed_that_differ(&self, other: &Self) -> Vec<&'static str> {
        let limits = Limits { reply_bytes: self.limits.reply_bytes, ..other.limits.clone() };
        let same = [
            ("listen", self.listen == other.listen),
            ("upstream", self.upstream == other.upstream),
            ("preserve_host", self.forwarding.preserve_host == other.forwarding.preserve_host),
            ("trusted_proxies", self.forwarding.trusted_proxies == other.forwarding.trusted_proxies),
            ("store", self.store == other.store),
            ("cache", self.cache == other.cache),
            ("scope", self.scope == other.scope),
            ("namespace", self.namespace == other.namespace),
            ("record_format", self.record_format == other.record_format),
            ("secret", self.secret == other.secret),
            ("admin.listen", self.admin.listen == other.admin.listen),
            ("dead_letter_after", self.reconciling == other.reconciling),
            ("routes.receipts or routes.reconcile", self.receipts == other.receipts),
            ("defaults.expire", self.expiry == other.expiry),
            ("public_url", self.public_url == other.public_url),
            ("tls (whether there is a certificate)", self.tls.is_some() == other.tls.is_some()),
            ("limits", self.limits == limits),
            ("logs or traces", self.telemetry == other.telemetry),
        ];
        same.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
    }

    /// The default address of the clients' listener.
    pub const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8420);
}
