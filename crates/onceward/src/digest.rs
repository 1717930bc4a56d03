//! SHA-256, or HMAC-SHA-256 where there is a secret, over length-prefixed parts.
//!
//! Every part is preceded by its length, so that `("ab", "c")` and `("a", "bc")` can never hash alike: fields joined
//! with a separator are how tenants come to share a key.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};

use crate::Secret;

/// A hash under way. `domain` keeps hashes made for different purposes apart even where their parts agree.
#[derive(Clone)]
pub(crate) struct Digest(Kind);

#[derive(Clone)]
enum Kind {
    Plain(Sha256),
    // Boxed: the keyed state is three times the plain one, and most installations have no secret.
    Keyed(Box<Hmac<Sha256>>),
}

impl Digest {
    pub(crate) fn new(secret: Option<&Secret>, domain: &str) -> Self {
        let mut digest = match secret {
            None => Self(Kind::Plain(Sha256::new())),
            Some(secret) => Self(Kind::Keyed(Box::new(keyed(secret)))),
        };
        digest.part(domain.as_bytes());
        digest
    }

    /// Adds one part, length first.
    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.append(&(bytes.len() as u64).to_le_bytes());
        self.append(bytes);
    }

    /// Adds a part that may be absent, which is not the same as empty.
    pub(crate) fn optional(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            None => self.append(&[0]),
            Some(bytes) => {
                self.append(&[1]);
                self.part(bytes);
            }
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Kind::Plain(hash) => hash.update(bytes),
            Kind::Keyed(mac) => mac.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        match self.0 {
            Kind::Plain(hash) => hash.finalize().into(),
            Kind::Keyed(mac) => mac.finalize().into_bytes().into(),
        }
    }
}

fn keyed(secret: &Secret) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length, so this constructor cannot fail")]
    Hmac::new_from_slice(secret.expose()).expect("HMAC takes a key of any length")
}
