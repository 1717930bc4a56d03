//! The `Idempotency-Key`, and what else names an operation: scope, identity and ids.

use std::{convert::Infallible, fmt, sync::Arc};

use sfv::{BareItemFromInput, Parser, visitor::Ignored};

use crate::digest::Digest;
pub use crate::id::{Identity, IdentityError, Namespace, NamespaceHash, NotARecordId, OperationId, RecordId};
pub use crate::scope::{Scope, ScopeError};
pub use crate::secret::{Secret, SecretTooShort};

/// A client's name for one operation: 1 to 255 bytes of printable ASCII.
///
/// Keys are compared byte for byte, so case and inner spaces matter. A client that knows a key may be able to fetch the
/// stored answer, so `Debug` shows a short hash instead, and no error repeats one.
///
/// ```
/// use onceward::{Key, key::Syntax};
///
/// let bare = Key::parse_header(b"order-17", Syntax::Lenient, 1)?;
/// let quoted = Key::parse_header(b"\"order-17\"", Syntax::Lenient, 1)?;
/// assert_eq!(bare, quoted);
/// assert_eq!(bare.as_str(), "order-17");
/// assert!(Key::parse_header(b"order-17", Syntax::Strict, 1).is_err());
/// assert!(!format!("{bare:?}").contains("order"));
/// # Ok::<(), onceward::key::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Arc<str>);

/// Which spellings of a key a header may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Syntax {
    /// `"k"`, as the IETF draft has it, or the bare `k` that most clients in the world send today.
    #[default]
    Lenient,
    /// Only the structured-field String `"k"`.
    Strict,
}

/// Why a header is not a key. Names the rule and the place, and never repeats the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Two values cannot both name the operation, and picking one could merge two operations.
    #[error("the key came in more than one header line: send exactly one")]
    SeveralLines,
    /// An empty key would be shared by every client that forgot to fill it in.
    #[error("the key is empty: send 1 to {} characters, such as a random UUID", Key::MAX_BYTES)]
    Empty,
    /// Above [`Key::MAX_BYTES`].
    #[error(
        "the key has {found} bytes, but at most {} are allowed: send a shorter one, such as a random UUID",
        Key::MAX_BYTES
    )]
    TooLong {
        /// Its length after unquoting.
        found: usize,
    },
    /// Below the configured least length: short keys collide and are guessed.
    #[error("the key has {found} bytes, but at least {least} are needed here: send a random UUID")]
    TooShort {
        /// Its length after unquoting.
        found: usize,
        /// The configured least length.
        least: usize,
    },
    /// A byte that may not occur at its place.
    #[error("byte {at} of the key is {class}, which is not allowed there: {}", class.advice())]
    ForbiddenByte {
        /// Offset within the header value, spaces around it not counted.
        at: usize,
        /// What sort of byte it is.
        class: ByteClass,
    },
    /// Strict syntax, or an opening quote, asked for a structured-field String.
    #[error(
        "the key is not a structured-field String (RFC 9651) from byte {at} on: send it as \"…\", with \\ before each \" and \\ inside"
    )]
    NotAString {
        /// Offset within the header value, spaces around it not counted.
        at: usize,
    },
}

/// Classes of bytes that a key may not hold. Errors name the class, because the byte itself is part of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ByteClass {
    /// Below 0x20, or 0x7f.
    Control,
    /// Above 0x7f.
    NonAscii,
    /// A space in a bare key.
    Space,
    /// One of `"`, `\`, `,` and `;` in a bare key.
    Delimiter,
}

impl ByteClass {
    fn advice(self) -> &'static str {
        match self {
            Self::Control | Self::NonAscii => "use printable ASCII only",
            Self::Space | Self::Delimiter => "put the whole key in double quotes",
        }
    }
}

impl fmt::Display for ByteClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "a control character",
            Self::NonAscii => "not ASCII",
            Self::Space => "a space",
            Self::Delimiter => "one of \" \\ , ;",
        })
    }
}

impl Key {
    /// What Stripe allows, and what fits a `varchar(255)` column, where applications store keys beside their own rows.
    pub const MAX_BYTES: usize = 255;

    /// A key that did not come in a header: from a queue, a job or a webhook.
    pub fn new(key: &str) -> Result<Self, KeyError> {
        if key.is_empty() {
            return Err(KeyError::Empty);
        }
        if key.len() > Self::MAX_BYTES {
            return Err(KeyError::TooLong { found: key.len() });
        }
        printable(key.as_bytes()).map(|key| Self(key.into()))
    }

    /// The key in one header line. Spaces and tabs around the value are not part of it, as everywhere in HTTP.
    pub fn parse_header(value: &[u8], syntax: Syntax, min_length: usize) -> Result<Self, KeyError> {
        let value = trim(value);
        if value.is_empty() {
            return Err(KeyError::Empty);
        }
        let key = match (syntax, value[0]) {
            (Syntax::Strict, _) | (Syntax::Lenient, b'"') => quoted(value)?,
            (Syntax::Lenient, _) => bare(value)?,
        };
        if key.0.len() < min_length {
            return Err(KeyError::TooShort { found: key.0.len(), least: min_length });
        }
        Ok(key)
    }

    /// The key among all lines of the header: none is `None`, and two are an error even if they agree, because a
    /// proxy in between may have joined or dropped one.
    ///
    /// ```
    /// use onceward::{Key, key::{KeyError, Syntax}};
    ///
    /// let none: [&[u8]; 0] = [];
    /// assert_eq!(Key::from_header_lines(none, Syntax::Lenient, 1), Ok(None));
    /// let two: [&[u8]; 2] = [b"k", b"k"];
    /// assert_eq!(Key::from_header_lines(two, Syntax::Lenient, 1), Err(KeyError::SeveralLines));
    /// ```
    pub fn from_header_lines<'a>(
        lines: impl IntoIterator<Item = &'a [u8]>,
        syntax: Syntax,
        min_length: usize,
    ) -> Result<Option<Self>, KeyError> {
        let mut lines = lines.into_iter();
        match (lines.next(), lines.next()) {
            (None, _) => Ok(None),
            (Some(line), None) => Self::parse_header(line, syntax, min_length).map(Some),
            (Some(_), Some(_)) => Err(KeyError::SeveralLines),
        }
    }

    /// The key itself. Do not log it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digest = Digest::new(None, "onceward key shown in logs");
        digest.part(self.0.as_bytes());
        let [a, b, c, d, ..] = digest.finish();
        write!(f, "Key(#{a:02x}{b:02x}{c:02x}{d:02x})")
    }
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn printable(bytes: &[u8]) -> Result<&str, KeyError> {
    let forbidden = |at: usize| {
        let class = if bytes[at].is_ascii() { ByteClass::Control } else { ByteClass::NonAscii };
        KeyError::ForbiddenByte { at, class }
    };
    match bytes.iter().position(|byte| !matches!(byte, b' '..=b'~')) {
        Some(at) => Err(forbidden(at)),
        None => std::str::from_utf8(bytes).map_err(|error| forbidden(error.valid_up_to())),
    }
}

fn quoted(value: &[u8]) -> Result<Key, KeyError> {
    let value = printable(value)?;
    let mut key = None;
    let parsed = Parser::new(value).parse_item_with_visitor(|item: BareItemFromInput<'_>| {
        if let BareItemFromInput::String(string) = item {
            key = Some(Key::new(string.as_str()));
        }
        Ok::<_, Infallible>(Ignored)
    });
    match (parsed, key) {
        (Ok(()), Some(key)) => key,
        (Ok(()), None) => Err(KeyError::NotAString { at: 0 }),
        (Err(error), _) => Err(KeyError::NotAString { at: error.index().unwrap_or(0) }),
    }
}

fn bare(value: &[u8]) -> Result<Key, KeyError> {
    let value = printable(value)?;
    match value.find([' ', '"', '\\', ',', ';']) {
        None => Key::new(value),
        Some(at) => {
            let class = if value[at..].starts_with(' ') { ByteClass::Space } else { ByteClass::Delimiter };
            Err(KeyError::ForbiddenByte { at, class })
        }
    }
}

#[cfg(test)]
mod tests;
