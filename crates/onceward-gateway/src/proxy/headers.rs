//! Changes the headers of requests and answers on their way through the proxy.

use http::header::{
    CONNECTION, COOKIE, EXPECT, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Hop-by-hop headers, besides `Connection` itself. `Trailer` is not among them: an answer's trailers go through, and hyper
/// sends only those that this header names.
const HOP_BY_HOP: [HeaderName; 7] =
    [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];

/// The protocol that a message asks to change to, if it asks for one that is allowed.
pub(super) fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let asks = words(headers, &CONNECTION).any(|word| word.eq_ignore_ascii_case(b"upgrade"));
    let may = !words(headers, &UPGRADE).any(is_http);
    if asks && may { Some(protocol.clone()) } else { None }
}

/// Whether a protocol is HTTP, or could carry it. Its requests would reach the upstream without the gateway's checks.
fn is_http(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
    [&b"h2c"[..], b"h2", b"h3", b"http", b"tls"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

/// The members of a header that is a list.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let lines = headers.get_all(name).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// Whether a header is one of [`HOP_BY_HOP`] or `Connection`. Most messages have none: one pass is cheaper than eight removals.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Removes the hop-by-hop headers, and those that `Connection` names as such.
pub(super) fn strip(headers: &mut HeaderMap) {
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    // Nearly every `Connection` is one well-known word. A client must not remove the layer's own headers.
    let named: Vec<HeaderName> = words(headers, &CONNECTION)
        .filter(|word| !word.eq_ignore_ascii_case(b"keep-alive") && !word.eq_ignore_ascii_case(b"close"))
        .filter_map(|word| HeaderName::from_bytes(word).ok())
        .filter(|name| !name.as_str().starts_with("onceward-"))
        .collect();
    headers.remove(CONNECTION);
    for name in named {
        headers.remove(name);
    }
    if headers.keys().any(is_hop_by_hop) {
        for name in HOP_BY_HOP {
            headers.remove(name);
        }
    }
}

/// Which of the headers that [`prepare`] handles a request has. One pass is cheaper than a search for each.
#[derive(Default)]
struct Present {
    expect: bool,
    trailer: bool,
    cookie: bool,
}

impl Present {
    fn in_headers(headers: &HeaderMap) -> Self {
        let mut present = Self::default();
        for name in headers.keys() {
            match name.as_str() {
                "expect" => present.expect = true,
                "trailer" => present.trailer = true,
                "cookie" => present.cookie = true,
                _ => {}
            }
        }
        present
    }
}

/// Makes a request's head ready for the upstream. [`Forwarder`](super::forwarding::Forwarder) adds what names the client.
pub(super) fn prepare(headers: &mut HeaderMap) {
    let present = Present::in_headers(headers);
    if present.expect {
        // The client gets its `100` from the gateway, as soon as the body is read.
        headers.remove(EXPECT);
    }
    if present.trailer {
        // A request's trailers are not sent on. Some services take them for headers, and would believe forged `Onceward-` ones.
        headers.remove(TRAILER);
    }
    headers.append(VIA, HeaderValue::from_static("1.1 onceward"));
    if present.cookie {
        join_cookies(headers);
    }
}

/// HTTP/2 splits cookies into several lines, which HTTP/1.1 does not allow.
fn join_cookies(headers: &mut HeaderMap) {
    let lines = headers.get_all(COOKIE);
    if lines.iter().nth(1).is_none() {
        return;
    }
    let joined = lines.iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b"; "[..]);
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(COOKIE, joined);
    }
}

/// The version of every message that the proxy passes on, whatever version it came in.
pub(super) const VERSION: Version = Version::HTTP_11;

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_speaks_of_one_connection_is_taken_away_and_so_is_what_connection_names() {
        let mut found = headers(&[
            ("connection", "close, X-Secret"),
            ("connection", "x-other"),
            ("x-secret", "1"),
            ("x-other", "1"),
            ("te", "trailers"),
            ("keep-alive", "timeout=5"),
            ("upgrade", "websocket"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "x"),
            ("x-kept", "1"),
        ]);
        strip(&mut found);
        assert_eq!(found, headers(&[("x-kept", "1")]));
    }

    #[test]
    fn what_this_side_has_met_already_is_taken_away_and_the_gateway_is_named() {
        let mut found =
            headers(&[("expect", "100-continue"), ("trailer", "onceward-operation"), ("via", "1.1 cdn")]);
        prepare(&mut found);
        assert_eq!(found, headers(&[("via", "1.1 cdn"), ("via", "1.1 onceward")]));
    }

    #[test]
    fn cookies_that_http_2_split_are_joined_again() {
        let mut found = headers(&[("cookie", "a=1"), ("cookie", "b=2")]);
        join_cookies(&mut found);
        assert_eq!(found, headers(&[("cookie", "a=1; b=2")]));
    }

    #[test]
    fn a_message_asks_for_another_protocol_only_with_both_headers() {
        assert!(
            upgrade_of(&headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]))
                .is_some()
        );
        assert!(upgrade_of(&headers(&[("upgrade", "websocket")])).is_none());
        assert!(upgrade_of(&headers(&[("connection", "upgrade")])).is_none());
    }
}
