//! Who a key belongs to.

use std::fmt;
use std::sync::Arc;

/// The tenant that a key belongs to: the same key in two scopes names two operations.
///
/// ```
/// use onceward::Scope;
/// assert_eq!(Scope::new("acme")?.as_str(), "acme");
/// // Parts are kept apart, whatever they contain.
/// assert_ne!(Scope::from_parts(["a,b", "c"])?, Scope::from_parts(["a", "b,c"])?);
/// assert!(Scope::new("").is_err());
/// # Ok::<(), onceward::key::ScopeError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Arc<str>);

/// The prefix of an observed operation's scope.
pub(crate) const SHADOW: &str = "%shadow,";

/// A scope that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// There was no part, or an empty one: requests without a tenant must not share one by accident.
    #[error("part {index} of the scope is empty: every part must name something")]
    Empty {
        /// Which part, from zero.
        index: usize,
    },
    /// The scope would not fit its column.
    #[error("the scope has {found} bytes, but at most {} are kept: hash long parts first", Scope::MAX_BYTES)]
    TooLong {
        /// How long it was.
        found: usize,
    },
}

impl Scope {
    /// Room for a tenant id beside a user id, each as long as a UUID or a hash, several times over.
    pub const MAX_BYTES: usize = 512;

    /// A scope of one part.
    pub fn new(part: &str) -> Result<Self, ScopeError> {
        Self::from_parts([part])
    }

    /// A scope of several parts, all of which must agree. The text is injective: `,` and `%` inside a part are escaped.
    pub fn from_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Result<Self, ScopeError> {
        let mut text = String::new();
        let mut count = 0;
        for (index, part) in parts.into_iter().enumerate() {
            if part.is_empty() {
                return Err(ScopeError::Empty { index });
            }
            if index > 0 {
                text.push(',');
            }
            for character in part.chars() {
                match character {
                    ',' => text.push_str("%2C"),
                    '%' => text.push_str("%25"),
                    other => text.push(other),
                }
            }
            count += 1;
        }
        if count == 0 {
            return Err(ScopeError::Empty { index: 0 });
        }
        if text.len() > Self::MAX_BYTES {
            return Err(ScopeError::TooLong { found: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// The same tenant in the domain of routes that only observe. No parts make such a text, because `%` is escaped in them.
    #[cfg(feature = "http")]
    pub(crate) fn shadow(&self) -> Self {
        Self(format!("{SHADOW}{}", self.0).into())
    }

    /// Whether this is a tenant in that domain.
    pub(crate) fn is_shadow(&self) -> bool {
        self.0.starts_with(SHADOW)
    }

    /// The parts, escaped and joined with commas.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A scope can be a person or a customer: it is shown to operators who ask, not to logs.
        f.write_str("Scope(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_accepted_at_its_limit_and_refused_one_byte_beyond() {
        assert!(Scope::new(&"x".repeat(Scope::MAX_BYTES)).is_ok());
        assert_eq!(
            Scope::new(&"x".repeat(Scope::MAX_BYTES + 1)),
            Err(ScopeError::TooLong { found: Scope::MAX_BYTES + 1 })
        );
    }

    #[cfg(feature = "http")]
    #[test]
    fn no_parts_make_the_scope_of_a_shadow() {
        let shadow = Scope::new("acme").unwrap().shadow();
        assert_ne!(shadow, Scope::from_parts(["%shadow", "acme"]).unwrap());
        assert_ne!(shadow, Scope::new("%shadow,acme").unwrap());
    }

    #[test]
    fn a_missing_part_is_named_by_its_position() {
        assert_eq!(Scope::from_parts(["tenant", ""]), Err(ScopeError::Empty { index: 1 }));
        assert_eq!(Scope::from_parts([]), Err(ScopeError::Empty { index: 0 }));
    }
}
