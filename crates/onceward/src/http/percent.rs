//! Percent-encoding of path segments.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Everything but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a text so that it is one path segment, and valid in a header value.
pub(super) fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Decodes every valid escape; an invalid one stays as it is.
pub(super) fn percent_decode(text: &str) -> Cow<'_, [u8]> {
    percent_decode_str(text).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_text_is_decoded_and_an_invalid_escape_stays() {
        let key = "../a b/100%?#\u{e9}";
        let encoded = percent_encode(key);
        assert!(!encoded.contains(['/', ' ', '?', '#']), "{encoded}");
        assert_eq!(&*percent_decode(&encoded), key.as_bytes());
        assert_eq!(&*percent_decode("100%, %zz, %4"), b"100%, %zz, %4");
    }
}
