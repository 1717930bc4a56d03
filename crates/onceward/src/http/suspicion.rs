//! Keys that were probably not made for one operation.

use crate::Key;

/// 64 bits in hexadecimal digits, the shortest that a random key should be.
const RANDOM_KEY_MIN_LENGTH: usize = 16;
/// The digits of a telephone number: at most 15 by ITU E.164. Shorter keys than seven are suspicious anyway.
const TELEPHONE_DIGITS: std::ops::RangeInclusive<usize> = 7..=15;

/// Whether a key is short, an e-mail address, or a telephone number. A client that uses such a key for a second operation
/// gets a refusal or the first one's answer. So the key is accepted, and counted.
pub(super) fn is_suspicious(key: &Key) -> bool {
    let key = key.as_str();
    key.len() < RANDOM_KEY_MIN_LENGTH || is_email(key) || is_telephone(key)
}

fn is_email(key: &str) -> bool {
    let Some((name, domain)) = key.split_once('@') else { return false };
    let labels = || domain.split('.');
    let label = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    !name.is_empty() && !name.contains(' ') && labels().count() > 1 && labels().all(label)
}

fn is_telephone(key: &str) -> bool {
    let digits = key.bytes().filter(u8::is_ascii_digit).count();
    let sign = |byte: u8| matches!(byte, b' ' | b'-' | b'.' | b'/' | b'(' | b')');
    let number = key.strip_prefix('+').unwrap_or(key);
    TELEPHONE_DIGITS.contains(&digits) && number.bytes().all(|byte| byte.is_ascii_digit() || sign(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_key_or_one_that_names_a_person_is_suspicious_and_a_random_one_is_not() {
        for (key, suspicious) in [
            ("order-17", true),
            ("123456789012345", true),
            ("1234567890123456", false),
            ("ada.lovelace@mail.example.org", true),
            ("ada@localhost-without-dot", false),
            ("@not.an.address.org", false),
            ("two words@example.org", false),
            ("+44 (0) 20 7946 0123", true),
            ("0049-30-1234-5678-0", true),
            ("018f4d5e-7c2a-7b3e-9f10-2a6b8c1d0e4f", false),
            ("order-2027-01-15-000017", false),
            ("2027-01-15 08:00:00.123", false),
        ] {
            assert_eq!(is_suspicious(&Key::new(key).unwrap()), suspicious, "{key}");
        }
    }
}
