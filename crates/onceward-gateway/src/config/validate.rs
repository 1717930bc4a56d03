//! Validates the document as a whole and turns it into settings, or reports every problem.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use onceward::http::{ScopeRule, ScopeRules};
use onceward::{Identity, Secret, record::RecordFormat};

use super::document::Document;
use super::problem::{ConfigErrors, Problem};
use super::reconciling;
use super::routes;
use super::tree::{Node, Path};
use super::urls::UpstreamUrl;
use super::values::{ScopePart, Time};
use crate::settings::{Admin, Forwarding, Limits, Scheme, Settings, Telemetry, Tls, Token, Upstream};

/// Collects the problems, each with the origin of the value that it concerns.
pub(super) struct Findings<'a> {
    tree: &'a Node,
    problems: Vec<Problem>,
}

impl<'a> Findings<'a> {
    pub(super) fn new(tree: &'a Node) -> Self {
        Self { tree, problems: Vec::new() }
    }

    /// Adds a problem with the value at a path.
    pub(super) fn at(&mut self, path: &Path, text: String) {
        self.problems.push(Problem { origin: self.tree.origin_of(path), text });
    }

    /// Adds a problem with the combination of two values. Its origin is the value that was written, not the default.
    pub(super) fn at_either(&mut self, first: &Path, second: &Path, text: String) {
        let origin = self.tree.origin_of(first).max(self.tree.origin_of(second));
        self.problems.push(Problem { origin, text });
    }

    /// Whether a key is set, also by a default.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.tree.get(path).is_some()
    }
}

/// The error for a missing scope.
pub(super) const NO_SCOPE: &str = "`scope` is missing. It says what makes a tenant: two requests with the same key are the same operation only within \
one scope. There is no default, because only you know. Choose, in the file or as a flag:
    scope = [\"authorization\"]    --scope authorization    each API key in Authorization: Basic, or Bearer with a token that stays the same
    scope = [\"header:X-Tenant\"]  --scope header:X-Tenant  each value of a header, which a proxy in front sets: needs scope_verified = true
    scope = [\"basic:user\"]       --scope basic:user       each user of HTTP Basic, whom a proxy in front verifies: needs scope_verified = true
    scope = [\"fixed:everyone\"]   --scope fixed:everyone   all callers share one: a caller that knows a key and its payload gets the answer
  Several together are one scope. (jwt:CLAIM and auth:NAME follow in a later version.)";

/// The settings, if there is no problem.
pub(super) fn settings(
    document: &Document,
    tree: &Node,
    variables: &BTreeMap<String, String>,
) -> Result<Settings, ConfigErrors> {
    let mut findings = Findings::new(tree);
    let parts: Vec<String> = document.scope.iter().map(ToString::to_string).collect();
    // Some of these rules are refused for a new store, which is known only when the store is opened.
    let scope = ScopeRules::parse_used(parts.iter().map(String::as_str));
    unverified(document, &mut findings);
    identity(document, &mut findings);
    listeners(document, &mut findings);
    let secret = secret(document, variables, &mut findings);
    let tokens = tokens(document, variables, &mut findings);
    let tls = tls(document, &mut findings);
    upstream_tls(document, &mut findings);
    let limits = limits(document, &mut findings);
    let routes = routes::build(document, &mut findings);
    let receipts = reconciling::receipts(document, variables, &mut findings);
    ConfigErrors::unless_empty(findings.problems)?;
    let origin = |path: &str| tree.origin_of(&Path::of(path));
    let scope = scope.map_err(|error| Problem { origin: origin("scope"), text: error.to_string() })?;
    let routes = routes.map_err(|error| Problem { origin: origin("defaults"), text: error })?;
    Ok(Settings {
        listen: document.listen.0,
        upstream: Upstream {
            scheme: document.upstream.scheme,
            authority: document.upstream.authority.clone(),
            base_path: document.upstream.base_path.clone(),
            ca: document.upstream_tls.ca.clone(),
            keepalive: document.upstream_keepalive.0,
        },
        forwarding: Forwarding {
            preserve_host: document.preserve_host,
            trusted_proxies: document.trusted_proxies.iter().map(|network| network.0).collect(),
        },
        store: document.store.0.clone(),
        cache: document.cache.as_ref().map(|url| url.0.clone()),
        scope,
        namespace: document.namespace.clone(),
        record_format: document.record_format.and_then(RecordFormat::from_number),
        secret,
        admin: Admin { listen: document.admin.listen.0, tokens },
        routes,
        reconciling: reconciling::times(document),
        receipts,
        expiry: document.defaults.expire.0,
        public_url: document.public_url.as_ref().map(|url| url.0.clone()).unwrap_or_default(),
        tls,
        limits,
        telemetry: Telemetry {
            logs: document.logs.format.0,
            access: document.logs.access,
            level: document.logs.level.0.clone(),
            otlp: document.traces.otlp.as_ref().map(|url| url.0.clone()),
        },
    })
}

/// Reports each part of the scope that nothing verifies. The library refuses them too, but without the line of the file.
fn unverified(document: &Document, findings: &mut Findings<'_>) {
    if document.scope_verified {
        return;
    }
    for (index, ScopePart(rule)) in document.scope.iter().enumerate() {
        let (believes, front) = match rule {
            ScopeRule::Header(name) => (
                "takes what a client sends, so that one client could get the stored answers of another, and occupy its keys",
                format!("authenticates every caller and sets {name}, or removes it"),
            ),
            ScopeRule::BasicUser => (
                "does not verify the password, so that a wrong one would get the stored answers of the right one, and could \
                 occupy its keys",
                "checks every password".to_owned(),
            ),
            ScopeRule::Authorization | ScopeRule::Fixed(_) => continue,
        };
        let path = Path::of("scope").at(index);
        let text = format!(
            "`{path}` = \"{rule}\" {believes}: put a proxy in front that {front}, and write scope_verified = true; or use \
             \"authorization\", which needs no proxy"
        );
        findings.at(&path, text);
    }
}

fn identity(document: &Document, findings: &mut Findings<'_>) {
    if Identity::in_namespace(&document.namespace).scoped_by("any").is_err() {
        let text = format!("`namespace` must have 1 to {} bytes: write a short name", Identity::MAX_BYTES);
        findings.at(&Path::of("namespace"), text);
    }
    if let Some(number) = document.record_format.filter(|number| RecordFormat::from_number(*number).is_none())
    {
        let text = format!("`record_format` = {number} is no format of this version: write 1 or 2");
        findings.at(&Path::of("record_format"), text);
    }
    let scope = document.scope.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if scope.len() > Identity::MAX_BYTES {
        let text =
            format!("`scope` must have at most {} bytes altogether: use fewer parts", Identity::MAX_BYTES);
        findings.at(&Path::of("scope"), text);
    }
}

fn listeners(document: &Document, findings: &mut Findings<'_>) {
    let (clients, operators) = (document.listen.0, document.admin.listen.0);
    if overlap(clients, operators) {
        let text = format!(
            "`listen` = \"{clients}\" and `admin.listen` = \"{operators}\" are the same place: give each its own port"
        );
        findings.at_either(&Path::of("listen"), &Path::of("admin.listen"), text);
    }
    let upstream = addresses(&document.upstream);
    for (name, own) in [("listen", clients), ("admin.listen", operators)] {
        if upstream.iter().any(|address| is_at(own, *address)) {
            let text = format!(
                "`upstream` = \"{}\" is this gateway itself, at `{name}` = \"{own}\": name where the API listens",
                document.upstream
            );
            findings.at_either(&Path::of("upstream"), &Path::of(name), text);
        }
    }
}

/// The addresses of an upstream, as far as they are known without DNS.
fn addresses(upstream: &UpstreamUrl) -> Vec<SocketAddr> {
    let host = upstream.authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = upstream.authority.port_u16().unwrap_or(match upstream.scheme {
        Scheme::Http => 80,
        Scheme::Https => 443,
    });
    let ips: Vec<IpAddr> = match host {
        "localhost" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        _ => host.parse().into_iter().collect(),
    };
    ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}

/// Whether an address reaches a listener. A listener on every address is reached on loopback; which other addresses are this
/// machine's is not known here, and the same port of another machine is a different service.
fn is_at(listener: SocketAddr, address: SocketAddr) -> bool {
    let everywhere = listener.ip().is_unspecified() && listener.is_ipv4() == address.is_ipv4();
    let own = everywhere && (address.ip().is_loopback() || address.ip().is_unspecified());
    listener.port() == address.port() && (own || listener.ip() == address.ip())
}

/// Whether two listeners would bind the same port. Port 0 is a different one each time.
fn overlap(first: SocketAddr, second: SocketAddr) -> bool {
    let everywhere = first.ip().is_unspecified() || second.ip().is_unspecified();
    first.port() != 0 && first.port() == second.port() && (everywhere || first.ip() == second.ip())
}

fn secret(
    document: &Document,
    variables: &BTreeMap<String, String>,
    findings: &mut Findings<'_>,
) -> Option<Secret> {
    let found = document
        .secret
        .as_ref()?
        .fetch(variables)
        .and_then(|secret| Secret::new(secret).map_err(|error| format!("is too short: {error}")));
    found.map_err(|reason| findings.at(&Path::of("secret"), format!("`secret` {reason}"))).ok()
}

/// Shorter ones could be guessed over the network.
const SHORTEST_TOKEN_BYTES: usize = 16;

fn tokens(
    document: &Document,
    variables: &BTreeMap<String, String>,
    findings: &mut Findings<'_>,
) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (index, given) in document.admin.tokens.iter().enumerate() {
        let path = Path::of("admin.tokens").at(index);
        let token = match given.token.fetch(variables) {
            Ok(token) => token,
            Err(reason) => {
                let path = path.key("token");
                findings.at(&path, format!("`{path}` {reason}"));
                continue;
            }
        };
        if token.len() < SHORTEST_TOKEN_BYTES || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let text = format!(
                "`{}` must have at least {SHORTEST_TOKEN_BYTES} visible ASCII characters and no spaces: generate one, \
                 for example with `openssl rand -hex 32`",
                path.key("token")
            );
            findings.at(&path.key("token"), text);
        }
        if given.name.is_empty() {
            findings.at(&path.key("name"), format!("`{path}.name` is empty: name whose token it is"));
        }
        if tokens.iter().any(|other| other.name == given.name) {
            let text = format!("`{path}.name` is {:?} again: each token needs a name of its own", given.name);
            findings.at(&path.key("name"), text);
        }
        if tokens.iter().any(|other| other.token == token) {
            let text = format!("`{path}.token` is the same as another's: each needs its own");
            findings.at(&path.key("token"), text);
        }
        tokens.push(Token { name: given.name.clone(), role: given.role.0, token });
    }
    tokens
}

fn tls(document: &Document, findings: &mut Findings<'_>) -> Option<Tls> {
    let (certificate, key) = (Path::of("tls.certificate"), Path::of("tls.key"));
    match (&document.tls.certificate, &document.tls.key) {
        (Some(certificate), Some(key)) => Some(Tls { certificate: certificate.clone(), key: key.clone() }),
        (Some(_), None) => {
            findings.at(
                &certificate,
                "`tls.certificate` needs `tls.key`: name the PEM file of its private key".to_owned(),
            );
            None
        }
        (None, Some(_)) => {
            findings.at(
                &key,
                "`tls.key` needs `tls.certificate`: name the PEM file of the certificate".to_owned(),
            );
            None
        }
        (None, None) => None,
    }
}

fn upstream_tls(document: &Document, findings: &mut Findings<'_>) {
    if document.upstream_tls.ca.is_some() && document.upstream.scheme == Scheme::Http {
        let text = format!(
            "`upstream_tls.ca` means nothing while `upstream` is \"{}\": write https://, or remove it",
            document.upstream
        );
        findings.at(&Path::of("upstream_tls.ca"), text);
    }
}

fn limits(document: &Document, findings: &mut Findings<'_>) -> Limits {
    let given = &document.limits;
    let path = |name: &str| Path::of("limits").key(name);
    for (name, value) in [
        ("connections", given.connections),
        ("upstream_connections", given.upstream_connections),
        ("header_bytes", given.header_bytes.bytes()),
        ("url_bytes", given.url_bytes.bytes()),
        ("buffered_bytes", given.buffered_bytes.bytes()),
    ] {
        if value == 0 {
            let text = format!("`limits.{name}` is 0, which would let nothing through: write at least 1");
            findings.at(&path(name), text);
        }
    }
    for (name, Time(value)) in [
        ("header_timeout", given.header_timeout),
        ("idle_timeout", given.idle_timeout),
        ("body_timeout", given.body_timeout),
        ("connect_timeout", given.connect_timeout),
        ("response_timeout", given.response_timeout),
    ] {
        if value.is_zero() {
            let text = format!("`limits.{name}` is 0, so no request could be in time: write at least \"1s\"");
            findings.at(&path(name), text);
        }
    }
    Limits {
        connections: given.connections,
        header_bytes: given.header_bytes.bytes(),
        url_bytes: given.url_bytes.bytes(),
        header_timeout: given.header_timeout.0,
        idle_timeout: given.idle_timeout.0,
        body_timeout: given.body_timeout.0,
        buffered_bytes: given.buffered_bytes.bytes(),
        upstream_connections: given.upstream_connections,
        connect_timeout: given.connect_timeout.0,
        upstream_idle: given.upstream_idle.0,
        response_timeout: given.response_timeout.0,
        cache_bytes: given.cache_bytes.0,
        drain: given.drain.0,
        reply_bytes: routes::reply_bytes(document),
    }
}
