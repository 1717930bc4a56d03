//! The headers that tell the inner service which operation it executes, and the client which one its answer is about.

use ::http::header::ACCEPT_ENCODING;
use ::http::{HeaderMap, HeaderName, HeaderValue, Request};

use super::encoding::IDENTITY;
use super::header::{ATTEMPT, FENCE, OPERATION, OPERATION_HEADERS, RECOVERY_POINT};
use super::percent::percent_encode;
use crate::{Operation, OperationId};

/// Removes operation headers that a client sent, because the inner service believes them. CGI does not distinguish `_` from
/// `-` in header names, so both spellings are removed.
pub(super) fn remove(headers: &mut HeaderMap) {
    let is_reserved = |name: &&HeaderName| {
        let like = |own: &HeaderName| {
            let (name, own) = (name.as_str().as_bytes(), own.as_str().as_bytes());
            name.len() == own.len()
                && name.iter().zip(own).all(|(byte, own)| byte == own || (*byte == b'_' && *own == b'-'))
        };
        name.as_str().starts_with("onceward") && OPERATION_HEADERS.iter().any(like)
    };
    while let Some(name) = headers.keys().find(is_reserved).cloned() {
        headers.remove(name);
    }
}

/// Names the operation to a client, in place of what the inner service may have put there.
pub(super) fn name(headers: &mut HeaderMap, operation: OperationId) {
    // Always `Ok`: digits, letters and a hyphen are valid in a header value.
    if let Ok(value) = operation.with_text(HeaderValue::from_bytes) {
        headers.insert(OPERATION, value);
    }
}

/// Adds the operation's headers and extension, and asks for an answer without a content coding.
pub(super) fn add<B>(request: &mut Request<B>, operation: &Operation) {
    let point = match operation.recovery_point() {
        None => Ok(HeaderValue::from_static("started")),
        Some(point) => HeaderValue::try_from(percent_encode(point.name())),
    };
    let headers = request.headers_mut();
    headers.insert(ACCEPT_ENCODING, IDENTITY);
    for (name, value) in [
        (OPERATION, operation.operation_id().with_text(HeaderValue::from_bytes).ok()),
        (FENCE, Some(operation.fence().as_number().into())),
        (ATTEMPT, Some(operation.attempt().into())),
        (RECOVERY_POINT, point.ok()),
    ] {
        // Always `Some`: digits, letters and escapes are valid in a header value.
        if let Some(value) = value {
            headers.append(name, value);
        }
    }
    request.extensions_mut().insert(operation.clone());
}
