//! What the database keeps for its journal to be sealed with.

use onceward::EntropyUnavailable;

use super::frame::{Key, Seal};

/// What makes the frames of an opening its own.
pub(crate) struct Opening {
    /// Random, so that two copies of a database that both go on never take each other's frames.
    pub number: u64,
    pub key: Key,
}

impl Opening {
    /// The key stays the same as long as the database exists.
    pub(crate) fn new(before: Option<&Self>) -> Result<Self, EntropyUnavailable> {
        let key = match before {
            Some(before) => before.key.clone(),
            None => Key(onceward::random_bytes()?),
        };
        Ok(Self { number: u64::from_le_bytes(onceward::random_bytes()?), key })
    }

    pub(crate) fn seal(&self, identity: u64) -> Seal {
        Seal::new(identity, self.number, &self.key)
    }
}
