//! What the database keeps for its journal to be sealed with.

use onceward::EntropyUnavailable;

use super::frame::{Key, Seal};

/// What makes the frames of an opening its own.
pub(crate) struct Marks {
    /// Random, so that two copies of a database that both go on never take each other's frames.
    pub opening: u64,
    pub key: Key,
}

impl Marks {
    /// The key stays the same as long as the database exists.
    pub(crate) fn of_a_new_opening(before: Option<&Self>) -> Result<Self, EntropyUnavailable> {
        let key = match before {
            Some(before) => before.key.clone(),
            None => Key(onceward::random_bytes()?),
        };
        Ok(Self { opening: u64::from_le_bytes(onceward::random_bytes()?), key })
    }

    pub(crate) fn seal(&self, identity: u64) -> Seal {
        Seal::new(identity, self.opening, &self.key)
    }
}
