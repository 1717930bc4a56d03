//! String escapes: finding the next special byte, and RFC 8785's one escape for each character.

/// How many bytes from here on are neither a quote, a backslash nor a control character. Reads eight at a time,
/// because most bytes of most bodies are in strings.
pub(super) fn plain_run(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES << 7;
    // Marks the high bit of every byte below `limit`; borrows can only spoil marks above the lowest, which is the one
    // that is used.
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGH;

    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let marks = below(word, 0x20)
            | below(word ^ (ONES * u64::from(b'"')), 1)
            | below(word ^ (ONES * u64::from(b'\\')), 1);
        if marks != 0 {
            return index * 8 + (marks.trailing_zeros() / 8) as usize;
        }
    }
    let special = rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'));
    words.len() * 8 + special.unwrap_or(rest.len())
}

/// Writes one character of a string as RFC 8785 does.
pub(crate) fn push_escaped(text: &mut Vec<u8>, character: char) {
    let short = match character {
        '"' => b'"',
        '\\' => b'\\',
        '\u{8}' => b'b',
        '\t' => b't',
        '\n' => b'n',
        '\u{c}' => b'f',
        '\r' => b'r',
        '\0'..' ' => {
            text.extend_from_slice(b"\\u00");
            text.push(if character < '\u{10}' { b'0' } else { b'1' });
            text.push(b"0123456789abcdef"[(u32::from(character) & 0xf) as usize]);
            return;
        }
        _ => {
            text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            return;
        }
    };
    text.extend_from_slice(&[b'\\', short]);
}

/// Four hexadecimal digits.
pub(super) fn code_unit(digits: [u8; 4]) -> Option<u16> {
    digits.iter().try_fold(0u16, |unit, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        Some(unit << 4 | u16::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn eight_bytes_at_a_time_find_what_one_at_a_time_finds(bytes: Vec<u8>, at in 0usize..40, special: u8) {
            let mut bytes = bytes;
            let mut plain: Vec<u8> = vec![b'x'; at];
            plain.push(special);
            for bytes in [&mut bytes, &mut plain] {
                let slow = bytes.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\')).unwrap_or(bytes.len());
                prop_assert_eq!(plain_run(bytes), slow);
            }
        }
    }
}
