//! What is published: the policy of every route, and the state of a caller's own key.

use ::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER, VARY};
use ::http::{HeaderMap, HeaderValue, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::body::Whole;
use super::policy::{Flavor, InProgress, KeyRule, Mode, Policy, SetCookie, StoreDown};
use super::routes::Routes;
use super::text::{escape_html, members, percent_encode, rfc3339};
use crate::{Key, Record, key::Syntax, record::State};

/// Where the policy is published.
pub(super) const PAGE: &str = "/.well-known/idempotency";
/// Where a key's state is told; the key follows.
pub const STATUS: &str = "/.well-known/idempotency/status/";

/// It is in every problem, some of which are stored.
const LONGEST_BASE_BYTES: usize = 255;

/// Where clients find what this layer publishes.
#[derive(Debug, Clone)]
pub(super) struct Links {
    base: Box<str>,
    described_by: HeaderValue,
}

impl Links {
    /// `base` is what clients put before `/.well-known`; nothing where the paths are the same for them.
    pub(super) fn new(base: &str) -> Option<Self> {
        let base = base.trim_end_matches('/');
        if base.len() > LONGEST_BASE_BYTES || base.contains(['<', '>', '"', '#', '?']) {
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

/// The policy of every route, as JSON or as a page.
pub(super) fn page(routes: &Routes, links: &Links, headers: &HeaderMap) -> Response<Whole> {
    let html = wants_html(headers);
    let (text, kind) = if html {
        (as_page(routes), "text/html; charset=utf-8")
    } else {
        (as_json(routes, links).to_string(), "application/json")
    };
    let mut response = Response::new(Whole::from(Bytes::from(text)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    if html {
        let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'";
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    }
    response
}

/// The state of a key, and nothing of its answer.
pub(super) fn status(record: &Record) -> Response<Whole> {
    let mut body = json!({ "state": record.state.name() });
    if let Some(expires) = record.published_expiry() {
        body["expires_at"] = rfc3339(expires).into();
    }
    let mut waiting = false;
    match &record.state {
        State::Completed { reply, .. } => {
            body["status"] = reply.status.into();
            body["response_version"] = reply.version.into();
        }
        State::InProgress { .. } | State::Unknown { .. } => waiting = true,
        State::FailedRetryable { .. } | State::Expired { .. } => {}
    }
    let mut response = Response::new(Whole::from(Bytes::from(body.to_string())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if waiting {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// A browser names `text/html`; whoever takes anything, or likes JSON as much, gets JSON.
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

/// What a client must know. How long an execution may take, or what happens inside, is not its business.
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

fn as_page(routes: &Routes) -> String {
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
                humantime::format_duration(std::time::Duration::from_secs(policy.retention.as_secs())),
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
<dd>Nobody can be sure yet. It is not executed again by itself; never send it under a new key.
<dt id="idempotency_store_unavailable"><code>idempotency_store_unavailable</code><dd>This try did nothing: send it again.
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
