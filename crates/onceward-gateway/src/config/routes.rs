//! The policy of every route: what it says, what it inherits, and whether that makes sense.

use std::time::Duration;

use onceward::http::{self, Policy, Routes};
use onceward::{Claim, Key, OnLapse, Profile};

use super::document::Document;
use super::pattern::Pattern;
use super::resolve::Findings;
use super::rules::{self, Route, Rules};
use super::tree::Path;
use super::values::Time;

/// Room for the headers of an answer beside its body.
pub(super) const HEADERS_BYTES: usize = 1 << 20;

/// What the engine must be able to keep: the largest answer of any route, with its headers.
pub(super) fn reply_bytes(document: &Document) -> usize {
    let rules = document.routes.iter().map(|route| route.rules(&document.defaults));
    let sizes = rules.chain([document.defaults.rules()]).map(|rules| rules.max_response_body.bytes());
    sizes.max().unwrap_or_default().saturating_add(HEADERS_BYTES)
}

/// The table of routes. What is wrong goes to the findings; the error is what only the layer knows.
pub(super) fn build(document: &Document, findings: &mut Findings<'_>) -> Result<Routes, String> {
    let defaults = Place { own: Path::of("defaults"), inherited: None };
    let buffered = document.limits.buffered_bytes.bytes();
    let policy = policy(&document.defaults.rules(), buffered, &defaults, findings);
    let mut routes = Routes::new(policy).map_err(|error| error.to_string());
    let mut before: Vec<(usize, Pattern)> = Vec::new();
    for (index, route) in document.routes.iter().enumerate() {
        let place = Place { own: Path::of("routes").at(index), inherited: Some(Path::of("defaults")) };
        let rules = route.rules(&document.defaults);
        match Pattern::of(route, &rules) {
            Ok(pattern) => {
                if let Some((earlier, _)) = before.iter().find(|(_, other)| other.covers(&pattern)) {
                    let text = format!(
                        "`{}` {:?} can never match, because `{}` {:?} comes first and takes the same requests: put it \
                         before that one, or remove it",
                        place.own,
                        route.pattern,
                        Path::of("routes").at(*earlier),
                        document.routes.get(*earlier).map(|route| route.pattern.as_str()).unwrap_or_default(),
                    );
                    findings.at(&place.own.key("match"), text);
                }
                before.push((index, pattern));
            }
            Err(rule) => {
                let text = format!(
                    "`{}.match` {:?} {rule}: write it like \"POST /payments/{{id}}\", or \"/payments/*\" for every method \
                     of `methods`",
                    place.own, route.pattern
                );
                findings.at(&place.own.key("match"), text);
            }
        }
        said_in_vain(route, &place.own, findings);
        routes = match (routes, route.protect) {
            (Ok(routes), Some(false)) => {
                routes.unprotected(&route.pattern).map_err(|error| error.to_string())
            }
            (Ok(routes), Some(true) | None) => {
                let policy = self::policy(&rules, buffered, &place, findings);
                routes.route(&route.pattern, policy).map_err(|error| error.to_string())
            }
            (Err(error), _) => Err(error),
        };
    }
    routes
}

/// Keys of a route that could never count.
fn said_in_vain(route: &Route, own: &Path, findings: &mut Findings<'_>) {
    let said = route.said();
    if let (Some(false), Some(first)) = (route.protect, said.first()) {
        let text = format!(
            "`{own}` has protect = false, so `{first}` means nothing: remove it, or remove protect = false"
        );
        findings.at(&own.key(first), text);
    }
    if let (true, Some((method, _))) = (said.contains(&"methods"), route.pattern.split_once(' ')) {
        let text = format!(
            "`{own}.methods` means nothing, because its match already names {method}: remove one of the two"
        );
        findings.at(&own.key("methods"), text);
    }
}

/// Where a route's keys are found.
struct Place {
    own: Path,
    inherited: Option<Path>,
}

impl Place {
    /// The key as this route says it, or as it inherits it.
    fn path(&self, key: &str, findings: &Findings<'_>) -> Path {
        let own = self.own.key(key);
        match &self.inherited {
            Some(inherited) if !findings.has(&own) => inherited.key(key),
            Some(_) | None => own,
        }
    }
}

/// Checks each rule where its origin is known, and makes the layer's policy from it.
fn policy(rules: &Rules, buffered: usize, place: &Place, findings: &mut Findings<'_>) -> Policy {
    times(rules, place, findings);
    statuses(rules, place, findings);
    if rules.max_request_body.bytes() > buffered {
        let (first, second) = (place.path("max_request_body", findings), Path::of("limits.buffered_bytes"));
        let text = format!(
            "`{second}` = {buffered} bytes is less than `{first}` = {} bytes, so that such a body could never be held: raise it, \
             or lower that",
            rules.max_request_body.bytes()
        );
        findings.at_either(&first, &second, text);
    }
    if rules.store_down == rules::StoreDown::Pass && rules.key == rules::KeyRule::Required {
        let (first, second) = (place.path("store_down", findings), place.path("key", findings));
        let text = format!(
            "`{first}` = \"pass\" would break the promise of `{second}` = \"required\": write store_down = \"reject\", or \
             key = \"optional\""
        );
        findings.at_either(&first, &second, text);
    }
    if !(1..=Key::MAX_BYTES).contains(&rules.min_key_length) {
        let path = place.path("min_key_length", findings);
        let text =
            format!("`{path}` is {}, but must lie between 1 and {}", rules.min_key_length, Key::MAX_BYTES);
        findings.at(&path, text);
    }
    Policy::new()
        .mode(match rules.mode {
            rules::Mode::Enforce => http::Mode::Enforce,
            rules::Mode::Observe => http::Mode::Observe,
        })
        .methods(rules.methods.iter().map(|method| method.0.clone()).collect::<Vec<_>>())
        .key(match rules.key {
            rules::KeyRule::Required => http::KeyRule::Required,
            rules::KeyRule::Optional => http::KeyRule::Optional,
        })
        .syntax(match rules.syntax {
            rules::Syntax::Lenient => onceward::key::Syntax::Lenient,
            rules::Syntax::Strict => onceward::key::Syntax::Strict,
        })
        .min_key_length(rules.min_key_length)
        .flavor(match rules.flavor {
            rules::Flavor::Ietf => http::Flavor::Ietf,
            rules::Flavor::Stripe => http::Flavor::Stripe,
        })
        .in_progress(match rules.in_progress {
            rules::InProgress::Conflict => http::InProgress::Conflict,
            rules::InProgress::Wait => http::InProgress::Wait,
            rules::InProgress::Accepted => http::InProgress::Accepted,
        })
        .wait(rules.wait.0)
        .timeout(rules.timeout.0)
        .respond_within(rules.respond_within.0)
        .lease(rules.lease.0)
        .on_lapse(match rules.on_lapse {
            rules::OnLapse::Unknown => OnLapse::Unknown,
            rules::OnLapse::Resume => OnLapse::RESUME,
        })
        .retention(rules.retention.0)
        .grace(rules.grace.0)
        .store_down(match rules.store_down {
            rules::StoreDown::Reject => http::StoreDown::Reject,
            rules::StoreDown::Pass => http::StoreDown::Pass,
        })
        .retryable(rules.retryable.clone())
        .unknown(rules.unknown.clone())
        .max_request_body(rules.max_request_body.bytes())
        .max_response_body(rules.max_response_body.bytes())
        .close_delimited(match rules.close_delimited {
            rules::CloseDelimited::Proven => http::CloseDelimited::Proven,
            rules::CloseDelimited::Accept => http::CloseDelimited::Accept,
            rules::CloseDelimited::Unknown => http::CloseDelimited::Unknown,
        })
        .fingerprint(fingerprint(rules, place, findings))
        .response_version(rules.response_version)
        .set_cookie(match rules.set_cookie {
            rules::SetCookie::Drop => http::SetCookie::Drop,
            rules::SetCookie::Allow => http::SetCookie::Allow,
        })
}

fn times(rules: &Rules, place: &Place, findings: &mut Findings<'_>) {
    for (key, Time(value), least, most) in [
        ("lease", rules.lease, Claim::MIN_LEASE, Claim::MAX_LEASE),
        ("retention", rules.retention, Claim::MIN_RETENTION, Claim::MAX_RETENTION),
        ("grace", rules.grace, Duration::ZERO, Claim::MAX_RETENTION),
        ("wait", rules.wait, Duration::ZERO, Claim::MAX_LEASE),
        ("timeout", rules.timeout, Claim::MIN_TIMEOUT, Claim::MAX_RETENTION),
        ("respond_within", rules.respond_within, Claim::MIN_TIMEOUT, Claim::MAX_RETENTION),
    ] {
        if value < least || value > most {
            let path = place.path(key, findings);
            let (value, least, most) = (Time(value), Time(least), Time(most));
            findings.at(
                &path,
                format!("`{path}` is \"{value}\", but must lie between \"{least}\" and \"{most}\""),
            );
        }
    }
    if rules.in_progress == rules::InProgress::Wait && rules.wait.0 < Policy::MIN_WAIT {
        let (first, wait) = (place.path("in_progress", findings), place.path("wait", findings));
        let text = format!(
            "`{first}` = \"wait\" with `{wait}` = \"{}\" waits for nothing: write wait = \"10s\", or in_progress = \
             \"conflict\"",
            rules.wait
        );
        findings.at_either(&first, &wait, text);
    }
}

fn statuses(rules: &Rules, place: &Place, findings: &mut Findings<'_>) {
    let (retryable, unknown) = (place.path("retryable", findings), place.path("unknown", findings));
    for (path, list) in [(&retryable, &rules.retryable), (&unknown, &rules.unknown)] {
        for status in list.iter().filter(|status| !(200..=599).contains(*status)) {
            findings.at(path, format!("`{path}` has {status}, which is no final status: use 200 to 599"));
        }
    }
    for status in rules.retryable.iter().filter(|status| (200..400).contains(*status)) {
        let text = format!(
            "`{retryable}` has {status}, which does not prove that nothing was done: each retry would do it again. Use 400 \
             to 599"
        );
        findings.at(&retryable, text);
    }
    for status in rules.retryable.iter().filter(|status| rules.unknown.contains(status)) {
        let text = format!(
            "{status} is in both `{retryable}` and `{unknown}`, but can mean only one: remove it from one of them"
        );
        findings.at_either(&retryable, &unknown, text);
    }
}

/// Without a secret: which one is used is known only when the store is open.
fn fingerprint(rules: &Rules, place: &Place, findings: &mut Findings<'_>) -> Profile {
    let given = &rules.fingerprint;
    match Profile::builder().headers(given.headers.clone()).ignore(given.ignore.clone()).build() {
        Ok(profile) => profile,
        Err(error) => {
            let path = place.path("fingerprint", findings);
            findings.at(&path, format!("`{path}` is wrong: {error}"));
            Profile::default()
        }
    }
}
