//! The first format of frames, which is only read: the journal that an older version left after a crash.
//!
//! ```text
//!  0  magic        8 bytes   "OnceJrn1"
//!  8  identity     8 bytes   of the database that the journal belongs to
//! 16  generation   8 bytes
//! 24  sequence     8 bytes
//! 32  length       4 bytes   of the changes
//! 36  checksum    16 bytes   SHA-256, without a key, of all of the above and of the changes
//! 52  the changes
//! ```
//!
//! Only the identity, which is random, keeps content from being read as a frame.

use sha2::{Digest, Sha256};

pub(crate) const HEADER: usize = 52;
const MAGIC: [u8; 8] = *b"OnceJrn1";
const COVERED: usize = 36;

/// The header of a frame of this format, if the block begins with one. Nothing in it is verified before the checksum is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    covered: [u8; COVERED],
    checksum: [u8; 16],
    pub identity: u64,
    pub generation: u64,
    pub sequence: u64,
    pub length: u32,
}

impl Header {
    pub(crate) fn read(block: &[u8]) -> Option<Self> {
        let (covered, rest) = block.split_first_chunk::<COVERED>()?;
        let (magic, fields) = covered.split_first_chunk::<8>()?;
        let (identity, fields) = fields.split_first_chunk()?;
        let (generation, fields) = fields.split_first_chunk()?;
        let (sequence, fields) = fields.split_first_chunk()?;
        let length = fields.first_chunk()?;
        (*magic == MAGIC).then_some(Self {
            covered: *covered,
            checksum: *rest.first_chunk()?,
            identity: u64::from_le_bytes(*identity),
            generation: u64::from_le_bytes(*generation),
            sequence: u64::from_le_bytes(*sequence),
            length: u32::from_le_bytes(*length),
        })
    }

    /// Whether these changes were written after the header.
    pub(crate) fn covers(&self, changes: &[u8]) -> bool {
        let digest = Sha256::new().chain_update(self.covered).chain_update(changes).finalize();
        digest[..16] == self.checksum
    }
}
