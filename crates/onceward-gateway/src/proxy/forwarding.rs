//! The headers that name a request's origin to the upstream: `Host`, `X-Forwarded-*` and `Forwarded`.
//!
//! APIs build URLs, choose tenants and log addresses by these headers. So a client's values are replaced, unless it is a proxy
//! that the configuration trusts. Each header is sent as one line, because some APIs read the first line and others the last.

use std::net::IpAddr;

use http::header::{FORWARDED, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use ipnet::IpNet;

use crate::client_address::ClientAddress;
use crate::settings::{Forwarding, Upstream};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Where a request came from.
#[derive(Debug)]
pub(super) struct Origin {
    client: Option<ClientAddress>,
    /// The host that it is for. HTTP/1.0 may name none.
    host: Option<HeaderValue>,
}

impl Origin {
    pub(super) fn new<B>(client: Option<ClientAddress>, request: &Request<B>) -> Self {
        // A target that names a host counts, whatever `Host` says (RFC 9112, section 3.2.2). `:authority` of HTTP/2 is
        // such a target.
        let host = match request.uri().authority() {
            // The front has made sure that it consists of characters that a header can have.
            Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
            None => request.headers().get(HOST).cloned(),
        };
        let host = host.filter(|host| !host.is_empty());
        Self { client, host }
    }
}

/// Adds the headers that name a request's origin.
#[derive(Debug)]
pub(super) struct Forwarder {
    /// The upstream's own name.
    upstream: HeaderValue,
    preserve_host: bool,
    trusted_proxies: Vec<IpNet>,
}

impl Forwarder {
    pub(super) fn new(upstream: &Upstream, forwarding: &Forwarding) -> Self {
        Self {
            // An authority consists of characters that a header can have.
            upstream: HeaderValue::from_str(upstream.authority.as_str())
                .unwrap_or_else(|_| HeaderValue::from_static("")),
            preserve_host: forwarding.preserve_host,
            trusted_proxies: forwarding.trusted_proxies.clone(),
        }
    }

    pub(super) fn set_headers(&self, headers: &mut HeaderMap, origin: Origin) {
        let Origin { client, host } = origin;
        let trusted = client.as_ref().is_some_and(|client| self.trusts(client.address.ip()));
        // Most requests have none of them.
        let sent: Vec<HeaderName> = headers.keys().filter(|name| is_forwarding(name)).cloned().collect();
        for name in sent {
            if !trusted || is_misspelt(&name) {
                headers.remove(name);
            }
        }

        if let Some(host) = &host {
            keep_or_insert(headers, X_FORWARDED_HOST, host);
        }
        let told = if self.preserve_host { host } else { None };
        headers.insert(HOST, told.unwrap_or_else(|| self.upstream.clone()));
        let scheme = client.as_ref().map_or("http", |client| client.scheme.name());
        keep_or_insert(headers, X_FORWARDED_PROTO, &HeaderValue::from_static(scheme));
        if let Some(client) = &client {
            if let Some(address) = client.forwarded_for() {
                append(headers, X_FORWARDED_FOR, address);
            }
            // `Forwarded` must agree with `X-Forwarded-For`. So the list of a trusted proxy is continued, and none is begun.
            if headers.contains_key(FORWARDED)
                && let Ok(element) = HeaderValue::try_from(element(client.address.ip()))
            {
                append(headers, FORWARDED, &element);
            }
        }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        // A listener for both versions of IP sees IPv4 addresses within IPv6.
        let address = address.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&address))
    }
}

/// Keeps a trusted proxy's value, in one line, or inserts this one.
fn keep_or_insert(headers: &mut HeaderMap, name: HeaderName, value: &HeaderValue) {
    let kept = joined(headers, &name, None);
    headers.insert(name, kept.unwrap_or_else(|| value.clone()));
}

/// Appends to the list that a trusted proxy sent, in one line.
fn append(headers: &mut HeaderMap, name: HeaderName, value: &HeaderValue) {
    let list = joined(headers, &name, Some(value));
    headers.insert(name, list.unwrap_or_else(|| value.clone()));
}

/// Every value of a header, and one more, in one line. Nothing where there was none.
fn joined(headers: &HeaderMap, name: &HeaderName, more: Option<&HeaderValue>) -> Option<HeaderValue> {
    let mut lines: Vec<&[u8]> =
        headers.get_all(name).iter().map(HeaderValue::as_bytes).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return None;
    }
    lines.extend(more.map(HeaderValue::as_bytes));
    HeaderValue::from_bytes(&lines.join(&b", "[..])).ok()
}

/// A hop as RFC 7239 writes it.
fn element(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => format!("for={address}"),
        IpAddr::V6(address) => format!("for=\"[{address}]\""),
    }
}

const PREFIX: &[u8] = b"x-forwarded-";

/// Whether a header names a request's origin, or could be taken for one that does: CGI and its kin turn every character but
/// letters and digits into `_`.
fn is_forwarding(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    let alike =
        |(byte, wanted): (&u8, &u8)| byte == wanted || *wanted == b'-' && !byte.is_ascii_alphanumeric();
    name == b"forwarded" || name.len() > PREFIX.len() && name.iter().zip(PREFIX).all(alike)
}

/// Whether such a name has another character where a hyphen belongs. No proxy writes it so, but some pass it on.
fn is_misspelt(name: &HeaderName) -> bool {
    name.as_str().bytes().any(|byte| byte != b'-' && !byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Scheme;

    const PEER: &str = "192.0.2.7";

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn forwarder(preserve_host: bool, trusted: &[&str]) -> Forwarder {
        Forwarder {
            upstream: HeaderValue::from_static("api.internal:3000"),
            preserve_host,
            trusted_proxies: trusted.iter().map(|network| network.parse().unwrap()).collect(),
        }
    }

    fn from(peer: &str, host: Option<&'static str>) -> Origin {
        let client = ClientAddress::new((peer.parse::<IpAddr>().unwrap(), 4711).into(), Scheme::Https);
        Origin { client: Some(client), host: host.map(HeaderValue::from_static) }
    }

    const FORGED: [(&str, &str); 9] = [
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-for", "10.0.0.2"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-prefix", "/evil"),
        ("forwarded", "for=10.0.0.1"),
        ("x_forwarded_for", "10.0.0.3"),
        ("x-forwarded_host", "evil.example"),
        ("x.forwarded.proto", "http"),
    ];

    #[test]
    fn what_a_client_says_about_itself_is_replaced_by_one_line_of_each() {
        for trusted in [&[][..], &["10.0.0.0/8", "::1/128"]] {
            let mut found = headers(&FORGED);
            forwarder(true, trusted).set_headers(&mut found, from(PEER, Some("shop.example")));
            let told = headers(&[
                ("host", "shop.example"),
                ("x-forwarded-for", PEER),
                ("x-forwarded-host", "shop.example"),
                ("x-forwarded-proto", "https"),
            ]);
            assert_eq!(found, told);
        }
    }

    #[test]
    fn what_a_trusted_proxy_says_is_kept_and_the_proxy_named_after_it() {
        // Also where a listener for both versions of IP saw the peer.
        for peer in [PEER, "::ffff:192.0.2.7"] {
            let mut found = headers(&FORGED);
            forwarder(true, &["192.0.2.0/24"]).set_headers(&mut found, from(peer, Some("shop.example")));
            let told = headers(&[
                ("host", "shop.example"),
                ("x-forwarded-for", "10.0.0.1, 10.0.0.2, 192.0.2.7"),
                ("x-forwarded-host", "evil.example"),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-prefix", "/evil"),
                ("forwarded", "for=10.0.0.1, for=192.0.2.7"),
            ]);
            assert_eq!(found, told);
        }
        let mut found = headers(&[("forwarded", "for=a"), ("x-forwarded-for", "")]);
        forwarder(true, &["2001:db8::/32"]).set_headers(&mut found, from("2001:db8::1", None));
        assert_eq!(found["forwarded"], "for=a, for=\"[2001:db8::1]\"");
        assert_eq!(found["x-forwarded-for"], "2001:db8::1");
    }

    #[test]
    fn an_upstream_that_wants_its_own_host_gets_it_and_is_told_the_original_one() {
        let mut found = HeaderMap::new();
        forwarder(false, &[]).set_headers(&mut found, from(PEER, Some("shop.example")));
        assert_eq!(
            (&found["host"], &found["x-forwarded-host"]),
            (&HeaderValue::from_static("api.internal:3000"), &HeaderValue::from_static("shop.example"),)
        );
    }

    #[test]
    fn a_request_for_no_host_is_one_for_the_upstream() {
        let mut found = headers(&[("x-forwarded-host", "evil.example")]);
        forwarder(true, &[]).set_headers(&mut found, from(PEER, None));
        assert_eq!(found["host"], "api.internal:3000");
        assert!(!found.contains_key("x-forwarded-host"));
    }

    #[test]
    fn only_names_that_are_taken_for_one_of_them_are_such() {
        for (name, forwarding) in [
            ("forwarded", true),
            ("x-forwarded-for", true),
            ("x_forwarded_for", true),
            ("x|forwarded+ssl", true),
            ("x-forwarded", false),
            ("xaforwarded-for", false),
            ("x-real-ip", false),
            ("via", false),
        ] {
            assert_eq!(is_forwarding(&HeaderName::from_static(name)), forwarding, "{name}");
        }
    }
}
