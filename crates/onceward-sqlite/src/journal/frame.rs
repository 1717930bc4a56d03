//! How a batch stands in the journal: a header that says where it belongs, the changes, and zeros up to the next block.
//!
//! ```text
//!  0  magic        8 bytes
//!  8  identity     8 bytes   of the database that the journal belongs to
//! 16  generation   8 bytes   rises whenever the journal goes on in its other file
//! 24  sequence     8 bytes   of the batch since the store was opened, from 0, through all generations
//! 32  length       4 bytes   of the changes
//! 36  checksum    16 bytes   of all of the above and of the changes
//! 52  the changes
//! ```
//!
//! Numbers are little-endian. The identity is random and leaves the files nowhere, so that nobody can write a reply whose
//! bytes would be taken for a batch.

use onceward::store::Version;
use onceward::{RecordId, Timestamp};
use sha2::{Digest, Sha256};

use crate::job::{Row, Stored};

/// A batch begins at a multiple of this, so that writing the next one touches no block that holds an acknowledged one.
pub(crate) const BLOCK: usize = 4_096;
pub(crate) const HEADER: usize = 52;
/// So much of the header is before its checksum.
const COVERED: usize = 36;
const MAGIC: [u8; 8] = *b"OnceJrn1";

/// Which batch of which journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub identity: u64,
    pub generation: u64,
    pub sequence: u64,
}

/// What became of an id, and at which version. Without a row it was forgotten.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Latest {
    pub version: Version,
    pub row: Option<Row>,
}

impl Latest {
    /// The version of the row that stands, if one does.
    pub(crate) fn version_of_row(&self) -> Option<Version> {
        self.row.as_ref().map(|_| self.version)
    }

    /// A copy of what stands, as the database would give it.
    pub(crate) fn stored(&self) -> Option<Stored> {
        self.row.as_ref().map(|row| Stored { version: self.version, record: row.record.clone() })
    }
}

/// A batch that is being written down.
#[derive(Default)]
pub(crate) struct Frame {
    bytes: Vec<u8>,
}

const PUT: u8 = 1;
const FORGOTTEN: u8 = 2;
/// Stands after the last change. Without it, a write that failed just before zeros that were to be written could look whole.
const END: u8 = 0xff;

impl Frame {
    pub(crate) fn clear(&mut self) {
        // What one large record needed is not kept for ever.
        self.bytes.truncate(0);
        self.bytes.shrink_to(1 << 20);
        self.bytes.resize(HEADER, 0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() <= HEADER
    }

    pub(crate) fn push(&mut self, id: RecordId, latest: &Latest) {
        self.bytes.push(if latest.row.is_some() { PUT } else { FORGOTTEN });
        self.bytes.extend(id.as_bytes());
        self.bytes.extend(latest.version.as_number().to_le_bytes());
        let Some(row) = &latest.row else { return };
        self.bytes.push(code(row.state));
        self.bytes.extend(row.due_at.as_micros().to_le_bytes());
        self.bytes.extend(row.created_at.as_micros().to_le_bytes());
        self.bytes.extend(length(&row.record).to_le_bytes());
        self.bytes.extend(&row.record);
    }

    /// The batch as it goes to the disk.
    pub(crate) fn seal(&mut self, place: Place) -> &[u8] {
        self.bytes.push(END);
        let (header, changes) = self.bytes.split_at_mut(HEADER);
        header[0..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&place.identity.to_le_bytes());
        header[16..24].copy_from_slice(&place.generation.to_le_bytes());
        header[24..32].copy_from_slice(&place.sequence.to_le_bytes());
        header[32..COVERED].copy_from_slice(&length(changes).to_le_bytes());
        let checksum = checksum(&header[..COVERED], changes);
        header[COVERED..].copy_from_slice(&checksum);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        &self.bytes
    }
}

/// A batch has at most a gibibyte and one record more, and a record 64 MiB: both are seen to before.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// What a block says, if a batch begins there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub place: Place,
    pub length: u32,
    checksum: [u8; 16],
}

impl Header {
    pub(crate) fn read(bytes: &[u8; HEADER]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (identity, rest) = rest.split_first_chunk()?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let place = Place {
            identity: u64::from_le_bytes(*identity),
            generation: u64::from_le_bytes(*generation),
            sequence: u64::from_le_bytes(*sequence),
        };
        let checksum = rest.try_into().ok()?;
        (*magic == MAGIC).then_some(Self { place, length: u32::from_le_bytes(*length), checksum })
    }

    /// Whether these are the bytes that were written.
    pub(crate) fn covers(&self, header: &[u8; HEADER], changes: &[u8]) -> bool {
        changes.len() == self.length as usize && checksum(&header[..COVERED], changes) == self.checksum
    }

    /// How many bytes of the file the batch takes.
    pub(crate) fn takes(&self) -> u64 {
        (HEADER as u64 + u64::from(self.length)).next_multiple_of(BLOCK as u64)
    }
}

fn checksum(header: &[u8], changes: &[u8]) -> [u8; 16] {
    let digest = Sha256::new().chain_update(header).chain_update(changes).finalize();
    let mut first = [0; 16];
    first.copy_from_slice(&digest[..16]);
    first
}

/// Reads the changes of a batch whose checksum was right. `None` if another program, or a newer version, wrote them.
pub(crate) fn changes(mut bytes: &[u8]) -> Option<Vec<(RecordId, Latest)>> {
    let mut changes = Vec::new();
    loop {
        let (&kind, rest) = bytes.split_first()?;
        if kind == END {
            return rest.is_empty().then_some(changes);
        }
        let (id, rest) = rest.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let version = Version::from_number(u64::from_le_bytes(*version));
        let (row, rest) = match kind {
            PUT => row(rest).map(|(row, rest)| (Some(row), rest))?,
            FORGOTTEN => (None, rest),
            _ => return None,
        };
        changes.push((RecordId::from_bytes(*id), Latest { version, row }));
        bytes = rest;
    }
}

fn row(bytes: &[u8]) -> Option<(Row, &[u8])> {
    let (&state, rest) = bytes.split_first()?;
    let (due_at, rest) = rest.split_first_chunk()?;
    let (created_at, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (record, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let time = |micros: &[u8; 8]| Timestamp::from_micros(u64::from_le_bytes(*micros));
    let row = Row {
        state: STATES.get(usize::from(state).checked_sub(1)?)?,
        due_at: time(due_at),
        created_at: time(created_at),
        record: record.to_vec(),
    };
    Some((row, rest))
}

/// The states by the number that stands for each, from 1.
const STATES: [&str; 5] = ["in_progress", "completed", "failed_retryable", "unknown", "expired"];

/// A state that is not in the list gets a number that no reader takes: a test sees to it that there is none.
fn code(state: &str) -> u8 {
    (1..).zip(STATES).find_map(|(code, name)| (name == state).then_some(code)).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test reports")]
mod tests {
    use super::*;
    use onceward_testkit::sample;

    const PLACE: Place = Place { identity: 7, generation: 3, sequence: 2 };

    fn samples() -> Vec<(RecordId, Latest)> {
        let put = |(n, state)| {
            let (id, record) = (sample::id(n), sample::in_state("k", state));
            (id, Latest { version: Version::from_number(n), row: Some(Row::new(id, &record).unwrap()) })
        };
        let forgotten = (sample::id(99), Latest { version: Version::from_number(99), row: None });
        (1..).zip(sample::states(sample::START)).map(put).chain([forgotten]).collect()
    }

    fn sealed(changes: &[(RecordId, Latest)]) -> Vec<u8> {
        let mut frame = Frame::default();
        frame.clear();
        changes.iter().for_each(|(id, latest)| frame.push(*id, latest));
        frame.seal(PLACE).to_vec()
    }

    fn read(bytes: &[u8]) -> Option<Vec<(RecordId, Latest)>> {
        let start: &[u8; HEADER] = bytes.first_chunk()?;
        let header = Header::read(start).filter(|header| header.place == PLACE)?;
        let body = bytes.get(HEADER..HEADER + header.length as usize)?;
        if header.covers(start, body) { changes(body) } else { None }
    }

    #[test]
    fn a_batch_with_every_state_is_read_back_as_it_was_written() {
        let bytes = sealed(&samples());
        for state in STATES {
            assert!(sample::states(sample::START).iter().any(|sample| sample.name() == state), "{state}");
        }
        assert_eq!(bytes.len() % BLOCK, 0);
        assert_eq!(read(&bytes), Some(samples()));
    }

    #[test]
    fn a_batch_of_which_any_byte_has_changed_is_not_read() {
        let few: Vec<_> = samples().into_iter().take(2).collect();
        let whole = sealed(&few);
        let length = u32::from_le_bytes(whole[32..36].try_into().unwrap()) as usize;
        for at in 0..HEADER + length {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert_eq!(read(&bytes), None, "byte {at}");
        }
        assert_eq!(read(&whole), Some(few));
    }

    #[test]
    fn changes_that_are_cut_short_or_of_another_kind_are_not_read() {
        let few: Vec<_> = samples().into_iter().take(2).collect();
        let whole = sealed(&few);
        let length = u32::from_le_bytes(whole[32..36].try_into().unwrap()) as usize;
        let body = &whole[HEADER..HEADER + length];
        let ends: Vec<_> = (0..=length).filter(|end| changes(&body[..*end]).is_some()).collect();
        assert_eq!(ends, [length]);
        assert_eq!(changes(&[3; 25]), None);
        assert_eq!(changes(&[body, &[0]].concat()), None);
    }
}
