//! The different ways in which servers read one path.
//!
//! Some drop empty and dot segments, some decode `%2F` before they split at slashes, some cut off `;parameters` or a line
//! feed. A route that requires a key must match every spelling that its service could take for it, so routes are compared
//! with each reading of a path. The service gets the path as it came.

use std::borrow::Cow;

use super::percent::percent_decode;

/// The readings of a path by servers that normalise it.
#[derive(Debug)]
pub(super) struct Readings(Vec<Segments>);

/// Decoded segments.
pub(super) type Segments = Vec<Vec<u8>>;

/// One of the readings of a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reading<'a> {
    /// As it is written: segments between slashes, decoded one by one.
    Plain(&'a str),
    /// As a server that normalises paths reads it.
    Loose(&'a Segments),
}

impl Readings {
    /// Allocates nothing for a path with a single reading, which nearly all have.
    pub(super) fn of(path: &str) -> Self {
        let mut loose = Vec::new();
        if !is_plain(path) {
            let decoded = percent_decode(path);
            add_readings(&decoded, &mut loose);
            // Python's `$` also matches before a line feed at the end, so Starlette and FastAPI ignore it.
            if let Some(line) = decoded.strip_suffix(b"\n") {
                add_readings(line, &mut loose);
            }
            // For some servers an escaped slash inside a parameter ends the segment, for others it is part of the parameter.
            if path.contains(';') && path.contains('%') {
                let cut: Vec<&str> = path.split('/').map(without_parameters).collect();
                add_readings(&percent_decode(&cut.join("/")), &mut loose);
            }
        }
        Self(loose)
    }

    /// The readings besides the plain one.
    pub(super) fn loose(&self) -> impl Iterator<Item = Reading<'_>> {
        self.0.iter().map(Reading::Loose)
    }
}

impl Reading<'_> {
    /// The decoded segments, in order.
    pub(super) fn segments(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let (plain, loose) = match self {
            Self::Plain(path) => (Some(path.strip_prefix('/').unwrap_or(path).split('/')), None),
            Self::Loose(segments) => (None, Some(segments.iter())),
        };
        let plain = plain.into_iter().flatten().map(percent_decode);
        plain.chain(loose.into_iter().flatten().map(|segment| Cow::Borrowed(segment.as_slice())))
    }
}

fn without_parameters(segment: &str) -> &str {
    segment.split(';').next().unwrap_or_default()
}

/// Whether every server reads the path in the same way.
fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    let mut before = None;
    for (at, byte) in bytes.iter().enumerate() {
        let odd = match byte {
            b'%' | b'\\' | b';' => true,
            b'/' => before == Some(b'/') || (at > 0 && at + 1 == bytes.len()),
            // The segments `.` and `..` begin like this. So do names such as `.env`, whose readings are then all the same.
            b'.' => before == Some(b'/'),
            _ => false,
        };
        if odd {
            return false;
        }
        before = Some(*byte);
    }
    true
}

/// Adds the normalised path, and the same with its trailing slash, which some servers keep.
fn add_readings(decoded: &[u8], into: &mut Vec<Segments>) {
    let segments = normalised(decoded);
    let last = decoded.rsplit(|byte| matches!(byte, b'/' | b'\\')).next().unwrap_or_default();
    let name = last.split(|byte| *byte == b';').next().unwrap_or_default();
    let with_slash = matches!(name, b"" | b"." | b"..").then(|| [&segments[..], &[Vec::new()]].concat());
    into.push(segments);
    into.extend(with_slash);
}

/// The segments without empty ones, dot segments and parameters. Slash and backslash both separate.
fn normalised(decoded: &[u8]) -> Segments {
    let mut segments = Segments::new();
    for segment in decoded.split(|byte| matches!(byte, b'/' | b'\\')) {
        match segment.split(|byte| *byte == b';').next().unwrap_or_default() {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            name => segments.push(name.to_vec()),
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(path: &str) -> Vec<String> {
        let loose = Readings::of(path);
        let text = |reading: Reading<'_>| {
            reading.segments().map(|segment| format!("/{}", String::from_utf8_lossy(&segment))).collect()
        };
        [Reading::Plain(path)].into_iter().chain(loose.loose()).map(text).collect()
    }

    #[test]
    fn a_path_that_every_server_reads_alike_has_one_reading() {
        for path in ["/", "/payments", "/payments/7", "/a.b/c..d", "/a:b@c,d=e"] {
            assert_eq!(readings(path), [path], "{path}");
        }
    }

    #[test]
    fn a_path_is_read_as_the_most_normalising_server_reads_it() {
        for path in [
            "//payments",
            "/payments/",
            "/payments//",
            "/./payments",
            "/payments/.",
            "/x/../payments",
            "/../payments",
            "/x/..;v=1/payments",
            "/payments;v=1",
            "/payments;",
            "/%2Fpayments",
            "/%2e/payments",
            "/x%2f%2E%2e%2fpayments",
            "/x\\..\\payments",
            "/x%5C..%5Cpayments",
            "/payments%3Bv=1",
            "/p%61yments",
        ] {
            assert_eq!(readings(path)[1], "/payments", "{path}");
        }
        // For one server the parameter ends at the escaped slash, for another it does not.
        assert_eq!(readings("/payments;x=%2F..%2Fother")[1..], ["/other", "/payments"]);
        assert_eq!(readings("//payments/")[1..], ["/payments", "/payments/"]);
        assert_eq!(readings("/payments%0A")[1..], ["/payments\n", "/payments"]);
        assert_eq!(readings("/payments%0A%0A")[1..], ["/payments\n\n", "/payments\n"]);
        // Escapes are decoded once.
        assert_eq!(readings("/%2570ayments")[1], "/%70ayments");
    }
}
