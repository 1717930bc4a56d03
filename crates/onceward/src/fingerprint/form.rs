//! `application/x-www-form-urlencoded` bodies: sorted by name, escapes undone.

use crate::digest::Digest;

/// A pair in the buffer of decoded bytes: its name, then its value.
struct Pair {
    start: usize,
    name_end: usize,
    end: usize,
    /// `a` and `a=` differ, because some receivers distinguish them.
    value: Presence,
}

#[derive(Clone, Copy)]
enum Presence {
    Absent,
    Present,
}

/// A pair's offsets take 32 bytes, and a body could consist of separators alone. Receivers commonly stop at a thousand
/// fields.
const MOST_PAIRS: usize = 16_384;

/// Hashes the pairs sorted by name, those of one name in the order they came, since `item=1&item=2` is a list to its
/// receiver. `None` if a percent sign is not followed by two hexadecimal digits, which receivers read differently, or if there
/// are more than [`MOST_PAIRS`].
pub(super) fn hash(body: &[u8], digest: &mut Digest) -> Option<()> {
    let mut text = Vec::with_capacity(body.len());
    let mut pairs = Vec::new();
    for pair in body.split(|byte| *byte == b'&') {
        if pairs.len() == MOST_PAIRS {
            return None;
        }
        let start = text.len();
        let equals = pair.iter().position(|byte| *byte == b'=');
        decode(&pair[..equals.unwrap_or(pair.len())], &mut text)?;
        let name_end = text.len();
        let value = match equals {
            None => Presence::Absent,
            Some(equals) => {
                decode(&pair[equals + 1..], &mut text)?;
                Presence::Present
            }
        };
        pairs.push(Pair { start, name_end, end: text.len(), value });
    }
    let name = |pair: &Pair| &text[pair.start..pair.name_end];
    pairs.sort_by(|left, right| name(left).cmp(name(right)));

    digest.part(b"form");
    for pair in &pairs {
        digest.part(name(pair));
        digest.optional(match pair.value {
            Presence::Absent => None,
            Presence::Present => Some(&text[pair.name_end..pair.end]),
        });
    }
    Some(())
}

fn decode(mut encoded: &[u8], out: &mut Vec<u8>) -> Option<()> {
    loop {
        let plain = encoded.iter().position(|byte| matches!(byte, b'%' | b'+')).unwrap_or(encoded.len());
        out.extend_from_slice(&encoded[..plain]);
        encoded = match &encoded[plain..] {
            [] => return Some(()),
            [b'+', rest @ ..] => {
                out.push(b' ');
                rest
            }
            [_, high, low, rest @ ..] => {
                out.push(digit(*high)? << 4 | digit(*low)?);
                rest
            }
            _ => return None,
        };
    }
}

fn digit(hex: u8) -> Option<u8> {
    match hex {
        b'0'..=b'9' => Some(hex - b'0'),
        b'a'..=b'f' => Some(hex - b'a' + 10),
        b'A'..=b'F' => Some(hex - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_pairs_as_allowed_are_sorted_and_one_more_is_not() {
        let hash = |body: &str| hash(body.as_bytes(), &mut Digest::new(None, "test"));
        assert!(hash(&"&".repeat(MOST_PAIRS - 1)).is_some());
        assert!(hash(&"&".repeat(MOST_PAIRS)).is_none());
    }
}
