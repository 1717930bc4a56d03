//! The published pages: the policy of every route, and the state of a caller's own key.

use std::time::{Duration, UNIX_EPOCH};

use ::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER, VARY};
use ::http::{HeaderMap, HeaderValue, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::body::WholeBody;
use super::list_header::members;
use super::percent::percent_encode;
use super::policy::{Flavor, InProgress, KeyRule, Mode, Policy, SetCookie, StoreDown};
use super::problem::{NextAction, Problem, whole_seconds};
use super::routes::Routes;
use crate::event::Moment;
use crate::{Key, OperationId, Record, Timestamp, key::Syntax, record::State};

/// Where the policy is published.
pub(super) const PAGE: &str = "/.well-known/idempotency";
/// Where the state of a key is published; the key follows.
pub const STATUS: &str = "/.well-known/idempotency/status/";

/// How soon to ask again while the work is being done: a look-up of one record costs little.
const POLL: Duration = Duration::from_secs(1);

/// The base is in every problem, some of which are stored.
const BASE_BYTES_MAX: usize = 255;

/// The URLs of the published pages, as clients see them.
#[derive(Debug, Clone)]
pub(super) struct Links {
    base: Box<str>,
    described_by: HeaderValue,
}

impl Links {
    /// `base` is what clients see before `/.well-known`; empty where no proxy changes origin or path.
    pub(super) fn new(base: &str) -> Option<Self> {
        let base = base.trim_end_matches('/');
        if base.len() > BASE_BYTES_MAX || base.contains(['<', '>', '"', '#', '?']) {
            return None;
        }
        let described_by = HeaderValue::try_from(format!("<{base}{PAGE}>; rel=\"describedby\"")).ok()?;
        Some(Self { base: base.into(), described_by })
    }

    pub(super) fn described_by(&self) -> HeaderValue {
        self.described_by.clone()
    }

    pub(super) fn problem_type(&self, code: &str) -> String {
        format!("{}{PAGE}#{code}", self.base)
    }

    pub(super) fn status_of(&self, key: &Key) -> String {
        format!("{}{STATUS}{}", self.base, percent_encode(key.as_str()))
    }
}

/// The policy of every route, as JSON or HTML.
pub(super) fn page(routes: &Routes, links: &Links, headers: &HeaderMap) -> Response<WholeBody> {
    let html = wants_html(headers);
    let (text, kind) = if html {
        (as_html(routes), "text/html; charset=utf-8")
    } else {
        (as_json(routes, links).to_string(), "application/json")
    };
    let mut response = Response::new(WholeBody::from(Bytes::from(text)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    if html {
        let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'";
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    }
    response
}

/// The state of a key. Its answer is not shown.
pub(super) fn status(record: &Record, operation: OperationId, now: Moment) -> Response<WholeBody> {
    let mut body = json!({ "state": record.state.name(), "operation": operation.to_string() });
    if let Some(expires) = record.published_expiry() {
        body["expires_at"] = rfc3339(expires).into();
    }
    let mut retry_after = None;
    match &record.state {
        State::Completed { reply, .. } => {
            body["status"] = reply.status.into();
            body["response_version"] = reply.version.into();
        }
        State::InProgress { .. } => {
            body["next_action"] = NextAction::Wait.name().into();
            retry_after = Some(POLL);
        }
        // What a retry of the request would be told.
        State::Unknown { .. } => {
            let details = Problem::of(record.refusal(now)).details(Flavor::Ietf);
            body["next_action"] = details.next_action.name().into();
            retry_after = details.retry_after;
        }
        State::FailedRetryable { .. } | State::Expired { .. } => {}
    }
    let mut response = Response::new(WholeBody::from(Bytes::from(body.to_string())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(after) = retry_after {
        headers.insert(RETRY_AFTER, whole_seconds(after).into());
    }
    response
}

/// Whether `Accept` prefers HTML, as a browser's does. A client that accepts both alike gets JSON.
fn wants_html(headers: &HeaderMap) -> bool {
    let weight = |wanted: &str| {
        members(headers, &ACCEPT)
            .filter_map(|member| {
                let mut words = member.split(';').map(str::trim);
                words.next().filter(|kind| kind.eq_ignore_ascii_case(wanted))?;
                let quality = words.find_map(|word| word.strip_prefix("q=").or(word.strip_prefix("Q=")));
                Some(quality.map_or(1.0, |quality| quality.parse::<f32>().unwrap_or(0.0)))
            })
            .fold(0.0_f32, f32::max)
    };
    weight("text/html") > weight("application/json")
}

fn as_json(routes: &Routes, links: &Links) -> Value {
    let routes: Vec<Value> = routes
        .policies()
        .map(|(name, method, policy)| {
            let methods: Vec<&str> = match method {
                Some(method) => vec![method.as_str()],
                None => policy.methods.iter().map(::http::Method::as_str).collect(),
            };
            let mut route = settings(policy);
            route["match"] = name.into();
            route["methods"] = methods.into();
            route
        })
        .collect();
    json!({
        "specification": "draft-ietf-httpapi-idempotency-key-header-07",
        "header": "Idempotency-Key",
        "status": format!("{}{STATUS}{{key}}", links.base),
        "routes": routes,
    })
}

/// The settings that a client must know. Lease, timeout and the like are internal.
fn settings(policy: &Policy) -> Value {
    json!({
        "mode": match policy.mode {
            Mode::Enforce => "enforce",
            Mode::Observe => "observe",
        },
        "key": match policy.key {
            KeyRule::Required => "required",
            KeyRule::Optional => "optional",
        },
        "syntax": match policy.syntax {
            Syntax::Lenient => "lenient",
            Syntax::Strict => "strict",
        },
        "min_key_length": policy.min_key_length,
        "max_key_length": Key::MAX_BYTES,
        "flavor": match policy.flavor {
            Flavor::Ietf => "ietf",
            Flavor::Stripe => "stripe",
        },
        "in_progress": match policy.in_progress {
            InProgress::Conflict => "conflict",
            InProgress::Wait => "wait",
            InProgress::Accepted => "accepted",
        },
        "wait_seconds": policy.wait.as_secs(),
        "retention_seconds": policy.retention.as_secs(),
        "store_down": match policy.store_down {
            StoreDown::Reject => "reject",
            StoreDown::Pass => "pass",
        },
        "set_cookie": match policy.set_cookie {
            SetCookie::Drop => "drop",
            SetCookie::Allow => "allow",
        },
        "retryable": policy.retryable,
        "unknown": policy.unknown,
        "max_request_body": policy.max_request_body,
        "max_response_body": policy.max_response_body,
        "fingerprint": {
            "headers": policy.fingerprint.headers().collect::<Vec<_>>(),
            "ignore": policy.fingerprint.ignored().collect::<Vec<_>>(),
        },
        "response_version": policy.response_version,
    })
}

/// The last second that RFC 3339 can write, at the end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A time in RFC 3339, in UTC, to the second.
pub(super) fn rfc3339(at: Timestamp) -> String {
    let seconds = Duration::from_secs((at.as_micros() / 1_000_000).min(LAST_SECOND));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + seconds).to_string()
}

/// Escapes the five characters that have a meaning in HTML.
fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn as_html(routes: &Routes) -> String {
    let rows: String = routes
        .policies()
        .map(|(name, _, policy)| {
            let settings = settings(policy);
            let cell = |name: &str| escape_html(settings[name].as_str().unwrap_or_default());
            format!(
                "<tr><td><code>{}</code><td>{}<td>{} to {} characters, {}<td>{}<td>{}<td>{} bytes\n",
                escape_html(name),
                cell("key"),
                policy.min_key_length,
                Key::MAX_BYTES,
                cell("syntax"),
                cell("in_progress"),
                humantime::format_duration(Duration::from_secs(policy.retention.as_secs())),
                policy.max_request_body,
            )
        })
        .collect();
    format!("{HEAD}{rows}{TAIL}")
}

const HEAD: &str = r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>How to retry safely</title>
<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}th,td{text-align:left;padding:.25rem .75rem;border-bottom:1px solid #ccc}</style>
<h1>How to retry safely</h1>
<p>Send an <code>Idempotency-Key</code> header, such as a random UUID, with a request that must happen once, and the
same key with every retry of it. The work is done once; every retry gets the first answer, marked
<code>Idempotency-Replayed: true</code>. A problem tells in <code>next_action</code> what to do.</p>
<table>
<tr><th>route<th>key<th>its form<th>while it runs<th>kept for<th>largest body
"#;

const TAIL: &str = r#"</table>
<dl>
<dt id="idempotency_method_invalid"><code>idempotency_method_invalid</code><dd>Nothing was done: write the method in capital letters.
<dt id="idempotency_key_missing"><code>idempotency_key_missing</code><dd>The route needs a key.
<dt id="idempotency_key_invalid"><code>idempotency_key_invalid</code><dd>The key is malformed; the detail says where.
<dt id="idempotency_scope_missing"><code>idempotency_scope_missing</code><dd>It cannot be told whose key it is.
<dt id="idempotency_key_reused_with_different_payload"><code>idempotency_key_reused_with_different_payload</code>
<dd>The key belongs to another request: use a new one.
<dt id="idempotency_key_in_progress"><code>idempotency_key_in_progress</code><dd>The first request still runs: ask again.
<dt id="idempotency_outcome_unknown"><code>idempotency_outcome_unknown</code>
<dd>It is not known yet whether the request was executed. It is not executed again by itself; never send it under a new key.
<dt id="idempotency_store_unavailable"><code>idempotency_store_unavailable</code><dd>This try did nothing: send it again.
<dt id="idempotency_not_executed"><code>idempotency_not_executed</code><dd>The service failed and committed nothing: send it again.
<dt id="idempotency_upstream_unreachable"><code>idempotency_upstream_unreachable</code><dd>Nothing was done: send it again.
<dt id="idempotency_response_too_large"><code>idempotency_response_too_large</code>
<dd>It was done, but the answer could not be kept.
<dt id="idempotency_encoding_not_accepted"><code>idempotency_encoding_not_accepted</code>
<dd>It was done: ask with the same key and an <code>Accept-Encoding</code> that accepts the answer's.
<dt id="idempotency_request_too_large"><code>idempotency_request_too_large</code><dd>Nothing was done: the body is too large.
<dt id="idempotency_request_broken"><code>idempotency_request_broken</code><dd>Nothing was done: the body broke off, or took too long.
<dt id="idempotency_key_not_found"><code>idempotency_key_not_found</code><dd>Nothing is known of the key.
</dl>
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_to_the_second_and_the_end_of_time_is_writable() {
        assert_eq!(rfc3339(Timestamp::from_micros(1_800_000_000_900_000)), "2027-01-15T08:00:00Z");
        assert_eq!(rfc3339(Timestamp::NEVER), "9999-12-31T23:59:59Z");
    }
}
