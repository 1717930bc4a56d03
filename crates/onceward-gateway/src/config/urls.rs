//! URLs of the upstream, the store, the cache and others. Only a store's may have a password, which is never printed. A URL that
//! is refused is not repeated in the error, because it might have one.

use std::fmt;

use http::Uri;
use http::uri::PathAndQuery;
use onceward_redis::{NotARedisUrl, RedisUrl};

use super::text_value::{TextValue, text_value};
use crate::settings::{Scheme, StoreUrl};

/// The API behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpstreamUrl {
    pub scheme: Scheme,
    pub authority: http::uri::Authority,
    pub base_path: Option<PathAndQuery>,
}

impl TextValue for UpstreamUrl {
    const EXPECTED: &'static str = "a URL such as \"http://127.0.0.1:3000\" or \"https://api.example.com\"";
    const EXAMPLES: &'static [&'static str] = &["http://127.0.0.1:3000", "https://api.example.com/v1"];

    fn read(text: &str) -> Result<Self, String> {
        let uri = web_url(text, Self::EXPECTED)?;
        let scheme = if uri.scheme_str() == Some("https") { Scheme::Https } else { Scheme::Http };
        let Some(authority) = uri.authority() else { return Err(format!("must be {}", Self::EXPECTED)) };
        let base_path = match uri.path().trim_end_matches('/') {
            "" => None,
            path => Some(path.parse().map_err(|_| format!("must be {}", Self::EXPECTED))?),
        };
        Ok(Self { scheme, authority: authority.clone(), base_path })
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.authority)?;
        self.base_path.as_ref().map_or(Ok(()), |path| write!(f, "{path}"))
    }
}

text_value!(UpstreamUrl, "UpstreamUrl");

/// Where records are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Store(pub StoreUrl);

impl TextValue for Store {
    const EXPECTED: &'static str = StoreUrl::EXPECTED;
    const EXAMPLES: &'static [&'static str] = StoreUrl::EXAMPLES;

    fn read(text: &str) -> Result<Self, String> {
        StoreUrl::parse(text).map(Self)
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(Store, "StoreUrl");

/// Where answers are shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CacheUrl(pub RedisUrl);

impl TextValue for CacheUrl {
    const EXPECTED: &'static str = "a URL such as \"redis://127.0.0.1:6379\"";
    const EXAMPLES: &'static [&'static str] = &["redis://127.0.0.1:6379", "rediss://cache.internal"];

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error: NotARedisUrl| error.to_string())
    }
}

impl fmt::Display for CacheUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_value!(CacheUrl, "CacheUrl");

/// What clients put before `/.well-known`, or where traces go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WebUrl(pub String);

impl TextValue for WebUrl {
    const EXPECTED: &'static str = "a URL such as \"https://api.example.com\", with a path or without";
    const EXAMPLES: &'static [&'static str] = &["https://api.example.com", "http://127.0.0.1:4318"];

    fn read(text: &str) -> Result<Self, String> {
        web_url(text, Self::EXPECTED)?;
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_value!(WebUrl, "WebUrl");

/// Longer ones do not fit the header that names them.
const LONGEST_URL_BYTES: usize = 255;

fn web_url(text: &str, expected: &str) -> Result<Uri, String> {
    if text.contains('#') {
        return Err(format!("has a fragment (#…), which means nothing here: it must be {expected}"));
    }
    if text.len() > LONGEST_URL_BYTES || text.contains(['<', '>', '"']) {
        return Err(format!("is too long or has a character that no URL has: it must be {expected}"));
    }
    let uri: Uri = text.parse().map_err(|_| format!("must be {expected}"))?;
    let named = uri.authority().is_some_and(|authority| !authority.host().is_empty());
    if !named || !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(format!("must be {expected}, beginning with http:// or https://"));
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(
            "has a user or a password in it: remove them, clients' own credentials are passed on".to_owned()
        );
    }
    let port = uri
        .authority()
        .and_then(|authority| authority.as_str().strip_prefix(authority.host())?.strip_prefix(':'));
    if port.is_some_and(|port| !matches!(port.parse::<u16>(), Ok(1..))) {
        return Err("has a port that there is not: use 1 to 65535".to_owned());
    }
    if uri.query().is_some() {
        return Err("has a query (?…), which cannot stand before other paths: remove it".to_owned());
    }
    Ok(uri)
}
