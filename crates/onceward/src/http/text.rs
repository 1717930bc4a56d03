//! Small spellings: percent-encoding, list headers, times.

use std::borrow::Cow;
use std::time::{Duration, UNIX_EPOCH};

use ::http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::Timestamp;

/// The last second that RFC 3339 can write, at the end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A time as RFC 3339 has it, in UTC, to the second.
pub(super) fn rfc3339(at: Timestamp) -> String {
    let seconds = Duration::from_secs((at.as_micros() / 1_000_000).min(LAST_SECOND));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + seconds).to_string()
}

/// Everything but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a text so that it is one path segment and a header value.
pub(super) fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Decodes every `%` escape; what is no escape stays as it is.
pub(super) fn percent_decode(text: &str) -> Cow<'_, [u8]> {
    percent_decode_str(text).into()
}

/// The members of a comma-separated header, over all its lines. One that is no text is left out; its neighbours are not.
pub(super) fn members<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    members_of(headers.get_all(name).iter().map(HeaderValue::as_bytes))
}

/// The same, of lines that are not among headers any more.
pub(super) fn members_of<'a>(lines: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a str> {
    lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .filter_map(|member| std::str::from_utf8(member).ok())
        .map(str::trim)
        .filter(|member| !member.is_empty())
}

/// For pages: the five characters that HTML gives a meaning.
pub(super) fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_encoded_is_decoded_and_what_is_no_escape_stays() {
        let key = "../a b/100%?#\u{e9}";
        let encoded = percent_encode(key);
        assert!(!encoded.contains(['/', ' ', '?', '#']), "{encoded}");
        assert_eq!(&*percent_decode(&encoded), key.as_bytes());
        assert_eq!(&*percent_decode("100%, %zz, %4"), b"100%, %zz, %4");
    }

    #[test]
    fn times_are_written_to_the_second_and_the_end_of_time_is_writable() {
        assert_eq!(rfc3339(Timestamp::from_micros(1_800_000_000_900_000)), "2027-01-15T08:00:00Z");
        assert_eq!(rfc3339(Timestamp::NEVER), "9999-12-31T23:59:59Z");
    }
}
