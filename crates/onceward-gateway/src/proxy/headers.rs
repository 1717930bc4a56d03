//! What changes in a head on its way through.

use http::header::{
    CONNECTION, COOKIE, EXPECT, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What speaks of one connection only, beside `Connection` itself. `Trailer` is not among them: an answer's trailers go
/// through, and hyper sends only those that it names.
const HOP_BY_HOP: [HeaderName; 7] =
    [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];

/// Which protocol a message asks to change to, where it does and may.
pub(super) fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    let asks = words(headers, &CONNECTION).any(|word| word.eq_ignore_ascii_case(b"upgrade"));
    let may = !words(headers, &UPGRADE).any(is_http);
    if asks && may { Some(protocol.clone()) } else { None }
}

/// Whether a protocol is HTTP again, or could carry it. Requests in it would go to the upstream past everything that is
/// done here: keys, scopes, and what only the gateway may say.
fn is_http(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
    [&b"h2c"[..], b"h2", b"h3", b"http", b"tls"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

/// The members of a header that is a list.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let lines = headers.get_all(name).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// The same by name, and `Connection`. Most messages have none of them, and looking once is less than removing eight times.
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

/// Takes away what speaks of the connection that a message came on, and what that connection's other end named as such.
pub(super) fn strip(headers: &mut HeaderMap) {
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    // Nearly every `Connection` is one well-known word. What the layer said about an operation is not the client's to
    // take away.
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

/// Which of the headers that matter to [`prepare`] a request has. One look at all of them is less than a search for each.
#[derive(Default)]
struct Said {
    expect: bool,
    trailer: bool,
    cookie: bool,
}

impl Said {
    fn by(headers: &HeaderMap) -> Self {
        let mut said = Self::default();
        for name in headers.keys() {
            match name.as_str() {
                "expect" => said.expect = true,
                "trailer" => said.trailer = true,
                "cookie" => said.cookie = true,
                _ => {}
            }
        }
        said
    }
}

/// Makes a request's head ready for the upstream, but for what it is told about the client.
pub(super) fn prepare(headers: &mut HeaderMap) {
    let said = Said::by(headers);
    if said.expect {
        // The body is asked for as soon as it is sent on, so a client that waits for a `100` gets it from this side.
        headers.remove(EXPECT);
    }
    if said.trailer {
        // A request's trailers end here. Some services take them for headers, and would believe a client's copies of ours.
        headers.remove(TRAILER);
    }
    headers.append(VIA, HeaderValue::from_static("1.1 onceward"));
    if said.cookie {
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

/// What HTTP/1.1 calls itself, whatever version a request came in.
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
