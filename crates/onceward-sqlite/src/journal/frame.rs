//! The format of a frame, which holds one batch: a header, the changes, and zeros up to the next block.
//!
//! ```text
//!  0  magic        8 bytes   "OnceJrn2"
//!  8  identity     8 bytes   of the database that the journal belongs to
//! 16  opening      8 bytes   random, new each time the store is opened
//! 24  generation   8 bytes   incremented when the journal switches files, and when the store is opened
//! 32  sequence     8 bytes   of the batch since the store was opened, from 0, through all generations
//! 40  length       4 bytes   of the changes
//! 44  head tag    16 bytes   HMAC-SHA-256 of bytes 0 to 43 and of the frame's offset in its file
//! 60  body tag    16 bytes   HMAC-SHA-256 of the head tag and the changes
//! 76  check        4 bytes   SHA-256 of bytes 0 to 75, without a key
//! 80  the changes
//! ```
//!
//! Numbers are little-endian, and hashes are truncated to their first bytes.
//!
//! A file is overwritten from its beginning, so the last frame is followed by remains of older frames, with bytes that clients
//! and APIs chose. The tags keep those bytes from being read as frames. Their key is random, one for each store, and kept only in
//! the database. An attacker who knows this source and the whole journal cannot make a frame without the key. A copy of an old
//! frame is not accepted either: the head tag covers the frame's own offset, and each offset of a file holds one frame in a
//! generation. A hash chain from frame to frame would add nothing, because the tagged sequence shows any gap, and a frame after a
//! damaged one could no longer be verified.
//!
//! The head tag is separate from the body tag, so that a reader has verified the length before it reads that much. The check
//! verifies nothing about content. It tells that the header at the beginning of a file, where content never starts, was written
//! completely, by this store or by another one.

use hmac::{Hmac, KeyInit, Mac};
use onceward::RecordId;
use sha2::{Digest, Sha256};

use super::changes::{self, Change};

/// Frames are aligned to this size, so that writing a frame touches no block of an acknowledged one.
pub(crate) const BLOCK: usize = 4_096;
pub(crate) const HEADER: usize = 80;
pub(crate) const MAGIC: [u8; 8] = *b"OnceJrn2";
/// The bytes of the header that the head tag covers.
const PLACED: usize = 44;
/// The bytes of the header that the check covers.
const CHECKED: usize = 76;
/// Hashed first, so that the tag of a header is never valid for a body.
const HEAD: [u8; 1] = [1];
const BODY: [u8; 1] = [2];

/// The position of a frame in an opening of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramePosition {
    pub generation: u64,
    pub sequence: u64,
    /// The offset in its file.
    pub at: u64,
}

/// The key of a store's journal. It has no `Debug`, so that it reaches no log.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key(pub [u8; 32]);

/// Computes the tags of the frames of one opening.
#[derive(Clone)]
pub(crate) struct Seal {
    pub identity: u64,
    pub opening: u64,
    /// Already keyed, so that a tag does not hash the key again.
    mac: Hmac<Sha256>,
}

impl Seal {
    pub(crate) fn new(identity: u64, opening: u64, key: &Key) -> Self {
        // HMAC pads a key that is shorter than a block with zeros.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&key.0);
        Self { identity, opening, mac: Hmac::new(&block.into()) }
    }

    fn head(&self, placed: &[u8], at: u64) -> Hmac<Sha256> {
        self.mac.clone().chain_update(HEAD).chain_update(placed).chain_update(at.to_le_bytes())
    }

    fn body(&self, head_tag: &[u8], changes: &[u8]) -> Hmac<Sha256> {
        self.mac.clone().chain_update(BODY).chain_update(head_tag).chain_update(changes)
    }
}

/// A batch that is being encoded.
#[derive(Default)]
pub(crate) struct Frame {
    bytes: Vec<u8>,
}

impl Frame {
    pub(crate) fn clear(&mut self) {
        // Releases the memory that one large record needed.
        self.bytes.truncate(0);
        self.bytes.shrink_to(1 << 20);
        self.bytes.resize(HEADER, 0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() <= HEADER
    }

    pub(crate) fn push(&mut self, id: RecordId, change: &Change) {
        changes::write(&mut self.bytes, id, change);
    }

    /// The bytes of the frame, with its tags. Every byte of the changes is hashed once.
    pub(crate) fn seal(&mut self, seal: &Seal, place: FramePosition) -> &[u8] {
        changes::end(&mut self.bytes);
        let (header, changes) = self.bytes.split_at_mut(HEADER);
        header[0..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&seal.identity.to_le_bytes());
        header[16..24].copy_from_slice(&seal.opening.to_le_bytes());
        header[24..32].copy_from_slice(&place.generation.to_le_bytes());
        header[32..40].copy_from_slice(&place.sequence.to_le_bytes());
        header[40..PLACED].copy_from_slice(&changes::length(changes).to_le_bytes());
        let tag = seal.head(&header[..PLACED], place.at).finalize().into_bytes();
        header[PLACED..60].copy_from_slice(&tag[..16]);
        let tag = seal.body(&tag[..16], changes).finalize().into_bytes();
        header[60..CHECKED].copy_from_slice(&tag[..16]);
        let check = check(&header[..CHECKED]);
        header[CHECKED..].copy_from_slice(&check);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        &self.bytes
    }
}

fn check(header: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(header));
    [a, b, c, d]
}

/// The header of a frame, if the block begins with one. Nothing in it is verified yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header<'b> {
    bytes: &'b [u8; HEADER],
    pub identity: u64,
    pub opening: u64,
    pub generation: u64,
    pub sequence: u64,
    pub length: u32,
}

impl<'b> Header<'b> {
    pub(crate) fn read(block: &'b [u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = block.first_chunk()?;
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (identity, rest) = rest.split_first_chunk()?;
        let (opening, rest) = rest.split_first_chunk()?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (length, _) = rest.split_first_chunk()?;
        (*magic == MAGIC).then_some(Self {
            bytes,
            identity: u64::from_le_bytes(*identity),
            opening: u64::from_le_bytes(*opening),
            generation: u64::from_le_bytes(*generation),
            sequence: u64::from_le_bytes(*sequence),
            length: u32::from_le_bytes(*length),
        })
    }

    /// Whether the header was written completely, by any store.
    pub(crate) fn is_whole(&self) -> bool {
        self.bytes[CHECKED..] == check(&self.bytes[..CHECKED])
    }

    /// Whether this store wrote the header at this offset.
    pub(crate) fn is_proven(&self, seal: &Seal, at: u64) -> bool {
        seal.head(&self.bytes[..PLACED], at).verify_truncated_left(&self.bytes[PLACED..60]).is_ok()
    }

    /// The tags that verify the changes.
    pub(crate) fn tags(&self) -> Tags {
        let (mut head, mut body) = ([0; 16], [0; 16]);
        head.copy_from_slice(&self.bytes[PLACED..60]);
        body.copy_from_slice(&self.bytes[60..CHECKED]);
        Tags { head, body }
    }
}

/// The tags of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tags {
    head: [u8; 16],
    body: [u8; 16],
}

impl Tags {
    /// Whether this store wrote these changes after that header.
    pub(crate) fn cover(&self, seal: &Seal, changes: &[u8]) -> bool {
        seal.body(&self.head, changes).verify_truncated_left(&self.body).is_ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test reports")]
mod tests {
    use super::super::changes::tests::samples;
    use super::*;

    const PLACE: FramePosition = FramePosition { generation: 3, sequence: 2, at: 4_096 };

    fn seal(identity: u64, opening: u64, key: u8) -> Seal {
        Seal::new(identity, opening, &Key([key; 32]))
    }

    fn sealed(few: usize) -> Vec<u8> {
        let mut frame = Frame::default();
        frame.clear();
        samples().iter().take(few).for_each(|(id, change)| frame.push(*id, change));
        frame.seal(&seal(7, 8, 9), PLACE).to_vec()
    }

    fn read(bytes: &[u8], seal: &Seal, at: u64) -> Option<Vec<(RecordId, Change)>> {
        let header = Header::read(bytes).filter(|header| header.is_proven(seal, at))?;
        assert_eq!((header.identity, header.opening), (7, 8));
        assert_eq!((header.generation, header.sequence), (PLACE.generation, PLACE.sequence));
        let body = bytes.get(HEADER..HEADER + header.length as usize)?;
        if header.tags().cover(seal, body) { changes::read(body) } else { None }
    }

    #[test]
    fn a_frame_is_read_back_as_it_was_sealed() {
        let bytes = sealed(usize::MAX);
        assert_eq!(bytes.len() % BLOCK, 0);
        assert!(Header::read(&bytes).unwrap().is_whole());
        assert_eq!(read(&bytes, &seal(7, 8, 9), PLACE.at), Some(samples()));
    }

    #[test]
    fn a_frame_at_another_offset_or_under_another_key_is_not_read() {
        let bytes = sealed(2);
        for at in [0, PLACE.at - 1, PLACE.at + 4_096] {
            assert_eq!(read(&bytes, &seal(7, 8, 9), at), None, "{at}");
        }
        assert_eq!(read(&bytes, &seal(7, 8, 10), PLACE.at), None);
        assert!(read(&bytes, &seal(7, 8, 9), PLACE.at).is_some());
    }

    #[test]
    fn a_frame_of_which_any_byte_has_changed_is_not_read() {
        let whole = sealed(2);
        let length = Header::read(&whole).unwrap().length as usize;
        for at in 0..HEADER + length {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            let is_read = read(&bytes, &seal(7, 8, 9), PLACE.at).is_some();
            // The check does not cover the changes, and is used only at the beginning of a file.
            assert_eq!(is_read, (CHECKED..HEADER).contains(&at), "byte {at}");
            let whole = Header::read(&bytes).is_some_and(|header| header.is_whole());
            assert_eq!(whole, at >= HEADER, "byte {at}");
        }
    }

    #[test]
    fn a_body_cannot_borrow_the_tag_of_a_head() {
        let seal = seal(7, 8, 9);
        let bytes = sealed(2);
        let (head, rest) = (&bytes[..16], &bytes[16..PLACED]);
        let changes = [rest, &PLACE.at.to_le_bytes()].concat();
        let as_body = seal.body(head, &changes).finalize().into_bytes();
        assert_ne!(as_body[..16], bytes[PLACED..60]);
    }
}
