//! `multipart/*` bodies: their parts, whatever string separates them.
//!
//! Clients make up a new boundary for every try, so the bytes of a retry always differ. Only the plainest shape is
//! taken apart: no text before the first part or after the last, and no line that merely begins like a delimiter. The
//! rest is compared by its bytes, and so is what a part holds: a multipart body within a part keeps its boundary.

use super::content::Boundary;
use crate::digest::Digest;

/// Hashes the parts, each as its header block and its content. `None` if the body does not have the expected shape.
pub(super) fn hash(boundary: Boundary<'_>, body: &[u8], digest: &mut Digest) -> Option<()> {
    let parts = split(boundary, body)?;
    digest.part(b"multipart");
    for (headers, content) in parts {
        digest.part(headers);
        digest.part(content);
    }
    Some(())
}

fn split<'a>(Boundary(boundary): Boundary<'_>, body: &'a [u8]) -> Option<Vec<(&'a [u8], &'a [u8])>> {
    let mut parts = Vec::new();
    let mut rest = body.strip_prefix(b"--")?.strip_prefix(boundary)?;
    loop {
        if let Some(epilogue) = rest.strip_prefix(b"--") {
            return matches!(epilogue, b"" | b"\r\n").then_some(parts).filter(|parts| !parts.is_empty());
        }
        // Only transport padding may stand between a delimiter and the end of its line.
        let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let part = rest[padding..].strip_prefix(b"\r\n")?;
        let end = delimiter(boundary, part)?;
        parts.push(headers_and_content(&part[..end])?);
        rest = &part[end + b"\r\n--".len() + boundary.len()..];
    }
}

/// Where the next line that begins with the delimiter is; at most 74 bytes are compared at each line.
fn delimiter(boundary: &[u8], part: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += part[at..].iter().position(|byte| *byte == b'\r')?;
        if part[at..].strip_prefix(b"\r\n--").is_some_and(|line| line.starts_with(boundary)) {
            return Some(at);
        }
        at += 1;
    }
}

fn headers_and_content(part: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(content) = part.strip_prefix(b"\r\n") {
        return Some((&[], content));
    }
    let end = part.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some((&part[..end], &part[end + 4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(body: &str) -> Option<Vec<(&str, &str)>> {
        let parts = split(Boundary(b"b"), body.as_bytes())?;
        let text = |bytes| str::from_utf8(bytes).unwrap();
        Some(parts.into_iter().map(|(headers, content)| (text(headers), text(content))).collect())
    }

    #[test]
    fn parts_are_split_at_delimiter_lines_only() {
        let body = "--b\r\nA: 1\r\nB: 2\r\n\r\nx --b \r\n- \r\n--b \t\r\n\r\n\r\n\r\n--b--\r\n";
        assert_eq!(parts(body), Some(vec![("A: 1\r\nB: 2", "x --b \r\n- "), ("", "\r\n")]));
        assert_eq!(parts("--b\r\n\r\n\r\n--b--"), Some(vec![("", "")]));
    }

    #[test]
    fn an_unusual_shape_is_not_taken_apart() {
        for body in [
            "",
            "--b",
            "--b--",
            "preamble\r\n--b\r\n\r\nx\r\n--b--",
            "--b\r\n\r\nx\r\n--b--\r\nepilogue",
            "--b\r\n\r\nx\r\n--bc\r\n\r\ny\r\n--b--",
            "--b\r\n\r\nx",
            "--b\r\nA: 1\r\n--b--",
            "--b\r\n--b--",
            "--b\n\nx\n--b--",
        ] {
            assert_eq!(parts(body), None, "{body:?}");
        }
    }
}
