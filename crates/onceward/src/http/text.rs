//! Small spellings: percent-encoding, list headers, times.

use std::borrow::Cow;
use std::time::{Duration, UNIX_EPOCH};

use ::http::{HeaderMap, HeaderName, HeaderValue};

use crate::Timestamp;

/// The last second that RFC 3339 can write, at the end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A time as RFC 3339 has it, in UTC, to the second.
pub(super) fn rfc3339(at: Timestamp) -> String {
    let seconds = Duration::from_secs((at.as_micros() / 1_000_000).min(LAST_SECOND));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + seconds).to_string()
}

/// Encodes everything but RFC 3986's unreserved characters, so that the text is one path segment and a header value.
pub(super) fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

/// Decodes every `%` escape; what is no escape stays as it is.
pub(super) fn percent_decode(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.contains(&b'%') {
        return Cow::Borrowed(bytes);
    }
    let hex = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits =
            if bytes[at] == b'%' { hex(bytes.get(at + 1)).zip(hex(bytes.get(at + 2))) } else { None };
        match digits.and_then(|(high, low)| u8::try_from(high * 16 + low).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    Cow::Owned(decoded)
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
