//! The lines of a head or of trailers, read as strictly as RFC 9112 has them.
//!
//! Lenient parsers differ in what they accept, and requests are smuggled through the difference. What passes here means the same
//! to every parser behind.

use super::refusal::Refusal;

/// The next line of a section.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// A whole line.
    Field(Field<'a>),
    /// The empty line, [`LINE_END`] long.
    End,
    /// A line whose end has not come yet.
    Incomplete,
}

/// One line: a name and what stands after its colon.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Field<'a> {
    pub name: &'a [u8],
    /// Without the spaces around it.
    pub value: &'a [u8],
    /// Of the whole line with its end.
    pub length: usize,
}

/// How long the end of a line is.
pub(super) const LINE_END: usize = 2;

/// Lines that a section may have. It is what hyper reads without an allocation, and refuses beyond.
pub(super) const MAX_FIELDS: usize = 100;

/// Reads one line.
pub(super) fn next(bytes: &[u8]) -> Result<Next<'_>, Refusal> {
    let colon = count(bytes, is_token);
    match bytes.get(colon) {
        None => return Ok(Next::Incomplete),
        Some(b':') if colon > 0 => {}
        Some(b'\r') if colon == 0 => {
            return Ok(if line_end(bytes)? { Next::End } else { Next::Incomplete });
        }
        Some(b' ' | b'\t') if colon == 0 => return Err(Refusal::Folded),
        Some(_) => return misplaced(&bytes[colon..], Refusal::FieldName).map_or(Ok(Next::Incomplete), Err),
    }
    let start = colon + 1;
    let end = start + count(&bytes[start..], is_value);
    match bytes.get(end) {
        None => Ok(Next::Incomplete),
        Some(b'\r') if !line_end(&bytes[end..])? => Ok(Next::Incomplete),
        Some(b'\r') => {
            let value = bytes[start..end].trim_ascii();
            Ok(Next::Field(Field { name: &bytes[..colon], value, length: end + LINE_END }))
        }
        Some(_) => misplaced(&bytes[end..], Refusal::Control).map_or(Ok(Next::Incomplete), Err),
    }
}

/// Whether the CR that these bytes begin with is followed by its LF. `false` where that has not come yet.
pub(super) fn line_end(bytes: &[u8]) -> Result<bool, Refusal> {
    match bytes.get(1) {
        None => Ok(false),
        Some(b'\n') => Ok(true),
        Some(_) => Err(Refusal::LineEnd),
    }
}

/// Why the first of these bytes is refused: a line end or a control character has a reason of its own, and `otherwise` is for all
/// others. `None` where that depends on a byte that has not come yet.
pub(super) fn misplaced(bytes: &[u8], otherwise: Refusal) -> Option<Refusal> {
    match bytes {
        [] | [b'\r'] => None,
        [b'\r', b'\n', ..] => Some(otherwise),
        [b'\r' | b'\n', ..] => Some(Refusal::LineEnd),
        [b'\t' | b' '..=b'~' | 0x80.., ..] => Some(otherwise),
        [0..b' ' | 0x7f, ..] => Some(Refusal::Control),
    }
}

/// How many leading bytes are of a kind.
pub(super) fn count(bytes: &[u8], kind: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|byte| !kind(*byte)).unwrap_or(bytes.len())
}

const TOKEN: u8 = 1;
const VALUE: u8 = 2;
const TARGET: u8 = 4;
const HOST: u8 = 8;

/// A table, because every byte of every head is classified.
static KINDS: [u8; 256] = kinds();

const fn kinds() -> [u8; 256] {
    let mut kinds = [0; 256];
    let mut at = 0;
    while at < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "it is below 256")]
        let byte = at as u8;
        let mut kind = 0;
        if byte.is_ascii_alphanumeric() || contains(b"!#$%&'*+-.^_`|~", byte) {
            kind |= TOKEN;
        }
        if byte == b'\t' || (byte >= b' ' && byte != 0x7f) {
            kind |= VALUE;
        }
        // A request has no fragment, and some parsers cut one off silently.
        if byte.is_ascii_graphic() && byte != b'#' {
            kind |= TARGET;
        }
        // RFC 3986: a registered name or an address, and a port. No user, no list.
        if byte.is_ascii_alphanumeric() || contains(b"-._~!$&'()*+;=%:[]", byte) {
            kind |= HOST;
        }
        kinds[at] = kind;
        at += 1;
    }
    kinds
}

const fn contains(set: &[u8], byte: u8) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}

/// May stand in a method or in a header's name.
pub(super) fn is_token(byte: u8) -> bool {
    KINDS[usize::from(byte)] & TOKEN != 0
}

/// May stand in a header's value.
fn is_value(byte: u8) -> bool {
    KINDS[usize::from(byte)] & VALUE != 0
}

/// May stand in a request's target.
pub(super) fn is_target(byte: u8) -> bool {
    KINDS[usize::from(byte)] & TARGET != 0
}

/// May stand in a host and its port.
pub(super) fn is_host(byte: u8) -> bool {
    KINDS[usize::from(byte)] & HOST != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_or_without_spaces_around_its_value() {
        for line in [b"Host:a\r\n".as_slice(), b"Host: a\r\n", b"Host: \ta \r\n"] {
            let field = Field { name: b"Host", value: b"a", length: line.len() };
            assert_eq!(next(line), Ok(Next::Field(field)));
        }
        assert_eq!(next(b"\r\nHost: a\r\n"), Ok(Next::End));
    }

    #[test]
    fn a_line_whose_end_has_not_come_is_incomplete_wherever_it_is_cut() {
        let line = b"Host: a\r\n";
        for cut in 0..line.len() {
            assert_eq!(next(&line[..cut]), Ok(Next::Incomplete), "{cut}");
        }
        assert_eq!(next(b"\r"), Ok(Next::Incomplete));
    }

    #[test]
    fn a_malformed_line_says_what_is_wrong_with_it() {
        let cases: [(&[u8], Refusal); 13] = [
            (b"Host: a\n", Refusal::LineEnd),
            (b"Host: a\rb\r\n", Refusal::LineEnd),
            (b"Host\n", Refusal::LineEnd),
            (b"\n", Refusal::LineEnd),
            (b"\rHost: a\r\n", Refusal::LineEnd),
            (b"Host : a\r\n", Refusal::FieldName),
            (b"Ho st: a\r\n", Refusal::FieldName),
            (b": a\r\n", Refusal::FieldName),
            (b"Host\r\n", Refusal::FieldName),
            (b"H\xc3\xb6st: a\r\n", Refusal::FieldName),
            (b" a\r\n", Refusal::Folded),
            (b"Host: a\0b\r\n", Refusal::Control),
            (b"Ho\0st: ab\r\n", Refusal::Control),
        ];
        for (line, refusal) in cases {
            assert_eq!(next(line), Err(refusal), "{}", line.escape_ascii());
        }
    }
}
