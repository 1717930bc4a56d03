//! Methods in another case than the one that they are registered in.
//!
//! Methods are case-sensitive, so `post` is not POST: no route lists it, and it would pass a route that requires a key.
//! Many services take it for POST all the same. It is refused, because it means two things.

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

/// Whether a method is GET, HEAD, POST, PUT, DELETE, CONNECT, OPTIONS, TRACE or PATCH but for its case.
///
/// ```
/// use onceward::http::is_miscased;
/// assert!(is_miscased(b"post") && is_miscased(b"Patch"));
/// assert!(!is_miscased(b"POST") && !is_miscased(b"purge"));
/// ```
pub fn is_miscased(method: &[u8]) -> bool {
    has_small_letters(method) && REGISTERED.iter().any(|known| is_same_but_for_case(method, known))
}

/// No registered method has any, and no route may list one that has.
pub(super) fn has_small_letters(method: &[u8]) -> bool {
    method.iter().any(u8::is_ascii_lowercase)
}

/// For methods that have small letters, and so differ from every known one.
pub(super) fn is_same_but_for_case(method: &[u8], known: &Method) -> bool {
    known.as_str().as_bytes().eq_ignore_ascii_case(method)
}
