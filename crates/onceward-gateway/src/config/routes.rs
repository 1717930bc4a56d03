//! The policy of every route: its own keys, those that it inherits, and whether they are consistent.

use std::time::Duration;

use onceward::http::{InProgress, KeyRule, Policy, Routes, StoreDown};
use onceward::{Claim, Key, Profile};

use super::document::Document;
use super::pattern::Pattern;
use super::rules::{Route, Rules};
use super::tree::Path;
use super::validate::Findings;
use super::values::Time;

/// Room for the headers of an answer besides its body.
pub(super) const HEADERS_BYTES: usize = 1 << 20;

/// The largest reply that the engine must keep: that of any route, with its headers.
pub(super) fn reply_bytes(document: &Document) -> usize {
    let rules = document.routes.iter().map(|route| route.rules(&document.defaults));
    let sizes = rules.chain([document.defaults.rules()]).map(|rules| rules.max_response_body.bytes());
    sizes.max().unwrap_or_default().saturating_add(HEADERS_BYTES)
}

/// The table of routes. Problems go to the findings; the error is one that only the library finds.
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
        without_effect(route, &place.own, findings);
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

/// Reports keys of a route that have no effect.
fn without_effect(route: &Route, own: &Path, findings: &mut Findings<'_>) {
    let set = route.keys_set();
    if let (Some(false), Some(first)) = (route.protect, set.first()) {
        let text = format!(
            "`{own}` has protect = false, so `{first}` means nothing: remove it, or remove protect = false"
        );
        findings.at(&own.key(first), text);
    }
    if let (true, Some((method, _))) = (set.contains(&"methods"), route.pattern.split_once(' ')) {
        let text = format!(
            "`{own}.methods` means nothing, because its match already names {method}: remove one of the two"
        );
        findings.at(&own.key("methods"), text);
    }
}

/// The paths of a route's keys.
struct Place {
    own: Path,
    inherited: Option<Path>,
}

impl Place {
    /// The key of this route, or the one that it inherits.
    fn path(&self, key: &str, findings: &Findings<'_>) -> Path {
        let own = self.own.key(key);
        match &self.inherited {
            Some(inherited) if !findings.has(&own) => inherited.key(key),
            Some(_) | None => own,
        }
    }
}

/// Validates each rule here, where its origin is known, and makes the policy.
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
    if rules.store_down.0 == StoreDown::Pass && rules.key.0 == KeyRule::Required {
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
        .mode(rules.mode.0)
        .methods(rules.methods.iter().map(|method| method.0.clone()).collect::<Vec<_>>())
        .key(rules.key.0)
        .syntax(rules.syntax.0)
        .min_key_length(rules.min_key_length)
        .flavor(rules.flavor.0)
        .in_progress(rules.in_progress.0)
        .wait(rules.wait.0)
        .timeout(rules.timeout.0)
        .respond_within(rules.respond_within.0)
        .lease(rules.lease.0)
        .on_lapse(rules.on_lapse.0.into())
        .receipts(rules.receipts)
        .resume_after(rules.resume_after.map(|Time(time)| time))
        .retention(rules.retention.0)
        .grace(rules.grace.0)
        .store_down(rules.store_down.0)
        .retryable(rules.retryable.clone())
        .unknown(rules.unknown.clone())
        .max_request_body(rules.max_request_body.bytes())
        .max_response_body(rules.max_response_body.bytes())
        .close_delimited(rules.close_delimited.0)
        .fingerprint(fingerprint(rules, place, findings))
        .response_version(rules.response_version)
        .set_cookie(rules.set_cookie.0)
}

fn times(rules: &Rules, place: &Place, findings: &mut Findings<'_>) {
    let resume_after = rules.resume_after.unwrap_or(rules.lease);
    for (key, Time(value), least, most) in [
        ("resume_after", resume_after, Duration::ZERO, Claim::MAX_LEASE),
        (
            "dead_letter_after",
            rules.dead_letter_after,
            onceward::Limits::MIN_PAUSE,
            onceward::Limits::MAX_PATIENCE,
        ),
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
    if rules.in_progress.0 == InProgress::Wait && rules.wait.0 < Policy::MIN_WAIT {
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

/// The profile without a secret, which is known only when the store is open.
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
