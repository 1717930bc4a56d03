//! Methods that differ from a known one only in case.
//!
//! Methods are case-sensitive, so `post` is not POST: no route lists it, and it would bypass a route that requires a key.
//! But many services take it for POST. It is refused, because it has two readings.

use ::http::Method;

/// The methods of RFC 9110, and PATCH.
const REGISTERED: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::CONNECT,
    Method::OPTIONS,
    Method::TRACE,
    Method::PATCH,
];

/// Whether a method differs only in case from GET, HEAD, POST, PUT, DELETE, CONNECT, OPTIONS, TRACE or PATCH.
///
/// ```
/// use onceward::http::is_miscased;
/// assert!(is_miscased(b"post") && is_miscased(b"Patch"));
/// assert!(!is_miscased(b"POST") && !is_miscased(b"purge"));
/// ```
pub fn is_miscased(method: &[u8]) -> bool {
    has_lower_case(method) && REGISTERED.iter().any(|known| equals_ignoring_case(method, known))
}

/// Registered methods have no lower-case letters, and a route may not list a method that has some.
pub(super) fn has_lower_case(method: &[u8]) -> bool {
    method.iter().any(u8::is_ascii_lowercase)
}

/// Only for methods with lower-case letters, which no known method equals.
pub(super) fn equals_ignoring_case(method: &[u8], known: &Method) -> bool {
    known.as_str().as_bytes().eq_ignore_ascii_case(method)
}
