//! Headers whose value is a comma-separated list.

use ::http::{HeaderMap, HeaderName, HeaderValue};

/// The members of a list header, over all its lines. A member that is not UTF-8 is skipped, the others are kept.
pub(super) fn members<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    members_of(headers.get_all(name).iter().map(HeaderValue::as_bytes))
}

/// The members of a list header that is given by its lines.
pub(super) fn members_of<'a>(lines: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a str> {
    lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .filter_map(|member| std::str::from_utf8(member).ok())
        .map(str::trim)
        .filter(|member| !member.is_empty())
}
