//! The key and the opening number that the database keeps for its journal.

use onceward::engine::EntropyUnavailable;

use super::frame::{Key, Seal};

/// Identifies the frames of one opening of the store.
pub(crate) struct Opening {
    /// Random, so that two copies of a database that both continue never accept each other's frames.
    pub number: u64,
    pub key: Key,
}

impl Opening {
    /// A new opening. It keeps the key of the previous one, for as long as the database exists.
    pub(crate) fn new(before: Option<&Self>) -> Result<Self, EntropyUnavailable> {
        let key = match before {
            Some(before) => before.key.clone(),
            None => Key(onceward::plumbing::random_bytes()?),
        };
        Ok(Self { number: u64::from_le_bytes(onceward::plumbing::random_bytes()?), key })
    }

    pub(crate) fn seal(&self, identity: u64) -> Seal {
        Seal::new(identity, self.number, &self.key)
    }
}
