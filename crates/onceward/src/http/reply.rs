//! From an answer to the stored reply, and from the stored reply to an answer.

use ::http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, DATE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE,
    TE, TRANSFER_ENCODING, UPGRADE, VARY,
};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, response};
use bytes::Bytes;

use super::body::WholeBody;
use super::classify::Class;
use super::header::{IDEMPOTENCY_EXPIRES, IDEMPOTENCY_REPLAYED, IDEMPOTENT_REPLAYED, OPERATION, OUTCOME};
use super::list_header::members;
use super::policy::{Flavor, Policy, SetCookie};
use super::wellknown::rfc3339;
use crate::{Reply, Timestamp};

/// Headers about one connection, and not about the answer.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];
/// Headers that the server writes itself, from the body: a stored copy could contradict it.
const FRAMING: [HeaderName; 2] = [CONTENT_LENGTH, TRANSFER_ENCODING];
/// Trailers are stored among the headers, under names that no header can have.
const TRAILER_MARK: &str = ":trailer:";

/// Divides an answer into the stored reply and the first caller's answer, which also has the headers that are not stored.
/// Every value of a repeated header is kept, in order.
pub(super) fn divide(
    policy: &Policy,
    parts: response::Parts,
    body: WholeBody,
) -> (Reply, Response<WholeBody>) {
    let named: Vec<String> = members(&parts.headers, &CONNECTION).map(str::to_ascii_lowercase).collect();
    let count = parts.headers.len();
    // Two more, for `Idempotency-Expires` and `Onceward-Operation`. Capacity counts names, and has a maximum that the number of
    // values may exceed.
    let first = HeaderMap::try_with_capacity(parts.headers.keys_len() + 2);
    let (mut first, mut unstored) = (first.unwrap_or_default(), Vec::new());
    let mut headers = Vec::with_capacity(count);
    for (name, value) in &parts.headers {
        // Every answer gets the operation's name from the record.
        if *name == OUTCOME || *name == OPERATION || FRAMING.contains(name) {
            continue;
        }
        let is_unstored = !may_be_replayed(policy, name) || named.iter().any(|named| named == name.as_str());
        if is_unstored {
            unstored.push((name.clone(), value.clone()));
        } else {
            headers.push((name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())));
            first.append(name.clone(), value.clone());
        }
    }
    // After the stored ones, as on a replay, where such headers are added to them.
    for (name, value) in unstored {
        first.append(name, value);
    }
    for (name, value) in body.trailers.iter().flatten() {
        headers.push((format!("{TRAILER_MARK}{name}"), Bytes::copy_from_slice(value.as_bytes())));
    }
    let status = parts.status.as_u16();
    // The body is a slice of the connection's buffer. Without a copy, the buffer would stay in memory as long as the reply.
    let data = Bytes::copy_from_slice(&body.data);
    // The first caller shares the copy, because it may have to wait for a slow store.
    let mut response = bare(parts.status, WholeBody { data: data.clone(), ..body });
    *response.headers_mut() = first;
    *response.extensions_mut() = parts.extensions;
    (Reply { status, headers, body: data, version: policy.response_version }, response)
}

/// Whether every caller gets a header, and not only the first.
fn may_be_replayed(policy: &Policy, name: &HeaderName) -> bool {
    !HOP_BY_HOP.contains(name)
        && *name != DATE
        && ![IDEMPOTENCY_EXPIRES, IDEMPOTENCY_REPLAYED, IDEMPOTENT_REPLAYED].contains(name)
        && (*name != SET_COOKIE || policy.set_cookie == SetCookie::Allow)
}

/// The reply for a problem that is stored as the answer.
pub(super) fn stored(policy: &Policy, problem: Response<WholeBody>) -> Reply {
    let (parts, body) = problem.into_parts();
    // `divide` drops `Onceward-Outcome`. A problem's own is kept: an outer Onceward reads it on every replay.
    let outcome = parts.headers.get(OUTCOME).cloned();
    let (mut reply, _) = divide(policy, parts, body);
    let outcome =
        outcome.map(|value| (OUTCOME.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())));
    reply.headers.extend(outcome);
    reply
}

/// The answer for the caller whose request was executed.
pub(super) fn executed(mut response: Response<WholeBody>, expires_at: Timestamp) -> Response<WholeBody> {
    response.headers_mut().insert(IDEMPOTENCY_EXPIRES, expiry(expires_at));
    response
}

/// The answer for every other caller.
pub(super) fn replayed(policy: &Policy, reply: &Reply, expires_at: Timestamp) -> Response<WholeBody> {
    let mut response = restore(policy, reply);
    let headers = response.headers_mut();
    headers.insert(IDEMPOTENCY_EXPIRES, expiry(expires_at));
    headers.insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    // A client that does not accept the coding gets a 406 instead.
    let varies = |member: &str| member == "*" || member.eq_ignore_ascii_case("accept-encoding");
    if headers.contains_key(CONTENT_ENCODING) && !members(headers, &VARY).any(varies) {
        headers.append(VARY, HeaderValue::from_static("accept-encoding"));
    }
    match policy.flavor {
        Flavor::Ietf => {}
        Flavor::Stripe => {
            headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        }
    }
    response
}

/// An answer that proves that nothing was done. It is passed on as it came, and not stored.
pub(super) fn released(mut parts: response::Parts, body: WholeBody) -> Response<WholeBody> {
    FRAMING.iter().for_each(|name| drop(parts.headers.remove(name)));
    // For an outer Onceward.
    parts.headers.insert(OUTCOME, HeaderValue::from_static(Class::Retryable.name()));
    Response::from_parts(parts, body)
}

/// Removes the body of an answer to HEAD, because some servers do not.
pub(super) fn for_method(method: &Method, mut response: Response<WholeBody>) -> Response<WholeBody> {
    if *method == Method::HEAD {
        let body = std::mem::take(response.body_mut());
        if !body.data.is_empty() {
            response.headers_mut().insert(CONTENT_LENGTH, body.data.len().into());
        }
    }
    response
}

/// Makes an answer of a stored reply. Replies also come from operators, webhooks and receipt rows, so what HTTP cannot carry, and
/// what [`divide`] would not have stored, is left out.
pub(super) fn restore(policy: &Policy, reply: &Reply) -> Response<WholeBody> {
    let status = StatusCode::from_u16(reply.status)
        .ok()
        .filter(|status| !status.is_informational())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = bare(status, reply.body.clone().into());
    let mut trailers = HeaderMap::new();
    for (name, value) in &reply.headers {
        let (plain, trailer) = match name.strip_prefix(TRAILER_MARK) {
            Some(name) => (name, true),
            None => (name.as_str(), false),
        };
        let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(plain.as_bytes()), HeaderValue::from_maybe_shared(value.clone()))
        else {
            continue;
        };
        // A stored reply is a completed one, whatever its headers say.
        let contradicts = name == OUTCOME && value != Class::Completed.name();
        if trailer {
            trailers.append(name, value);
        } else if !contradicts && may_be_replayed(policy, &name) && !FRAMING.contains(&name) {
            response.headers_mut().append(name, value);
        }
    }
    if !trailers.is_empty() {
        response.body_mut().trailers = Some(trailers);
    }
    response
}

/// An answer without headers. A status that allows no body has none, whatever was stored.
fn bare(status: StatusCode, mut body: WholeBody) -> Response<WholeBody> {
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        body.data = Bytes::new();
    }
    body.trailers.take_if(|trailers| trailers.is_empty());
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

fn expiry(at: Timestamp) -> HeaderValue {
    // Always a valid header value, so the fallback is not used.
    HeaderValue::try_from(rfc3339(at)).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_waits_to_be_stored_is_in_memory_once() {
        let received = Bytes::from(b"paid".repeat(1000));
        let (parts, body) = Response::new(WholeBody::from(received.clone())).into_parts();
        let (reply, first) = divide(&Policy::new(), parts, body);
        assert_eq!(first.body().data, received);
        assert_eq!(first.body().data.as_ptr(), reply.body.as_ptr());
        assert!(received.is_unique(), "the connection's buffer is still referenced");
    }
}
