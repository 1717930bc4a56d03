//! A secret that keys hashes, and is never printed.

use std::fmt;

/// Keys the hashes of ids and fingerprints, so that a reader of the database cannot confirm a guessed key or body.
///
/// ```
/// let secret = onceward::Secret::new(*b"sixteen bytes, at least").unwrap();
/// assert_eq!(format!("{secret:?}"), "Secret(…)");
/// assert!(onceward::Secret::new(*b"short").is_err());
/// ```
// Compared only with another configuration's, never with what a client sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8]>);

/// A secret was shorter than [`Secret::MIN_BYTES`]. The secret itself is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret has {found} bytes, but at least {} are needed: generate 32 random ones",
    Secret::MIN_BYTES
)]
pub struct SecretTooShort {
    found: usize,
}

impl Secret {
    /// Below 128 bits a secret could be guessed offline from one stolen row.
    pub const MIN_BYTES: usize = 16;

    /// Takes the secret's bytes as they are.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, SecretTooShort> {
        let bytes: Vec<u8> = bytes.into();
        if bytes.len() < Self::MIN_BYTES {
            return Err(SecretTooShort { found: bytes.len() });
        }
        Ok(Self(bytes.into_boxed_slice()))
    }

    pub(crate) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
