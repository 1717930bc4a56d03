//! Fingerprints: is this the request that the key was first used for?
//!
//! A key alone does not say what a client wants. The fingerprint does. It has two parts, both stored with the key: the
//! **target** is a hash of method, path and query, which no setting changes, and the **content** a hash of these with chosen
//! headers, content type and body, under settings that have an id. A retry has the same fingerprint, even if it was
//! serialized anew with its members in another order; a request that reuses the key for something else has another, and
//! is refused. Targets always must agree. Contents are compared only where they were made under the same settings.
//!
//! | body | the same request | compared by its bytes instead |
//! | --- | --- | --- |
//! | `application/json`, `…+json` | white space, order of members, spelling of characters and numbers | not JSON, not UTF-8, two members of one name, half a surrogate pair, too deep, an exponent of more than 18 digits |
//! | `application/x-www-form-urlencoded` | order of different names, spelling of characters | a broken `%` escape, more than 16,384 fields |
//! | `multipart/…` | the boundary string | text before the first part or after the last, doubtful delimiters |
//! | any other, or with a `content-encoding` | | always |
//!
//! Every doubt is resolved towards *different*, because a request that is refused can be corrected and one that is
//! answered with another client's reply cannot: what does not parse cleanly is compared by its bytes.

mod canonical;
mod content;
mod form;
mod multipart;
mod pointer;
mod profile;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use canonical::{MAX_CANONICAL_BYTES, NotCanonical, Numbers, WORST_GROWTH, canonicalize};
pub use pointer::PointerError;
pub use profile::{Builder, Headers, Parts, Profile, ProfileError};
#[cfg(feature = "http")]
pub(crate) use profile::{changes_with_every_try, is_own};

use crate::{Secret, digest::Digest};

/// What a request asks for: its target, its content, and under which rules the content was hashed.
///
/// ```
/// use onceward::fingerprint::{Comparison, Fingerprint};
///
/// let first = Fingerprint::of_bytes(b"charge 10 EUR");
/// assert_eq!(first.compare(&Fingerprint::of_bytes(b"charge 10 EUR")), Comparison::Same);
/// assert_eq!(first.compare(&Fingerprint::of_bytes(b"charge 99 EUR")), Comparison::Different);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint {
    target: Option<Target>,
    profile: ProfileId,
    digest: [u8; 32],
}

/// A hash of where a request goes: method, path and query. No setting changes it but the secret that keys all hashes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target([u8; 16]);

impl Target {
    /// The target of work that is not an HTTP request. A request hashes to it with a probability of 2⁻¹²⁸.
    const OPAQUE: Self = Self([0; 16]);

    /// As stored.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    fn of_digest(digest: [u8; 32]) -> Self {
        let mut half = [0; 16];
        half.copy_from_slice(&digest[..16]);
        Self(half)
    }
}

/// Names a set of fingerprint rules. Contents hashed under different rules are not comparable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProfileId([u8; 8]);

/// The result of comparing two fingerprints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// The same request.
    Same,
    /// Another request.
    Different,
    /// Not known: they were made under different rules, or under none.
    Incomparable,
}

/// Which part of a request differs from the first one under its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Difference {
    /// The method, the path or the query.
    Target,
    /// The content type, the body, or a header that the settings compare.
    Content,
    /// Any of these: a fingerprint without a target, such as one of format 1, does not show which.
    Any,
}

impl ProfileId {
    /// Comparable with nothing, not even with itself: for records whose request is not known.
    pub const NONE: Self = Self([0; 8]);

    /// The profile of [`Fingerprint::of_bytes`], which has no settings.
    const OPAQUE: Self = Self(*b"opaque-1");

    /// As stored.
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// To be stored.
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }

    fn of_digest(digest: [u8; 32]) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = digest;
        Self([a, b, c, d, e, f, g, h])
    }
}

impl Fingerprint {
    /// A fingerprint without a target, from what records of format 1 keep.
    pub const fn new(profile: ProfileId, digest: [u8; 32]) -> Self {
        Self { target: None, profile, digest }
    }

    /// The same content at this target.
    pub const fn at(self, target: Target) -> Self {
        Self { target: Some(target), ..self }
    }

    /// The fingerprint of a payload that is not an HTTP request: equal bytes have equal fingerprints.
    pub fn of_bytes(payload: &[u8]) -> Self {
        let mut digest = Digest::new(None, "onceward opaque fingerprint");
        digest.part(payload);
        Self::new(ProfileId::OPAQUE, digest.finish()).at(Target::OPAQUE)
    }

    /// Like [`Self::of_bytes`], but a reader of the database cannot confirm a guessed payload.
    pub fn of_bytes_keyed(payload: &[u8], secret: &Secret) -> Self {
        let verifier = Digest::new(Some(secret), "onceward opaque fingerprint profile").finish();
        let mut digest = Digest::new(Some(secret), "onceward opaque fingerprint");
        digest.part(payload);
        Self::new(ProfileId::of_digest(verifier), digest.finish()).at(Target::OPAQUE)
    }

    /// Where the request goes, unless it was stored in format 1.
    pub const fn target(&self) -> Option<Target> {
        self.target
    }

    /// Whether it is of a request, and was stored in format 1, which kept no target.
    pub(crate) fn lacks_target(&self) -> bool {
        self.target.is_none() && self.profile != ProfileId::NONE
    }

    /// Under which rules it was made.
    pub const fn profile(&self) -> ProfileId {
        self.profile
    }

    /// The hash itself.
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Whether both are of the same request, as far as is known. Requests with different targets are different,
    /// whatever the rules.
    ///
    /// ```
    /// use onceward::fingerprint::{Comparison, Fingerprint, ProfileId};
    ///
    /// let unseen = Fingerprint::new(ProfileId::NONE, [0; 32]);
    /// assert_eq!(unseen.compare(&unseen), Comparison::Incomparable);
    /// ```
    pub fn compare(&self, other: &Self) -> Comparison {
        let targets = self.target.zip(other.target);
        let unseen = self.profile == ProfileId::NONE || other.profile == ProfileId::NONE;
        if targets.is_some_and(|(one, another)| one != another) {
            Comparison::Different
        } else if unseen || self.profile != other.profile {
            Comparison::Incomparable
        } else if self.digest == other.digest {
            Comparison::Same
        } else {
            Comparison::Different
        }
    }

    /// Which part of two different requests differs.
    pub(crate) fn difference(&self, other: &Self) -> Difference {
        match self.target.zip(other.target) {
            Some((one, another)) if one != another => Difference::Target,
            Some(_) => Difference::Content,
            None => Difference::Any,
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, ..] = self.0;
        write!(f, "Target(#{a:02x}{b:02x})")
    }
}

impl fmt::Debug for ProfileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProfileId({:016x})", u64::from_be_bytes(self.0))
    }
}

/// Shortened: enough to tell two apart in a log, too little to confirm a guessed body by.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.digest;
        write!(f, "Fingerprint(#{a:02x}{b:02x}{c:02x}{d:02x})")
    }
}

#[cfg(test)]
mod tests;
