//! Warnings about settings that are allowed and may still be mistakes.

use std::time::Duration;

use onceward::http::{CloseDelimited, Mode, ScopeRule, StoreDown};

use super::document::Document;
use super::problem::Problem;
use super::routes::HEADERS_BYTES;
use super::rules::Rules;
use super::tree::{Node, Path};
use super::values::{ScopePart, Size};
use crate::settings::Scheme;

/// Clients retry after a lunch break, a deployment or a night. A shorter retention protects few of them.
const SHORT_RETENTION: Duration = Duration::from_secs(60 * 60);
/// 128 bits in hexadecimal have 32 digits; a key of less than half of that can be guessed or collide.
const SHARED_KEY_LENGTH: usize = 16;

/// The warnings, each with the origin of the value that it concerns.
pub(super) fn about(document: &Document, tree: &Node) -> Vec<Problem> {
    let mut advice = Vec::new();
    let mut say = |path: &Path, text: String| advice.push(Problem { origin: tree.origin_of(path), text });
    places(document, &mut say);
    scope(document, &mut say);
    route(&document.defaults.rules(), &Path::of("defaults"), tree, document, &mut say);
    for (index, given) in document.routes.iter().enumerate().filter(|(_, route)| route.protect != Some(false))
    {
        route(&given.rules(&document.defaults), &Path::of("routes").at(index), tree, document, &mut say);
    }
    advice
}

fn places(document: &Document, say: &mut impl FnMut(&Path, String)) {
    let (listen, admin) = (document.listen.0, document.admin.listen.0);
    if !listen.ip().is_loopback() && document.tls.certificate.is_none() {
        let text = format!(
            "`listen` = \"{listen}\" can be reached from other machines, in plain text: keep a proxy with TLS in front, or \
             set tls.certificate and tls.key"
        );
        say(&Path::of("listen"), text);
    }
    if !admin.ip().is_loopback() {
        let text = format!(
            "`admin.listen` = \"{admin}\" can be reached from other machines, and tokens travel there in plain text: let \
             it listen on 127.0.0.1, or on a network of its own"
        );
        say(&Path::of("admin.listen"), text);
    }
    if document.upstream.scheme == Scheme::Http && !is_local(document.upstream.authority.host()) {
        let text = format!(
            "`upstream` = \"{}\" is spoken to in plain text: write https:// unless the network between is trusted",
            document.upstream
        );
        say(&Path::of("upstream"), text);
    }
    for (index, network) in document.trusted_proxies.iter().enumerate() {
        if network.0.prefix_len() == 0 {
            let text = format!(
                "`trusted_proxies` has \"{network}\", which is every address: any client can then claim another address, \
                 host and scheme than its own; list only the proxies in front"
            );
            say(&Path::of("trusted_proxies").at(index), text);
        }
    }
    if !document.store.0.is_durable() {
        let text = "`store` = \"memory:\" forgets everything at every restart, so that retries execute again: use it for \
                    tests only, and \"sqlite:PATH\" otherwise";
        say(&Path::of("store"), text.to_owned());
    }
}

fn is_local(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn scope(document: &Document, say: &mut impl FnMut(&Path, String)) {
    for (index, ScopePart(part)) in document.scope.iter().enumerate() {
        let path = Path::of("scope").at(index);
        match part {
            ScopeRule::Header(name) => {
                let text = format!(
                    "`scope_verified` = true relies on the proxy in front for the header {name}: it must set it from a \
                     caller that it has authenticated, and remove the one that a client sends, or clients can pretend to \
                     be each other"
                );
                say(&path, text);
            }
            ScopeRule::BasicUser => {
                let text = "`scope_verified` = true relies on the proxy in front for the user of HTTP Basic: it must check \
                            the password of every request, or a wrong one gets the stored answers of the right one";
                say(&path, text.to_owned());
            }
            ScopeRule::Authorization | ScopeRule::Fixed(_) => {}
        }
        match part {
            ScopeRule::Authorization | ScopeRule::BasicUser if lacks_secret(document) => {
                let text = format!(
                    "`scope` = \"{part}\" without a `secret`: a reader of the store can test guesses about who its \
                     callers are; give a secret before the first start, because it cannot change later"
                );
                say(&path, text);
            }
            ScopeRule::Authorization | ScopeRule::BasicUser | ScopeRule::Header(_) | ScopeRule::Fixed(_) => {}
        }
    }
}

/// A store in a file keeps a secret beside it, and one in memory has no other readers.
fn lacks_secret(document: &Document) -> bool {
    document.store.0.is_shared() && document.secret.is_none()
}

fn route(rules: &Rules, place: &Path, tree: &Node, document: &Document, say: &mut impl FnMut(&Path, String)) {
    // The defaults have their own warning about what a route inherits.
    let own = |key: &str| tree.get(&place.key(key)).is_some();
    if rules.retention.0 < SHORT_RETENTION && own("retention") {
        let text = format!(
            "`{place}.retention` = \"{}\" is short: a retry that comes later executes again; \"24h\" is what clients expect",
            rules.retention
        );
        say(&place.key("retention"), text);
    }
    let shared = document.scope.iter().all(|part| matches!(part.0, ScopeRule::Fixed(_)));
    if shared && rules.min_key_length < SHARED_KEY_LENGTH && own("min_key_length") {
        let text = format!(
            "`{place}.min_key_length` = {} while all callers share one scope: short keys of two callers meet, and one gets \
             the other's answer; write {SHARED_KEY_LENGTH}",
            rules.min_key_length
        );
        say(&place.key("min_key_length"), text);
    }
    if rules.lease.0 <= rules.timeout.0 && (own("lease") || own("timeout")) {
        let text = format!(
            "`{place}` has lease = \"{}\" and timeout = \"{}\": each request that takes long must renew its lease; a lease \
             longer than the timeout spares that",
            rules.lease, rules.timeout
        );
        say(&place.key("lease"), text);
    }
    let written =
        |key: &str| tree.get(&place.key(key)).is_some_and(|node| node.origin != super::Origin::Default);
    if rules.respond_within.0 > rules.timeout.0 && written("respond_within") {
        let text = format!(
            "`{place}.respond_within` = \"{}\" is longer than timeout = \"{}\", so it never counts",
            rules.respond_within, rules.timeout
        );
        say(&place.key("respond_within"), text);
    }
    reduced_protection(rules, place, document, &written, say);
}

/// Settings that give up a part of the protection.
fn reduced_protection(
    rules: &Rules,
    place: &Path,
    document: &Document,
    written: &impl Fn(&str) -> bool,
    say: &mut impl FnMut(&Path, String),
) {
    let mut about = |key: &str, text: String| say(&place.key(key), format!("`{place}.{key}` {text}"));
    if rules.mode.0 == Mode::Observe && written("mode") {
        about("mode", "= \"observe\" protects nothing: each retry executes, and what would have happened is only counted".to_owned());
    }
    if rules.methods.is_empty() && written("methods") {
        about("methods", "= [] protects no method: only routes whose `match` names one, or that list their own, are protected".to_owned());
    }
    if rules.close_delimited.0 == CloseDelimited::Accept && written("close_delimited") {
        about(
            "close_delimited",
            "= \"accept\" takes an answer that was cut off for a whole one, and replays it to every retry: let the service send \
             Content-Length or chunks, and write \"proven\""
                .to_owned(),
        );
    }
    if rules.store_down.0 == StoreDown::Pass && written("store_down") {
        about(
            "store_down",
            "= \"pass\" lets each try execute while the store is away. GET /readyz is 503 then, so that a balancer which asks it \
             sends this gateway no requests at all: let it ask /livez if they shall pass"
                .to_owned(),
        );
    }
    let largest = rules.max_response_body.bytes().saturating_add(HEADERS_BYTES);
    if let Some(most) = document.store.0.record_bytes_max().filter(|most| largest > *most)
        && written("max_response_body")
    {
        about(
            "max_response_body",
            format!(
                "= {} is more than the store keeps: a record has at most {} there, with headers. The outcome of a request whose \
                 answer is larger is unknown, although it was executed; write at most {}",
                rules.max_response_body,
                Size(most as u64),
                Size(most.saturating_sub(HEADERS_BYTES) as u64)
            ),
        );
    }
}
