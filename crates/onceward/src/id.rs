//! Where a record lives: one 16-byte id, made from namespace, scope and key.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::{Fence, Key, Scope, Secret};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The primary key of a record: 16 bytes of a hash, so that it also serves as a distribution key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RecordId([u8; 16]);

impl RecordId {
    /// Where a store's own identity is remembered. A key hashes to it with a probability of 2⁻¹²⁸.
    pub(crate) const IDENTITY: Self = Self([0; 16]);

    /// Stands for no operation. The record with this id is the store's identity, which is not one.
    #[cfg(feature = "http")]
    pub(crate) const NONE: Self = Self::IDENTITY;

    /// An id from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The id's bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The text form. Every request has it written once, and formatting byte by byte takes ten times as long.
    pub(crate) fn hex(&self) -> [u8; 32] {
        let mut text = [0; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 0xf)];
        }
        text
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Digits and letters are always text.
        f.write_str(std::str::from_utf8(&self.hex()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a record id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a text of {bytes} bytes is not the id of an operation: it must be 32 hexadecimal digits, and may name its window by a hyphen and more of them, as lists and logs show them"
)]
pub struct NotARecordId {
    // Not the text itself: it may be a key that was put into the wrong place.
    bytes: usize,
}

impl FromStr for RecordId {
    type Err = NotARecordId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || NotARecordId { bytes: text.len() };
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        u128::from_str_radix(text, 16).map(|number| Self(number.to_be_bytes())).map_err(|_| refused())
    }
}

/// Names one operation: the record, and the window of its key that is meant. Windows of one key have different ids, so that
/// a provider which deduplicates by it, or a late event, cannot take today's operation for yesterday's.
///
/// ```
/// use onceward::{Fence, OperationId, RecordId};
/// let id = OperationId::windowed(RecordId::from_bytes([0xab; 16]), Fence::from_number(0x5f));
/// assert_eq!(id.to_string(), "abababababababababababababababab-5f");
/// assert_eq!(id.to_string().parse(), Ok(id));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId {
    record: RecordId,
    opened: Option<Fence>,
}

impl OperationId {
    /// The longest text: the record's digits, a hyphen and the fence's.
    const MAX_TEXT_BYTES: usize = 32 + 1 + 16;

    /// Without a window, as records of format 1 were dispatched.
    pub const fn bare(record: RecordId) -> Self {
        Self { record, opened: None }
    }

    /// With the fence that opened its window.
    pub const fn windowed(record: RecordId, opened: Fence) -> Self {
        Self { record, opened: Some(opened) }
    }

    /// The id of its record.
    pub const fn record(&self) -> RecordId {
        self.record
    }

    /// The fence that opened its window, where it names one.
    pub const fn opened(&self) -> Option<Fence> {
        self.opened
    }

    /// Hands the text form to `with`. Every request has it written once, and formatting takes ten times as long.
    pub(crate) fn with_text<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
        let mut text = [0; Self::MAX_TEXT_BYTES];
        text[..32].copy_from_slice(&self.record.hex());
        let Some(opened) = self.opened else { return with(&text[..32]) };
        text[32] = b'-';
        let number = opened.as_number();
        let digits = (16 - number.leading_zeros() as usize / 4).max(1);
        for (place, byte) in text[33..33 + digits].iter_mut().rev().enumerate() {
            *byte = DIGITS[(number >> (4 * place) & 0xf) as usize];
        }
        with(&text[..33 + digits])
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Digits, letters and a hyphen are always text.
        self.with_text(|text| f.write_str(std::str::from_utf8(text).map_err(|_| fmt::Error)?))
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for OperationId {
    type Err = NotARecordId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || NotARecordId { bytes: text.len() };
        let Some((record, opened)) = text.split_once('-') else {
            return text.parse().map(Self::bare);
        };
        let record = record.parse().map_err(|_| refused())?;
        if opened.is_empty() || !opened.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        let opened = u64::from_str_radix(opened, 16).map_err(|_| refused())?;
        Ok(Self::windowed(record, Fence::from_number(opened)))
    }
}

/// Turns scopes and keys into ids. Under another identity no stored key would be found, so a store remembers a verifier of
/// its identity, and an engine with another one is refused.
///
/// ```
/// use onceward::{Identity, Key, Scope};
/// let identity = Identity::in_namespace("default").scoped_by("authorization")?;
/// let id = identity.id_of(&Scope::new("acme")?, &Key::new("k")?);
/// assert_ne!(id, Identity::in_namespace("other").scoped_by("authorization")?.id_of(&Scope::new("acme")?, &Key::new("k")?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Identity {
    namespace: String,
    scope_rule: String,
    secret: Option<Secret>,
}

/// A namespace as stores know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceHash([u8; 16]);

impl NamespaceHash {
    /// A hash that was written down elsewhere.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for NamespaceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A namespace, which [`scoped_by`](Self::scoped_by) completes to an [`Identity`].
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Namespace<'a>(&'a str);

impl Namespace<'_> {
    /// Its hash, by which stores and receipt tables know it.
    pub fn hash(self) -> NamespaceHash {
        let mut digest = Digest::new(None, "namespace");
        digest.part(self.0.as_bytes());
        NamespaceHash(first_half(digest.finish()))
    }

    /// Describes how scopes are made, so that a change of that rule is noticed. For the tower layer these are its
    /// `ScopeRules`; other callers describe the rule in their own words.
    pub fn scoped_by(self, rule: impl fmt::Display) -> Result<Identity, IdentityError> {
        let scope_rule = rule.to_string();
        for (setting, value) in [("namespace", self.0), ("scope rule", &scope_rule)] {
            if value.is_empty() || value.len() > Identity::MAX_BYTES {
                return Err(IdentityError { setting, value: value.chars().take(64).collect() });
            }
        }
        Ok(Identity { namespace: self.0.to_owned(), scope_rule, secret: None })
    }
}

/// An identity that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {setting} {value:?} must have 1 to {} bytes", Identity::MAX_BYTES)]
pub struct IdentityError {
    setting: &'static str,
    value: String,
}

impl Identity {
    /// A namespace and a scope rule are names that people choose and read.
    pub const MAX_BYTES: usize = 255;

    /// The namespace separates engines that share a store. The scope rule completes the identity.
    pub fn in_namespace(namespace: &str) -> Namespace<'_> {
        Namespace(namespace)
    }

    /// Keys the ids, so that a reader of the database cannot confirm a guess. Keys are then not stored readably.
    pub fn with_secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// How scopes are made, in the words that were given.
    pub(crate) fn scope_rule(&self) -> &str {
        &self.scope_rule
    }

    /// Whether stored hashes are keyed.
    pub fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    pub(crate) fn without_secret(&self) -> Self {
        Self { secret: None, ..self.clone() }
    }

    #[cfg(feature = "http")]
    pub(crate) fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// The id of a key in a scope.
    pub fn id_of(&self, scope: &Scope, key: &Key) -> RecordId {
        let mut digest = Digest::new(self.secret.as_ref(), "id");
        digest.part(self.namespace.as_bytes());
        digest.part(scope.as_str().as_bytes());
        digest.part(key.as_str().as_bytes());
        RecordId(first_half(digest.finish()))
    }

    /// What the record shows of its key: the key itself, or nothing that helps a guess where there is a secret.
    pub(crate) fn label<'a>(&self, id: RecordId, key: &'a Key) -> Cow<'a, str> {
        match self.secret {
            None => Cow::Borrowed(key.as_str()),
            Some(_) => Cow::Owned(format!("#{id}")),
        }
    }

    /// Finds the namespace's entry in a store without writing its name there.
    pub(crate) fn namespace_hash(&self) -> NamespaceHash {
        Namespace(&self.namespace).hash()
    }

    /// Equal for equal settings. The secret cannot be derived from it.
    pub(crate) fn verifier(&self) -> [u8; 16] {
        let mut digest = Digest::new(self.secret.as_ref(), "identity");
        digest.part(self.namespace.as_bytes());
        digest.part(self.scope_rule.as_bytes());
        first_half(digest.finish())
    }
}

fn first_half(digest: [u8; 32]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text_form_and_nonsense_is_refused() {
        let id = RecordId::from_bytes([0xab; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        for nonsense in ["", "abc", &"g".repeat(32), &"+".repeat(32), &"a".repeat(33)] {
            assert!(nonsense.parse::<RecordId>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn an_operation_id_survives_its_text_form_with_and_without_its_window() {
        let record = RecordId::from_bytes([0xab; 16]);
        let windowed = |number| OperationId::windowed(record, Fence::from_number(number));
        let ids = [OperationId::bare(record), windowed(0), windowed(0xf), windowed(0x10), windowed(u64::MAX)];
        for id in ids {
            assert_eq!(id.to_string().parse(), Ok(id), "{id}");
        }
        assert_eq!(
            windowed(1_767_225_600_000_000).to_string(),
            format!("{record}-{:x}", 1_767_225_600_000_000_u64)
        );
        for nonsense in
            ["", "-", "-5", "ab-5", &format!("{record}-"), &format!("{record}-+5"), &format!("{record}-g")]
        {
            assert!(nonsense.parse::<OperationId>().is_err(), "{nonsense}");
        }
        assert!(format!("{record}-{}", "1".repeat(17)).parse::<OperationId>().is_err());
    }

    #[test]
    fn a_secret_changes_ids_and_verifier_and_hides_the_key() {
        let plain = Identity::in_namespace("n").scoped_by("fixed").unwrap();
        let keyed = plain.clone().with_secret(Secret::new(*b"0123456789abcdef").unwrap());
        let (scope, key) = (Scope::new("s").unwrap(), Key::new("visible").unwrap());
        assert_ne!(plain.id_of(&scope, &key), keyed.id_of(&scope, &key));
        assert_ne!(plain.verifier(), keyed.verifier());
        assert_eq!(plain.label(plain.id_of(&scope, &key), &key), "visible");
        assert!(!keyed.label(keyed.id_of(&scope, &key), &key).contains("visible"));
    }

    #[test]
    fn namespace_scope_and_key_cannot_borrow_from_each_other() {
        let id = |namespace: &str, scope: &str, key: &str| {
            Identity::in_namespace(namespace)
                .scoped_by("r")
                .unwrap()
                .id_of(&Scope::new(scope).unwrap(), &Key::new(key).unwrap())
        };
        assert_ne!(id("a", "bc", "d"), id("ab", "c", "d"));
        assert_ne!(id("a", "b", "cd"), id("a", "bc", "d"));
    }
}
