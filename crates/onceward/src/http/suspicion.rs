//! Keys that somebody else may use, too.

use crate::Key;

/// A random key has at least 64 bits, which are 16 hexadecimal digits.
const SHORTEST_RANDOM: usize = 16;
/// Telephone numbers have this many digits, by the plan of the ITU; fewer are short keys anyway.
const TELEPHONE_DIGITS: std::ops::RangeInclusive<usize> = 7..=15;

/// Whether a key looks as if it were not made for one operation: short, an e-mail address, or a telephone number. It is
/// accepted all the same, and counted, because the second operation of such a customer is refused or answered with the
/// first one's answer.
pub(super) fn is_suspicious(key: &Key) -> bool {
    let key = key.as_str();
    key.len() < SHORTEST_RANDOM || is_email(key) || is_telephone(key)
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
    fn what_is_short_or_names_a_person_is_suspicious_and_what_is_random_is_not() {
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
