//! Answers, as they travel and as they are stored.

use ::http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, DATE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE,
    TE, TRANSFER_ENCODING, UPGRADE, VARY,
};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, response};
use bytes::Bytes;

use super::body::Whole;
use super::classify::Class;
use super::header::{IDEMPOTENCY_EXPIRES, IDEMPOTENCY_REPLAYED, IDEMPOTENT_REPLAYED, OUTCOME};
use super::policy::{Flavor, Policy, SetCookie};
use super::text::{members, rfc3339};
use crate::{Reply, Timestamp};

/// What speaks of one connection, not of the answer.
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
/// What the server writes itself, from the body that it is given: a copy could contradict it.
const FRAMING: [HeaderName; 2] = [CONTENT_LENGTH, TRANSFER_ENCODING];
/// Trailers are stored among the headers, under names that no header can have.
const TRAILER_MARK: &str = ":trailer:";

/// Divides an answer into what is stored and what the first caller gets, who gets what is not stored, too. Every value of
/// a repeated header is kept, in order.
pub(super) fn divide(policy: &Policy, parts: response::Parts, body: Whole) -> (Reply, Response<Whole>) {
    let named: Vec<String> = members(&parts.headers, &CONNECTION).map(str::to_ascii_lowercase).collect();
    let count = parts.headers.len();
    // One more, for when it expires. Room is for names, of which there can be only so many; values may be more.
    let first = HeaderMap::try_with_capacity(parts.headers.keys_len() + 1);
    let (mut first, mut unstored) = (first.unwrap_or_default(), Vec::new());
    let mut headers = Vec::with_capacity(count);
    for (name, value) in &parts.headers {
        if *name == OUTCOME || FRAMING.contains(name) {
            continue;
        }
        let passing = HOP_BY_HOP.contains(name)
            || named.iter().any(|named| named == name.as_str())
            || *name == DATE
            || [IDEMPOTENCY_EXPIRES, IDEMPOTENCY_REPLAYED, IDEMPOTENT_REPLAYED].contains(name)
            || (*name == SET_COOKIE && policy.set_cookie == SetCookie::Drop);
        if passing {
            unstored.push((name.clone(), value.clone()));
        } else {
            headers.push((name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())));
            first.append(name.clone(), value.clone());
        }
    }
    // After the others, as if it had been added to a stored answer.
    for (name, value) in unstored {
        first.append(name, value);
    }
    for (name, value) in body.trailers.iter().flatten() {
        headers.push((format!("{TRAILER_MARK}{name}"), Bytes::copy_from_slice(value.as_bytes())));
    }
    let status = parts.status.as_u16();
    // What was read is a slice of the connection's buffer, which would stay in memory for as long as the answer does.
    let data = Bytes::copy_from_slice(&body.data);
    // The first caller may have to wait for a slow store, and shares the copy meanwhile.
    let mut response = whole(parts.status, Whole { data: data.clone(), ..body });
    *response.headers_mut() = first;
    *response.extensions_mut() = parts.extensions;
    (Reply { status, headers, body: data, version: policy.response_version }, response)
}

/// A problem that is stored as the answer.
pub(super) fn stored(policy: &Policy, problem: Response<Whole>) -> Reply {
    let (parts, body) = problem.into_parts();
    // Its own word to an outer Onceward is part of the answer, and stays with it.
    let outcome = parts.headers.get(OUTCOME).cloned();
    let (mut reply, _) = divide(policy, parts, body);
    let outcome = outcome.map(|word| (OUTCOME.as_str().to_owned(), Bytes::copy_from_slice(word.as_bytes())));
    reply.headers.extend(outcome);
    reply
}

/// The answer for the caller whose request was executed.
pub(super) fn executed(mut response: Response<Whole>, expires_at: Timestamp) -> Response<Whole> {
    response.headers_mut().insert(IDEMPOTENCY_EXPIRES, expiry(expires_at));
    response
}

/// The answer for everybody else.
pub(super) fn replayed(reply: &Reply, flavor: Flavor, expires_at: Timestamp) -> Response<Whole> {
    let mut response = restore(reply);
    let headers = response.headers_mut();
    headers.insert(IDEMPOTENCY_EXPIRES, expiry(expires_at));
    headers.insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    // Another client may be told that it does not accept the coding.
    let varies = |member: &str| member == "*" || member.eq_ignore_ascii_case("accept-encoding");
    if headers.contains_key(CONTENT_ENCODING) && !members(headers, &VARY).any(varies) {
        headers.append(VARY, HeaderValue::from_static("accept-encoding"));
    }
    match flavor {
        Flavor::Ietf => {}
        Flavor::Stripe => {
            headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        }
    }
    response
}

/// An answer that proves that nothing was done: it is told as it came, and nothing of it is stored.
pub(super) fn released(mut parts: response::Parts, body: Whole) -> Response<Whole> {
    FRAMING.iter().for_each(|name| drop(parts.headers.remove(name)));
    // This layer's own word now, for an outer Onceward.
    parts.headers.insert(OUTCOME, HeaderValue::from_static(Class::Retryable.name()));
    Response::from_parts(parts, body)
}

/// HEAD is answered as GET would be, without the body. Some servers leave that to whoever answers.
pub(super) fn to(method: &Method, mut response: Response<Whole>) -> Response<Whole> {
    if *method == Method::HEAD {
        let body = std::mem::take(response.body_mut());
        if !body.data.is_empty() {
            response.headers_mut().insert(CONTENT_LENGTH, body.data.len().into());
        }
    }
    response
}

/// An answer from the record. Replies also come from operators and webhooks, so what no HTTP message can carry is left out here.
pub(super) fn restore(reply: &Reply) -> Response<Whole> {
    let status = StatusCode::from_u16(reply.status)
        .ok()
        .filter(|status| !status.is_informational())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = whole(status, reply.body.clone().into());
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
        // What is restored was completed, whatever its headers say.
        let contradicts = name == OUTCOME && value != Class::Completed.name();
        if trailer {
            trailers.append(name, value);
        } else if !contradicts && !HOP_BY_HOP.contains(&name) && !FRAMING.contains(&name) {
            response.headers_mut().append(name, value);
        }
    }
    if !trailers.is_empty() {
        response.body_mut().trailers = Some(trailers);
    }
    response
}

/// An answer without headers yet. Some statuses have no body, whatever came with them.
fn whole(status: StatusCode, mut body: Whole) -> Response<Whole> {
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        body.data = Bytes::new();
    }
    body.trailers.take_if(|trailers| trailers.is_empty());
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

fn expiry(at: Timestamp) -> HeaderValue {
    // Digits, letters and signs: a header value by construction. An empty one is as good as none.
    HeaderValue::try_from(rfc3339(at)).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_waits_to_be_stored_is_in_memory_once() {
        let came = Bytes::from(b"paid".repeat(1000));
        let (parts, body) = Response::new(Whole::from(came.clone())).into_parts();
        let (reply, first) = divide(&Policy::new(), parts, body);
        assert_eq!(first.body().data, came);
        assert_eq!(first.body().data.as_ptr(), reply.body.as_ptr());
        assert!(came.is_unique(), "what was read is still held");
    }
}
