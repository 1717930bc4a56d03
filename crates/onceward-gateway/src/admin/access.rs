//! Decides from a request's head alone whether the admin listener admits it.

use std::net::{IpAddr, SocketAddr};

use http::header::{AUTHORIZATION, FORWARDED, HOST};
use http::{HeaderMap, HeaderName};

use super::problem::Problem;
use super::token::{Caller, Tokens};
use crate::settings::Role;

/// The access that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// It reads, which over loopback needs no token.
    Read,
    /// It changes something, which always needs a token with this role.
    Change(Role),
}

/// Headers that proxies add: a request with one of them is not local.
const PASSED_A_PROXY: [HeaderName; 4] = [
    FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("via"),
];

/// Both ends of a connection to the admin listener.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    /// The address that the listener is bound to. It may differ from the address of this connection: a listener on every
    /// address has loopback connections too.
    pub listener: SocketAddr,
    /// Where the connection comes from.
    pub peer: SocketAddr,
}

/// Admits a request with the caller of its token, or refuses it. A request without a token has no caller.
///
/// A wrong token is refused, also where none is needed. A change always needs a token, so a page in an operator's browser
/// cannot make one. Reads without a token are for programs on the same machine: not for requests that came through a proxy
/// there, nor for a page whose name resolves to 127.0.0.1. The sidecar of a service mesh is such a proxy and leaves no header,
/// so the listener itself must be on loopback, where no other machine reaches it.
pub(super) fn admit(
    need: Need,
    ends: Ends,
    headers: &HeaderMap,
    tokens: &Tokens,
) -> Result<Option<Caller>, Problem> {
    let role = match need {
        Need::Read => Role::Reader,
        Need::Change(role) => role,
    };
    match bearer(headers) {
        Credential::Token(token) => match tokens.caller(token) {
            Some(caller) if caller.role >= role => Ok(Some(caller)),
            Some(caller) => Err(Problem::RoleTooLow { has: caller.role, needs: role }),
            None => Err(Problem::TokenWrong),
        },
        Credential::Other => Err(Problem::TokenWrong),
        Credential::Nothing if need == Need::Read && is_local(ends, headers) => Ok(None),
        Credential::Nothing => Err(Problem::TokenMissing),
    }
}

enum Credential<'a> {
    Nothing,
    Token(&'a [u8]),
    /// A credential that is not a bearer token, or more than one.
    Other,
}

fn bearer(headers: &HeaderMap) -> Credential<'_> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return if headers.contains_key(AUTHORIZATION) { Credential::Other } else { Credential::Nothing };
    };
    match line.as_bytes().split_first_chunk::<7>() {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
            Credential::Token(token.trim_ascii())
        }
        Some(_) | None => Credential::Other,
    }
}

fn is_local(ends: Ends, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().unwrap_or_default(),
        (Some(_), Some(_)) | (None, _) => "",
    };
    let is_loopback = |end: SocketAddr| end.ip().to_canonical().is_loopback();
    is_loopback(ends.listener)
        && is_loopback(ends.peer)
        && is_own_name(host)
        && !PASSED_A_PROXY.iter().any(|name| headers.contains_key(name))
}

/// An address or `localhost`. Any other name can be made to resolve to this machine.
fn is_own_name(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _port)) => address,
        None => host.split_once(':').map_or(host, |(name, _port)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_names_that_nobody_else_can_point_here() {
        for host in
            ["localhost", "LOCALHOST:8421", "127.0.0.1", "127.0.0.1:8421", "[::1]", "[::1]:8421", "10.0.0.7"]
        {
            assert!(is_own_name(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8421",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[evil]",
        ] {
            assert!(!is_own_name(host), "{host}");
        }
    }
}
