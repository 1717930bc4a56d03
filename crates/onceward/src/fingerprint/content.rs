//! What the headers declare about a body: its type, and whether it is compressed.

use super::Headers;
use crate::digest::Digest;

/// How a body is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    Json,
    Form,
    Multipart(Boundary<'a>),
    Raw,
}

/// The `boundary` parameter as the header has it, without quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Boundary<'a>(pub(super) &'a [u8]);

/// The values of `content-type`. Only the essence, `type/subtype`, is part of the fingerprint: a `boundary` is new with
/// every try, and the bytes of a body show a change of `charset` wherever it matters.
pub(super) enum ContentType<'a> {
    None,
    One {
        essence: &'a [u8],
        parameters: &'a [u8],
    },
    /// Contradictory, so the body is not interpreted.
    Several(Vec<&'a [u8]>),
}

impl<'a> ContentType<'a> {
    pub(super) fn of(headers: &'a dyn Headers) -> Self {
        let mut found = Self::None;
        headers.each("content-type", &mut |value| match &mut found {
            Self::None => {
                let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
                let (essence, parameters) = value.split_at(end);
                found = Self::One { essence: essence.trim_ascii(), parameters };
            }
            Self::One { essence, .. } => found = Self::Several(vec![essence, value]),
            Self::Several(values) => values.push(value),
        });
        found
    }

    pub(super) fn hash(&self, digest: &mut Digest) {
        match self {
            Self::None => {}
            Self::One { essence, .. } => digest.optional(Some(&essence.to_ascii_lowercase())),
            Self::Several(values) => values.iter().for_each(|value| digest.optional(Some(value))),
        }
        digest.optional(None);
    }

    pub(super) fn kind(&self) -> Kind<'a> {
        let Self::One { essence, parameters } = *self else { return Kind::Raw };
        // A list of types, or a value that is not a type, gives no type for the body.
        if essence.iter().any(|byte| !byte.is_ascii_graphic() || b",\"".contains(byte)) {
            return Kind::Raw;
        }
        let is = |other: &[u8]| essence.eq_ignore_ascii_case(other);
        let begins =
            |prefix: &[u8]| essence.get(..prefix.len()).is_some_and(|it| it.eq_ignore_ascii_case(prefix));
        let ends = |suffix: &[u8]| {
            essence
                .len()
                .checked_sub(suffix.len())
                .is_some_and(|at| essence[at..].eq_ignore_ascii_case(suffix))
        };
        if is(b"application/json") || ends(b"+json") {
            Kind::Json
        } else if is(b"application/x-www-form-urlencoded") {
            Kind::Form
        } else if begins(b"multipart/") {
            boundary(parameters).map_or(Kind::Raw, Kind::Multipart)
        } else {
            Kind::Raw
        }
    }
}

/// Finds the one `boundary` among the parameters; `None` if there is none, two, or anything out of the ordinary.
fn boundary(mut parameters: &[u8]) -> Option<Boundary<'_>> {
    /// RFC 2046 allows no longer one.
    const MOST_BYTES: usize = 70;
    let mut found = None;
    while let [b';', rest @ ..] = parameters.trim_ascii_start() {
        let rest = rest.trim_ascii_start();
        if rest.is_empty() || rest[0] == b';' {
            parameters = rest;
            continue;
        }
        let equals = rest.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&rest[..equals], &rest[equals + 1..]);
        let end;
        let content;
        if let [b'"', quoted @ ..] = value {
            let length = quoted.iter().position(|byte| *byte == b'"')?;
            content = &quoted[..length];
            end = length + 2;
        } else {
            end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
            content = value[..end].trim_ascii_end();
        }
        if content.contains(&b'\\') {
            return None;
        }
        if name.eq_ignore_ascii_case(b"boundary") && found.replace(content).is_some() {
            return None;
        }
        parameters = &value[end..];
    }
    let is_sound = |content: &&[u8]| {
        (1..=MOST_BYTES).contains(&content.len())
            && content.iter().all(|byte| matches!(byte, b' '..=b'~'))
            && !content.ends_with(b" ")
    };
    found.filter(is_sound).filter(|_| parameters.trim_ascii_start().is_empty()).map(Boundary)
}

/// The codings that were applied to a body, in order; `identity` does not count.
pub(super) struct Encoding<'a>(Vec<&'a [u8]>);

impl<'a> Encoding<'a> {
    pub(super) fn of(headers: &'a dyn Headers) -> Self {
        let mut codings = Vec::new();
        headers.each("content-encoding", &mut |value| {
            let listed = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            codings.extend(listed.filter(|it| !it.is_empty() && !it.eq_ignore_ascii_case(b"identity")));
        });
        Self(codings)
    }

    pub(super) fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn hash(&self, digest: &mut Digest) {
        self.0.iter().for_each(|coding| digest.optional(Some(&coding.to_ascii_lowercase())));
        digest.optional(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(value: &str) -> Kind<'_> {
        let parameters = value.find(';').unwrap_or(value.len());
        let (essence, parameters) = value.as_bytes().split_at(parameters);
        ContentType::One { essence, parameters }.kind()
    }

    #[test]
    fn json_is_told_by_its_essence_or_its_suffix() {
        for value in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json;v=1"] {
            assert_eq!(kind(value), Kind::Json, "{value}");
        }
        for value in
            ["application/jsonp", "text/json", "json", "", "application/json-seq", "text/plain, a/b+json"]
        {
            assert_eq!(kind(value), Kind::Raw, "{value}");
        }
    }

    #[test]
    fn a_boundary_is_found_bare_or_quoted_among_other_parameters() {
        for value in [
            "multipart/form-data; boundary=abc",
            "multipart/form-data;boundary=\"abc\"",
            "multipart/form-data; charset=utf-8 ; Boundary=abc ;",
            "multipart/form-data; a=\"x;boundary=no\"; boundary=abc",
        ] {
            assert_eq!(kind(value), Kind::Multipart(Boundary(b"abc")), "{value}");
        }
        assert_eq!(kind("multipart/mixed; boundary=\"a; b\""), Kind::Multipart(Boundary(b"a; b")));
    }

    #[test]
    fn a_doubtful_boundary_leaves_the_body_uninterpreted() {
        let long = format!("multipart/form-data; boundary={}", "b".repeat(71));
        for value in [
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"\"",
            "multipart/form-data; boundary=a; boundary=b",
            "multipart/form-data; boundary=\"abc",
            "multipart/form-data; boundary=\"a\\\"b\"",
            "multipart/form-data; boundary=\"abc\"x",
            "multipart/form-data; boundary=\"abc \"",
            "multipart/form-data; junk",
            &long,
        ] {
            assert_eq!(kind(value), Kind::Raw, "{value}");
        }
    }
}
