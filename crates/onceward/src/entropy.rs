//! The only file that reads the machine's randomness.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Names the maker of a claim, so that a claim whose answer was lost is recognised when it is repeated, not refused.
///
/// Unique, not secret: it never leaves the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OwnerToken([u8; 16]);

impl OwnerToken {
    /// An owner that a caller named, for callers that must find their own claim again after a restart.
    pub fn named(text: &str) -> Self {
        let mut digest = crate::digest::Digest::new(None, "owner");
        digest.part(text.as_bytes());
        let mut token = [0; 16];
        token.copy_from_slice(&digest.finish()[..16]);
        Self(token)
    }

    /// The token's bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Identifies one engine, and gives each of its claims an [`OwnerToken`].
#[derive(Debug)]
pub struct Instance {
    name: u64,
    issued: AtomicU64,
}

impl Instance {
    /// A new name from the operating system.
    pub fn random() -> Result<Self, EntropyUnavailable> {
        Ok(Self::named(u64::from_le_bytes(random_bytes()?)))
    }

    /// A chosen name, for simulations that must repeat. Two engines that live at once on one store must never share one;
    /// a restart may keep it.
    pub const fn named(name: u64) -> Self {
        Self { name, issued: AtomicU64::new(0) }
    }

    /// Begins to count at this number, which must be above all that were counted under this name before.
    pub(crate) fn count_from(&self, number: u64) {
        self.issued.store(number, Ordering::Relaxed);
    }

    pub(crate) fn name(&self) -> u64 {
        self.name
    }

    pub(crate) fn next_owner(&self) -> OwnerToken {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&self.name.to_le_bytes());
        token[8..].copy_from_slice(&self.issued.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        OwnerToken(token)
    }
}

/// Bytes from the operating system that cannot be guessed, for names and credentials.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], EntropyUnavailable> {
    let mut bytes = [0; N];
    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks for randomness")]
    getrandom::fill(&mut bytes).map_err(|error| EntropyUnavailable(error.to_string()))?;
    Ok(bytes)
}

/// The operating system gave no random bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the operating system gave no random bytes ({0}), and without them names would collide and credentials could be guessed"
)]
pub struct EntropyUnavailable(String);
