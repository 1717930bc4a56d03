//! RFC 6901 pointers to what a fingerprint leaves out.

use std::fmt;

use super::canonical::push_escaped;

/// A place in a JSON document, such as `/metadata/sent_at` or `/items/0/note`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Pointer {
    source: Box<str>,
    tokens: Box<[Token]>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Token {
    /// In canonical spelling, in which every name has one, so that it can be compared with canonical text.
    name: Box<[u8]>,
    index: Option<usize>,
}

/// A pointer that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pointer {pointer:?} {rule}")]
pub struct PointerError {
    pointer: String,
    rule: &'static str,
}

impl Pointer {
    pub(super) fn parse(source: &str) -> Result<Self, PointerError> {
        let broken = |rule| PointerError { pointer: source.to_owned(), rule };
        if source.is_empty() {
            return Err(broken("means the whole body: name the members to leave out, such as \"/sent_at\""));
        }
        let Some(tokens) = source.strip_prefix('/') else {
            return Err(broken("must begin with a slash, as in \"/sent_at\""));
        };
        let tokens: Option<_> = tokens.split('/').map(Token::parse).collect();
        match tokens {
            Some(tokens) => Ok(Self { source: source.into(), tokens }),
            None => Err(broken("has a ~ that is not followed by 0 or 1: write ~0 for ~ and ~1 for /")),
        }
    }

    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub(super) fn as_str(&self) -> &str {
        &self.source
    }
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
}

impl Token {
    fn parse(token: &str) -> Option<Self> {
        let mut name = Vec::new();
        let mut characters = token.chars();
        while let Some(character) = characters.next() {
            let character = match character {
                '~' => match characters.next()? {
                    '0' => '~',
                    '1' => '/',
                    _ => return None,
                },
                other => other,
            };
            push_escaped(&mut name, character);
        }
        // RFC 6901 knows no leading zeros, no signs, and gives `-` to the element after the last, which is never there.
        let is_index =
            token == "0" || (!token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit()));
        let index = if is_index { token.parse().ok() } else { None };
        Some(Self { name: name.into(), index })
    }

    /// Whether it names this member; `name` is in canonical spelling, without quotes.
    pub(super) fn is_name(&self, name: &[u8]) -> bool {
        *self.name == *name
    }

    /// Whether it names the element at this place.
    pub(super) fn is_index(&self, index: usize) -> bool {
        self.index == Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_unescaped_once_and_in_the_order_of_the_rfc() {
        let pointer = Pointer::parse("/a~1b/~01/\"/ü").unwrap();
        let [slash, tilde, quote, umlaut] = pointer.tokens() else { panic!("four tokens") };
        assert!(slash.is_name(b"a/b"));
        assert!(tilde.is_name(b"~1"));
        assert!(quote.is_name(b"\\\""));
        assert!(umlaut.is_name("ü".as_bytes()));
    }

    #[test]
    fn an_index_has_no_sign_and_no_leading_zeros() {
        for (token, index) in
            [("0", Some(0)), ("12", Some(12)), ("01", None), ("-", None), ("+1", None), ("", None)]
        {
            assert_eq!(Token::parse(token).unwrap().index, index, "{token:?}");
        }
        assert_eq!(Token::parse("99999999999999999999999").unwrap().index, None);
    }

    #[test]
    fn a_broken_pointer_is_named_with_the_rule_it_breaks() {
        for (source, word) in [("", "whole body"), ("a", "slash"), ("/a~", "~0"), ("/a~2", "~0")] {
            let error = Pointer::parse(source).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains(&format!("{source:?}")), "{error}");
        }
    }
}
