//! The order of member names: by UTF-16 code units, as RFC 8785 asks, found without leaving UTF-8.

use std::cmp::Ordering;

/// Whether a canonical name has to be unescaped before it can be compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// No backslash: the bytes are the name.
    Plain,
    /// May hold escapes.
    Escaped,
}

/// Compares two names, each in canonical spelling and without its quotes.
pub(super) fn compare(left: (&[u8], Spelling), right: (&[u8], Spelling)) -> Ordering {
    if let ((left, Spelling::Plain), (right, Spelling::Plain)) = (left, right) {
        return match left.iter().zip(right).find(|(left, right)| left != right) {
            Some((left, right)) => weight(*left).cmp(&weight(*right)),
            None => left.len().cmp(&right.len()),
        };
    }
    unescaped(left.0).map(weight).cmp(unescaped(right.0).map(weight))
}

/// UTF-8 sorts by code point. UTF-16 differs in one thing: U+E000 to U+FFFF (first byte EE or EF) come after the
/// surrogate pairs of everything above (first byte F0 to F4). The first byte that differs decides, so moving those two
/// lead bytes behind the others is all it takes; continuation bytes are below C0 and keep their order.
fn weight(byte: u8) -> u8 {
    match byte {
        0xee | 0xef => byte + 0x10,
        _ => byte,
    }
}

fn unescaped(mut name: &[u8]) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let (byte, rest) = match name {
            [b'\\', b'u', b'0', b'0', high, low, rest @ ..] => (digit(*high) << 4 | digit(*low), rest),
            [b'\\', b'b', rest @ ..] => (0x08, rest),
            [b'\\', b't', rest @ ..] => (b'\t', rest),
            [b'\\', b'n', rest @ ..] => (b'\n', rest),
            [b'\\', b'f', rest @ ..] => (0x0c, rest),
            [b'\\', b'r', rest @ ..] => (b'\r', rest),
            [b'\\', byte, rest @ ..] | [byte, rest @ ..] => (*byte, rest),
            [] => return None,
        };
        name = rest;
        Some(byte)
    })
}

fn digit(hex: u8) -> u8 {
    match hex {
        b'0'..=b'9' => hex - b'0',
        _ => (hex | 0x20).wrapping_sub(b'a' - 10),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fingerprint::canonical::push_escaped;

    fn spelled(name: &str) -> (Vec<u8>, Spelling) {
        let mut text = Vec::new();
        name.chars().for_each(|character| push_escaped(&mut text, character));
        let spelling = if text.contains(&b'\\') { Spelling::Escaped } else { Spelling::Plain };
        (text, spelling)
    }

    proptest! {
        #[test]
        fn names_sort_as_their_utf16_code_units_do(
            left in "[\u{0}-\u{7f}é\u{d7ff}\u{e000}\u{fb33}\u{ffff}\u{10000}\u{1f600}\u{10ffff}]{0,4}",
            right in "[\u{0}-\u{7f}é\u{d7ff}\u{e000}\u{fb33}\u{ffff}\u{10000}\u{1f600}\u{10ffff}]{0,4}",
        ) {
            let (left_text, left_spelling) = spelled(&left);
            let (right_text, right_spelling) = spelled(&right);
            prop_assert_eq!(
                compare((&left_text, left_spelling), (&right_text, right_spelling)),
                left.encode_utf16().cmp(right.encode_utf16()),
            );
        }
    }
}
