//! Reads one file of the journal: the changes that the database does not hold yet.
//!
//! A frame is written only after the previous one was synced. So a frame that cannot be read is normally the last one, and
//! was never acknowledged. If a later frame of its generation follows, the disk has changed data that it had confirmed, and
//! recovery refuses to guess.
//!
//! Bytes that are not verified as a frame of this journal are content of older frames, and are skipped. The beginning of a
//! file is an exception: content never starts there, so a header there identifies the file's owner.
//!
//! Reading is linear in the length of the file, whatever it contains. A length is used only after it was verified, so a byte
//! is read once as part of a frame, and once more in search of later frames. The first format verifies no length before the
//! changes are hashed; there the search hashes at most as many bytes as the file has, and the first frame is read twice.

use std::io::{self, Read, Seek, SeekFrom};

use onceward::RecordId;

use super::changes::{self, Change};
use super::first_format;
use super::frame::{BLOCK, HEADER, Header, Seal, Tags};

/// How the frames of this journal are distinguished from content.
pub(crate) enum Format {
    /// By the identity and a checksum.
    First { identity: u64 },
    /// By tags under the store's key.
    Second(Seal),
}

impl Format {
    fn identity(&self) -> u64 {
        match self {
            Self::First { identity } => *identity,
            Self::Second(seal) => seal.identity,
        }
    }
}

/// Why a file cannot be used.
#[derive(Debug)]
pub(crate) enum SegmentError {
    Read(io::Error),
    /// It begins with a frame of another database.
    OtherDatabase,
    /// It begins with a frame whose key is not the database's.
    OtherKey,
    /// It begins with a frame that belongs to the other file.
    OtherFile,
    /// It begins with a frame that was written after the database was copied.
    Ahead {
        generation: u64,
    },
    /// A frame that was confirmed cannot be read.
    Damaged {
        at: u64,
    },
    /// This version does not know the encoding of the changes.
    OtherVersion {
        sequence: u64,
    },
}

impl From<io::Error> for SegmentError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

/// The generation in a file.
#[derive(Debug)]
pub(crate) struct Generation {
    pub generation: u64,
    /// The sequence of its first frame, which may be incomplete.
    pub first: u64,
    /// The sequence after its last complete frame.
    pub next: u64,
    /// The offset at which that one would begin.
    pub end: u64,
    pub changes: Vec<(RecordId, Change)>,
}

/// A frame whose header belongs to this journal, as far as its format can tell.
struct Candidate {
    generation: u64,
    sequence: u64,
    length: u32,
    proof: Proof,
}

enum Proof {
    /// The header is verified only together with the changes.
    Checksum(first_format::Header),
    /// The header is verified.
    Tags(Tags),
}

impl Candidate {
    fn header_bytes(&self) -> u64 {
        match self.proof {
            Proof::Checksum(_) => first_format::HEADER as u64,
            Proof::Tags(_) => HEADER as u64,
        }
    }

    /// The bytes of the file that the frame occupies.
    fn frame_bytes(&self) -> u64 {
        (self.header_bytes() + u64::from(self.length)).next_multiple_of(BLOCK as u64)
    }

    fn header_is_proven(&self) -> bool {
        matches!(self.proof, Proof::Tags(_))
    }
}

/// One of the journal's two files.
pub(crate) struct Segment<R> {
    pub source: R,
    pub length: u64,
    /// 0 or 1: the parity of its generations.
    pub number: u64,
}

impl<R: Read + Seek> Segment<R> {
    /// Reads the frames of generations after `flushed`, from the beginning of the file.
    pub(crate) fn read(&mut self, format: &Format, flushed: u64) -> Result<Option<Generation>, SegmentError> {
        self.check_beginning(format, flushed)?;
        let (mut at, mut least) = (0, flushed.saturating_add(1));
        let mut found: Option<Generation> = None;
        while let Some(candidate) = self.candidate(at, format, least)? {
            let Candidate { generation, sequence, .. } = candidate;
            let bytes = self.changes(at, format, &candidate)?;
            if bytes.is_none() && !candidate.header_is_proven() {
                break;
            }
            if found.as_ref().is_some_and(|found| (found.generation, found.next) != (generation, sequence)) {
                return Err(SegmentError::Damaged { at });
            }
            let found = found.get_or_insert_with(|| Generation {
                generation,
                first: sequence,
                next: sequence,
                end: 0,
                changes: Vec::new(),
            });
            let Some(bytes) = bytes else { break };
            found.changes.extend(changes::read(&bytes).ok_or(SegmentError::OtherVersion { sequence })?);
            found.next += 1;
            at += candidate.frame_bytes();
            found.end = at;
            least = generation;
        }
        self.check_end(at, format, least)?;
        Ok(found)
    }

    /// Refuses a file whose first header does not fit the database.
    fn check_beginning(&mut self, format: &Format, flushed: u64) -> Result<(), SegmentError> {
        let mut start = [0; HEADER];
        let start = self.start(0, &mut start)?;
        if let Some(header) = Header::read(start) {
            // An incomplete header identifies nothing.
            if !header.is_whole() {
                return Ok(());
            }
            if header.identity != format.identity() {
                return Err(SegmentError::OtherDatabase);
            }
            let Format::Second(seal) = format else { return Err(SegmentError::OtherKey) };
            if !header.is_proven(seal, 0) {
                return Err(SegmentError::OtherKey);
            }
            let this_opening = header.opening == seal.opening;
            return self.check_first(header.generation, flushed, this_opening);
        }
        let Some(header) = first_format::Header::read(start) else { return Ok(()) };
        let own = header.identity == format.identity();
        let changes = self.bytes(first_format::HEADER as u64, header.length)?;
        if !changes.is_some_and(|changes| header.covers(&changes)) {
            return Ok(());
        }
        if !own {
            return Err(SegmentError::OtherDatabase);
        }
        self.check_first(header.generation, flushed, matches!(format, Format::First { .. }))
    }

    fn check_first(&self, generation: u64, flushed: u64, this_opening: bool) -> Result<(), SegmentError> {
        if generation <= flushed {
            return Ok(());
        }
        if !this_opening {
            return Err(SegmentError::Ahead { generation });
        }
        if generation % 2 == self.number { Ok(()) } else { Err(SegmentError::OtherFile) }
    }

    /// Verifies that no frame of this or a later generation follows the position of the next frame.
    fn check_end(&mut self, end: u64, format: &Format, least: u64) -> Result<(), SegmentError> {
        let mut to_hash = self.length;
        let mut at = end;
        while at < self.length {
            at += BLOCK as u64;
            let Some(candidate) = self.candidate(at, format, least)? else { continue };
            if !candidate.header_is_proven() {
                let Some(left) = to_hash.checked_sub(u64::from(candidate.length)) else {
                    tracing::warn!(
                        at,
                        "the journal holds replies that imitate the journal's own format: they are skipped, and nothing is lost"
                    );
                    return Ok(());
                };
                to_hash = left;
                if self.changes(at, format, &candidate)?.is_none() {
                    continue;
                }
            }
            return Err(SegmentError::Damaged { at: end });
        }
        Ok(())
    }

    /// The frame at this offset, of this or a later generation. All plain fields are compared before anything is hashed.
    fn candidate(&mut self, at: u64, format: &Format, least: u64) -> io::Result<Option<Candidate>> {
        let mut start = [0; HEADER];
        let start = self.start(at, &mut start)?;
        let belongs = |generation: u64| generation >= least && generation % 2 == self.number;
        Ok(match format {
            Format::First { identity } => first_format::Header::read(start)
                .filter(|header| header.identity == *identity && belongs(header.generation))
                .map(|header| Candidate {
                    generation: header.generation,
                    sequence: header.sequence,
                    length: header.length,
                    proof: Proof::Checksum(header),
                }),
            Format::Second(seal) => Header::read(start)
                .filter(|header| (header.identity, header.opening) == (seal.identity, seal.opening))
                .filter(|header| belongs(header.generation) && header.is_proven(seal, at))
                .map(|header| Candidate {
                    generation: header.generation,
                    sequence: header.sequence,
                    length: header.length,
                    proof: Proof::Tags(header.tags()),
                }),
        })
    }

    /// The changes of a frame, if they are unchanged.
    fn changes(&mut self, at: u64, format: &Format, candidate: &Candidate) -> io::Result<Option<Vec<u8>>> {
        let changes = self.bytes(at + candidate.header_bytes(), candidate.length)?;
        Ok(changes.filter(|changes| match (&candidate.proof, format) {
            (Proof::Checksum(header), _) => header.covers(changes),
            (Proof::Tags(tags), Format::Second(seal)) => tags.cover(seal, changes),
            (Proof::Tags(_), Format::First { .. }) => false,
        }))
    }

    /// The bytes of a header at this offset, as far as the file reaches.
    fn start<'b>(&mut self, at: u64, into: &'b mut [u8; HEADER]) -> io::Result<&'b [u8]> {
        let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
        let start = &mut into[..left.min(HEADER)];
        self.source.seek(SeekFrom::Start(at))?;
        self.source.read_exact(start)?;
        Ok(start)
    }

    /// This many bytes at this offset, if the file is long enough.
    fn bytes(&mut self, at: u64, length: u32) -> io::Result<Option<Vec<u8>>> {
        if at.saturating_add(u64::from(length)) > self.length {
            return Ok(None);
        }
        let mut bytes = vec![0; length as usize];
        self.source.seek(SeekFrom::Start(at))?;
        self.source.read_exact(&mut bytes)?;
        Ok(Some(bytes))
    }
}
