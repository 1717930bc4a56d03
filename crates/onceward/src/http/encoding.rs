//! Content codings: which stored answers a client can read, after RFC 9110, section 12.5.3.
//!
//! The layer neither decodes nor encodes, so headers that describe an answer's bytes (`ETag`, `Digest`, `Content-MD5`) stay
//! true. It asks the inner service for answers without a coding, which every client can read. An answer that has one all
//! the same is replayed only to clients that accept it.

use ::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use ::http::{HeaderMap, HeaderValue};

use super::list_header::members_of;
use crate::Reply;

/// The `Accept-Encoding` that the inner service gets under a key: it asks for an answer that every client can read.
pub(super) const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// The content codings that a client accepts: the lines of its `Accept-Encoding`.
#[derive(Debug)]
pub(super) struct AcceptedEncodings(Vec<HeaderValue>);

impl AcceptedEncodings {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self(headers.get_all(ACCEPT_ENCODING).iter().cloned().collect())
    }

    /// The first coding of a stored answer that the client does not accept.
    pub(super) fn first_refused<'a>(&self, reply: &'a Reply) -> Option<&'a str> {
        if reply.body.is_empty() {
            return None;
        }
        let lines =
            reply.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(CONTENT_ENCODING.as_str()));
        let mut codings = members_of(lines.map(|(_, value)| &value[..]));
        codings.find(|coding| !self.accepts(coding))
    }

    /// A client without the header accepts everything. `identity` is accepted even where the client excludes it, because
    /// there is no other form of the answer to give.
    fn accepts(&self, coding: &str) -> bool {
        let coding = canonical(coding);
        self.0.is_empty()
            || coding.eq_ignore_ascii_case("identity")
            || self.lists(coding).or_else(|| self.lists("*")).unwrap_or(false)
    }

    /// Whether a name is listed with a weight above zero. `None` where it is not listed.
    fn lists(&self, name: &str) -> Option<bool> {
        let listed = members_of(self.0.iter().map(HeaderValue::as_bytes)).filter_map(|member| {
            let (coding, weight) = member.split_once(';').unwrap_or((member, ""));
            canonical(coding.trim()).eq_ignore_ascii_case(name).then(|| !is_zero(weight))
        });
        listed.reduce(|one, another| one || another)
    }
}

/// RFC 9110 has older names for two codings.
fn canonical(coding: &str) -> &str {
    match coding {
        _ if coding.eq_ignore_ascii_case("x-gzip") => "gzip",
        _ if coding.eq_ignore_ascii_case("x-compress") => "compress",
        _ => coding,
    }
}

fn is_zero(weight: &str) -> bool {
    let weight = weight.trim();
    let quality = weight.strip_prefix("q=").or_else(|| weight.strip_prefix("Q="));
    quality.and_then(|quality| quality.trim().parse::<f32>().ok()).is_some_and(|quality| quality <= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(lines: &[&str], codings: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(ACCEPT_ENCODING, line.parse().unwrap());
        }
        let mut reply = Reply::new("encoded");
        reply.headers = codings
            .iter()
            .map(|coding| ("content-encoding".to_owned(), (*coding).to_owned().into()))
            .collect();
        AcceptedEncodings::of(&headers).first_refused(&reply).map(str::to_owned)
    }

    #[test]
    fn a_client_accepts_what_it_lists_and_everything_where_it_lists_nothing() {
        for (lines, coding, accepted) in [
            (&[][..], "br", true),
            (&[""], "br", false),
            (&["br"], "br", true),
            (&["BR;q=0.5"], "br", true),
            (&["gzip"], "br", false),
            (&["gzip, deflate", "br"], "br", true),
            (&["br;q=0"], "br", false),
            (&["br ; Q=0.000, gzip"], "br", false),
            (&["br;q=0.001"], "br", true),
            (&["*"], "br", true),
            (&["*;q=0"], "br", false),
            (&["br;q=0, *"], "br", false),
            (&["br, *;q=0"], "br", true),
            (&["identity"], "br", false),
            (&["x-gzip"], "gzip", true),
            (&["gzip"], "X-GZIP", true),
            (&["gzip"], "gzip", true),
            (&["gzip"], "gzip, br", false),
            (&["gzip, br"], "gzip, br", true),
        ] {
            assert_eq!(refused(lines, &[coding]).is_none(), accepted, "{lines:?} {coding}");
        }
    }

    #[test]
    fn an_answer_without_a_coding_or_without_a_body_is_never_refused() {
        assert_eq!(refused(&["gzip, identity;q=0"], &[]), None);
        assert_eq!(refused(&["gzip, *;q=0"], &["identity"]), None);
        let mut empty = Reply::new("");
        empty.headers = vec![("content-encoding".to_owned(), "br".into())];
        let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(AcceptedEncodings::of(&headers).first_refused(&empty), None);
    }

    #[test]
    fn the_coding_that_is_refused_is_named() {
        assert_eq!(refused(&["gzip"], &["gzip, br"]).as_deref(), Some("br"));
        assert_eq!(refused(&["gzip"], &["gzip", "zstd"]).as_deref(), Some("zstd"));
    }
}
