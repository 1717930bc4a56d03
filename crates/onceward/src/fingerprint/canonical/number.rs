//! Numbers: their grammar, and the two ways to write them.

/// A number as the text spells it.
pub(super) struct Number<'a> {
    /// All of it, sign included.
    pub(super) text: &'a [u8],
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: &'a [u8],
    exponent_negative: bool,
}

/// Largest count of digits before the point that ECMAScript writes without an exponent.
const MOST_WHOLE_DIGITS: usize = 21;
/// Most zeros that ECMAScript writes between the point and the first digit.
const MOST_LEADING_ZEROS: i64 = 5;
/// An exponent of so many digits, moved by the length of any text, still fits 64 bits. A longer one is either a
/// mistake or an attack, and its body is compared by its bytes.
const MOST_EXPONENT_DIGITS: usize = 18;

/// The number is outside what its form can express.
#[derive(Debug)]
pub(super) struct OutOfRange;

impl<'a> Number<'a> {
    /// Reads the number that `bytes` begin with; `Err` is how many bytes made sense.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, usize> {
        let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let negative = bytes.first() == Some(&b'-');
        let mut at = usize::from(negative);
        let whole_digits = digits(at);
        if whole_digits == 0 || (whole_digits > 1 && bytes[at] == b'0') {
            return Err(at + whole_digits.min(1));
        }
        let whole = &bytes[at..at + whole_digits];
        at += whole_digits;

        let mut fraction: &[u8] = &[];
        if bytes.get(at) == Some(&b'.') {
            let count = digits(at + 1);
            if count == 0 {
                return Err(at + 1);
            }
            fraction = &bytes[at + 1..][..count];
            at += 1 + count;
        }

        let mut exponent: &[u8] = &[];
        let mut exponent_negative = false;
        if let Some(b'e' | b'E') = bytes.get(at) {
            at += 1;
            if let Some(sign @ (b'+' | b'-')) = bytes.get(at) {
                exponent_negative = *sign == b'-';
                at += 1;
            }
            let count = digits(at);
            if count == 0 {
                return Err(at);
            }
            exponent = &bytes[at..at + count];
            at += count;
        }
        Ok(Self { text: &bytes[..at], negative, whole, fraction, exponent, exponent_negative })
    }

    /// Whether [`Self::push_exact`] would write just what was read; false is always safe.
    pub(super) fn is_exact_form(&self) -> bool {
        let below_one = self.whole == b"0";
        let as_written = match self.fraction {
            [] => !below_one || !self.negative,
            [.., b'0'] => false,
            [first, ..] => !below_one || *first != b'0',
        };
        as_written && self.exponent.is_empty() && self.whole.len() <= MOST_WHOLE_DIGITS
    }

    /// Whether [`Self::push_double`] would write just what was read; false is always safe. Fifteen digits always
    /// survive a double.
    pub(super) fn is_double_form(&self) -> bool {
        self.fraction.is_empty() && self.whole.len() <= 15 && self.is_exact_form()
    }

    /// Writes every digit, laid out as ECMAScript lays out the digits of a double: so a number whose shortest double
    /// is itself is written as RFC 8785 writes it, and no other is rounded to it.
    pub(super) fn push_exact(&self, out: &mut Vec<u8>) -> Result<(), OutOfRange> {
        let all = || self.whole.iter().chain(self.fraction).copied();
        let leading = all().take_while(|digit| *digit == b'0').count();
        let total = self.whole.len() + self.fraction.len();
        if leading == total {
            out.push(b'0');
            return Ok(());
        }
        let trailing = all().rev().take_while(|digit| *digit == b'0').count();
        let count = total - leading - trailing;
        let digits = || all().skip(leading).take(count);
        // The value is 0.DIGITS times ten to this power; lengths are far below what 63 bits hold.
        let shift = self.whole.len().cast_signed() as i64 - leading.cast_signed() as i64;
        let point = self.exponent()? + shift;

        if self.negative {
            out.push(b'-');
        }
        match usize::try_from(point) {
            Ok(point @ 1..=MOST_WHOLE_DIGITS) => {
                out.extend(digits().chain(std::iter::repeat(b'0')).take(point));
                if count > point {
                    out.push(b'.');
                    out.extend(digits().skip(point));
                }
            }
            _ if (-MOST_LEADING_ZEROS..=0).contains(&point) => {
                out.extend_from_slice(b"0.");
                out.extend((point..0).map(|_| b'0'));
                out.extend(digits());
            }
            _ => {
                out.extend(digits().take(1));
                if count > 1 {
                    out.push(b'.');
                    out.extend(digits().skip(1));
                }
                out.push(b'e');
                out.push(if point > 0 { b'+' } else { b'-' });
                out.extend_from_slice((point - 1).unsigned_abs().to_string().as_bytes());
            }
        }
        Ok(())
    }

    /// Writes the shortest text that reads back as the same double.
    pub(super) fn push_double(&self, out: &mut Vec<u8>) -> Result<(), OutOfRange> {
        let text = str::from_utf8(self.text).map_err(|_| OutOfRange)?;
        let value: f64 = text.parse().map_err(|_| OutOfRange)?;
        if !value.is_finite() {
            return Err(OutOfRange);
        }
        out.extend_from_slice(ryu_js::Buffer::new().format_finite(value).as_bytes());
        Ok(())
    }

    fn exponent(&self) -> Result<i64, OutOfRange> {
        let zeros = self.exponent.iter().take_while(|digit| **digit == b'0').count();
        let digits = &self.exponent[zeros..];
        if digits.len() > MOST_EXPONENT_DIGITS {
            return Err(OutOfRange);
        }
        let value = digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
        Ok(if self.exponent_negative { -value } else { value })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exact(text: &str) -> String {
        let number = Number::read(text.as_bytes()).unwrap();
        assert_eq!(number.text, text.as_bytes());
        let mut out = Vec::new();
        number.push_exact(&mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(
            !number.is_exact_form() || out == text,
            "{text} was taken for its own exact form, but that is {out}"
        );
        out
    }

    #[test]
    fn spellings_of_one_number_are_written_alike() {
        for (spellings, form) in [
            (&["1", "1.0", "1e0", "1E+0", "10e-1", "0.1e1", "0.001e3", "100000e-5", "1e-0"][..], "1"),
            (&["100", "1e2", "1E2", "100.00", "0.1e3", "1e002"], "100"),
            (&["0", "-0", "0.0", "-0.0", "0e5", "0e99999999999999999999999999", "-0e-1"], "0"),
            (&["-1.50", "-15e-1", "-0.15e1"], "-1.5"),
            (&["0.1", "1e-1", "0.10"], "0.1"),
            (&["0.000001", "1e-6", "10e-7"], "0.000001"),
            (&["0.0000001", "1e-7"], "1e-7"),
            (&["0.00000012", "1.2e-7"], "1.2e-7"),
            (&["1e20", "100000000000000000000"], "100000000000000000000"),
            (&["1e21", "1000000000000000000000", "0.1e22"], "1e+21"),
            (&["123456789012345678901234", "1.23456789012345678901234e23"], "1.23456789012345678901234e+23"),
            (&["1e400", "0.1e401"], "1e+400"),
            (&["1e999999999999999999", "10e999999999999999998"], "1e+999999999999999999"),
        ] {
            for spelling in spellings {
                assert_eq!(exact(spelling), form, "{spelling}");
            }
        }
    }

    #[test]
    fn an_exponent_beyond_all_reason_is_refused_at_once() {
        for text in ["1e9999999999999999999", "-1e-9999999999999999999999999999999"] {
            assert!(Number::read(text.as_bytes()).unwrap().push_exact(&mut Vec::new()).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused_where_it_stops_being_one() {
        for (text, at) in
            [("-", 1), ("01", 1), ("-01", 2), ("1.", 2), ("1.e1", 2), ("1e", 2), ("1e+", 3), ("-a", 1)]
        {
            assert_eq!(Number::read(text.as_bytes()).err(), Some(at), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_number_that_is_its_own_shortest_double_is_written_as_rfc_8785_writes_it(value: f64) {
            prop_assume!(value.is_finite());
            let mut buffer = ryu_js::Buffer::new();
            let shortest = buffer.format_finite(value);
            prop_assert_eq!(exact(shortest), shortest);
            if !shortest.contains('e') {
                prop_assert_eq!(exact(&format!("{shortest}E-00")), shortest);
            }
        }

        #[test]
        fn moving_the_point_and_the_exponent_together_changes_nothing(
            digits in "[1-9][0-9]{0,30}", zeros in 0usize..30, exponent in -60i64..60,
        ) {
            let moved = exponent - i64::try_from(zeros).unwrap();
            let form = exact(&format!("{digits}e{exponent}"));
            prop_assert_eq!(&exact(&format!("{digits}{}e{moved}", "0".repeat(zeros))), &form);
            let down = exponent + 1 + i64::try_from(zeros + digits.len()).unwrap();
            prop_assert_eq!(&exact(&format!("0.0{}{digits}e{down}", "0".repeat(zeros))), &form);
            prop_assert_eq!(&exact(&form), &form);
        }

        #[test]
        fn another_last_digit_is_another_number(digits in "[1-9][0-9]{0,40}", exponent in -60i64..60) {
            prop_assert_ne!(exact(&format!("{digits}1e{exponent}")), exact(&format!("{digits}2e{exponent}")));
            prop_assert_ne!(exact(&format!("{digits}e{exponent}")), exact(&format!("-{digits}e{exponent}")));
            prop_assert_ne!(exact(&format!("{digits}e{exponent}")), exact(&format!("{digits}e{}", exponent + 1)));
        }
    }
}
