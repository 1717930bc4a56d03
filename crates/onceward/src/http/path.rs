//! The readings of a path.
//!
//! Servers read one path in different ways: some drop empty and dot segments, some decode `%2F` before they look for a
//! slash, some cut `;parameters` or a line feed off. A route that asks for a key must be met by every spelling that the service behind
//! it could take for the route, so a path is compared in each reading. It goes on to the service as it came.

use std::borrow::Cow;

use super::text::percent_decode;

/// What a path means to servers that do not read it as it is written.
#[derive(Debug)]
pub(super) struct Readings(Vec<Segments>);

/// Decoded segments.
pub(super) type Segments = Vec<Vec<u8>>;

/// One of the readings of a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reading<'a> {
    /// As it is written: segments between slashes, decoded one by one.
    Plain(&'a str),
    /// As a server reads it that tidies up.
    Loose(&'a Segments),
}

impl Readings {
    /// Nothing is allocated for a path that has one reading only, as nearly all have.
    pub(super) fn of(path: &str) -> Self {
        let mut loose = Vec::new();
        if !is_plain(path) {
            let decoded = percent_decode(path);
            read(&decoded, &mut loose);
            // The `$` of Python's expressions matches before a line feed at the end, so Starlette and FastAPI do not see one.
            if let Some(line) = decoded.strip_suffix(b"\n") {
                read(line, &mut loose);
            }
            // A slash that is escaped inside a parameter ends a segment for some, and goes with the parameter for others.
            if path.contains(';') && path.contains('%') {
                let cut: Vec<&str> = path.split('/').map(without_parameters).collect();
                read(&percent_decode(&cut.join("/")), &mut loose);
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

/// Whether a path means the same to everybody.
fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    let mut before = None;
    for (at, byte) in bytes.iter().enumerate() {
        let odd = match byte {
            b'%' | b'\\' | b';' => true,
            b'/' => before == Some(b'/') || (at > 0 && at + 1 == bytes.len()),
            // `.` and `..` as segments begin like this; a file such as `/.env` pays a little for it.
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

/// Adds what a tidied path means: also with its slash at the end, which some servers keep.
fn read(decoded: &[u8], into: &mut Vec<Segments>) {
    let segments = tidied(decoded);
    let last = decoded.rsplit(|byte| matches!(byte, b'/' | b'\\')).next().unwrap_or_default();
    let name = last.split(|byte| *byte == b';').next().unwrap_or_default();
    let with_slash = matches!(name, b"" | b"." | b"..").then(|| [&segments[..], &[Vec::new()]].concat());
    into.push(segments);
    into.extend(with_slash);
}

/// Without empty and dot segments, without parameters, either slash being one.
fn tidied(decoded: &[u8]) -> Segments {
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
    fn a_path_that_means_the_same_to_everybody_has_one_reading() {
        for path in ["/", "/payments", "/payments/7", "/a.b/c..d", "/a:b@c,d=e"] {
            assert_eq!(readings(path), [path], "{path}");
        }
    }

    #[test]
    fn a_path_is_read_as_the_tidiest_server_would_read_it() {
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
        // To one server the parameter ends at the escaped slash, to another it does not.
        assert_eq!(readings("/payments;x=%2F..%2Fother")[1..], ["/other", "/payments"]);
        assert_eq!(readings("//payments/")[1..], ["/payments", "/payments/"]);
        assert_eq!(readings("/payments%0A")[1..], ["/payments\n", "/payments"]);
        assert_eq!(readings("/payments%0A%0A")[1..], ["/payments\n\n", "/payments\n"]);
        // Decoded once only.
        assert_eq!(readings("/%2570ayments")[1], "/%70ayments");
    }
}
