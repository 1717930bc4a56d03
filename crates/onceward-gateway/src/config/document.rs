//! The configuration file: every key, its type, its meaning and its default.
//!
//! The doc comments here are the descriptions in `--help`, the JSON Schema and `docs/configuration.md`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::Choice;
use super::rules::{Defaults, Route};
use super::secret_source::SecretSource;
use super::text_value::TextValue as _;
use super::urls::{CacheUrl, Store, UpstreamUrl, WebUrl};
use super::values::{Address, Level, Network, ScopePart, Size, Time};
use crate::settings::{self, Keepalive, LogFormat, Role};

/// The configuration of `onceward serve`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "onceward.toml")]
pub(super) struct Document {
    /// Where clients come in.
    pub listen: Address,
    /// The API behind: the only place that requests are ever sent to.
    pub upstream: UpstreamUrl,
    /// Which requests may use a connection to the upstream again: `unkeyed`, or `all` where it never closes one by itself.
    pub upstream_keepalive: Choice<Keepalive>,
    /// Whether the upstream gets the `Host` that the client sent (`true`), or its own from `upstream` (`false`).
    pub preserve_host: bool,
    /// Addresses and networks of proxies whose `X-Forwarded-*` and `Forwarded` are kept. Those of other clients are replaced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trusted_proxies: Vec<Network>,
    /// Where records are kept: `sqlite:PATH`, `postgres://…`, `redis://…`, or `memory:` for tests.
    pub store: Store,
    /// Where gateways that share a store keep answers for each other: `redis://…`. Losing it costs speed only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUrl>,
    /// What makes a tenant, all parts together. It has no default, because that is a decision.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<ScopePart>,
    /// Declares that a proxy in front verifies what `header:NAME` and `basic:user` say. Without it they are refused.
    pub scope_verified: bool,
    /// Lets several gateways share a store without meeting.
    pub namespace: String,
    /// The format of records, `1` or `2`. Without it, new and embedded stores get `2`, and used shared ones keep theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2))]
    pub record_format: Option<u8>,
    /// Keys every stored hash, so that reading the store confirms no guess. At least 16 bytes. A new SQLite store makes its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretSource>,
    /// What clients put before `/.well-known`, where a proxy in front changes origin or path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_url: Option<WebUrl>,
    /// Where operators come in, and who may do what.
    pub admin: Admin,
    /// How requests are treated, except where a route differs.
    pub defaults: Defaults,
    /// What differs from the defaults, by method and path. The first match wins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// The certificate that clients see. Without it they speak plain text.
    pub tls: Tls,
    /// How an https upstream is trusted.
    pub upstream_tls: UpstreamTls,
    /// How much is held at once, and for how long.
    pub limits: Limits,
    /// What is logged, on standard error.
    pub logs: Logs,
    /// Where traces go.
    pub traces: Traces,
}

/// The admin listener: console, operations API, metrics, health.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Admin {
    /// Where operators, probes and metrics come in.
    pub listen: Address,
    /// Who may do what. Where there is none, one operator token is made and kept beside the store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Token>,
}

/// An operator's credential.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Token {
    /// Who it is, for the audit trail.
    pub name: String,
    /// What it allows: each role may also do what those before it may.
    pub role: Choice<Role>,
    /// The credential, from a variable or a file.
    pub token: SecretSource,
}

/// The certificate that clients see.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tls {
    /// A PEM file with the certificate and those that lead to its root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// A PEM file with the certificate's private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

/// How an https upstream is trusted.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct UpstreamTls {
    /// A PEM file with the certificates to trust instead of the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

/// How much is held at once, and for how long.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    /// Clients' connections at once. Beyond, they wait to be accepted.
    pub connections: usize,
    /// Bytes of a request's head.
    pub header_bytes: Size,
    /// Bytes of a request's path and query.
    pub url_bytes: Size,
    /// How long a request's head may take once it has begun, and how long a new connection may take to begin one.
    pub header_timeout: Time,
    /// How long a client's connection is kept between two requests. Longer than a balancer in front keeps it.
    pub idle_timeout: Time,
    /// How long the body of a request may pause.
    pub body_timeout: Time,
    /// Bytes of keyed requests' bodies held at once. Beyond, keyed requests are refused before they claim.
    pub buffered_bytes: Size,
    /// Connections to the upstream at once, unused ones included. Beyond, requests wait for one.
    pub upstream_connections: usize,
    /// How long connecting to the upstream may take, TLS included.
    pub connect_timeout: Time,
    /// How long an unused connection to the upstream is kept.
    pub upstream_idle: Time,
    /// How long an answer to a request without a key may take to begin.
    pub response_timeout: Time,
    /// Bytes of completed records kept in memory for replays.
    pub cache_bytes: Size,
    /// How long work in flight may take to end after SIGTERM.
    pub drain: Time,
}

/// What is logged, on standard error.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Logs {
    /// For people (`text`) or for programs (`json`: one object a line).
    pub format: Choice<LogFormat>,
    /// How much: `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,hyper=debug`.
    pub level: Level,
    /// Whether each answered request is a line of its own, whatever the level.
    pub access: bool,
}

/// Where traces go.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Traces {
    /// A collector that takes OTLP over HTTP. Without it traces go nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp: Option<WebUrl>,
}

impl Default for Document {
    #[expect(clippy::expect_used, reason = "a default that cannot be read would fail every test")]
    fn default() -> Self {
        Self {
            listen: Address(settings::Settings::LISTEN),
            upstream: UpstreamUrl::read("http://127.0.0.1:3000").expect("a URL"),
            upstream_keepalive: Choice::default(),
            preserve_host: settings::Forwarding::default().preserve_host,
            trusted_proxies: Vec::new(),
            store: Store(settings::StoreUrl::Sqlite(PathBuf::from("onceward.db"))),
            cache: None,
            scope: Vec::new(),
            scope_verified: false,
            namespace: "default".to_owned(),
            record_format: None,
            secret: None,
            public_url: None,
            admin: Admin::default(),
            defaults: Defaults::default(),
            routes: Vec::new(),
            tls: Tls::default(),
            upstream_tls: UpstreamTls::default(),
            limits: Limits::default(),
            logs: Logs::default(),
            traces: Traces::default(),
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: Address(settings::Admin::LISTEN), tokens: Vec::new() }
    }
}

impl Default for Logs {
    fn default() -> Self {
        Self { format: Choice::default(), level: Level("info".to_owned()), access: false }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let limits = settings::Limits::default();
        let size = |bytes: usize| Size(bytes as u64);
        Self {
            connections: limits.connections,
            header_bytes: size(limits.header_bytes),
            url_bytes: size(limits.url_bytes),
            header_timeout: Time(limits.header_timeout),
            idle_timeout: Time(limits.idle_timeout),
            body_timeout: Time(limits.body_timeout),
            buffered_bytes: size(limits.buffered_bytes),
            upstream_connections: limits.upstream_connections,
            connect_timeout: Time(limits.connect_timeout),
            upstream_idle: Time(limits.upstream_idle),
            response_timeout: Time(limits.response_timeout),
            cache_bytes: Size(limits.cache_bytes),
            drain: Time(limits.drain),
        }
    }
}
