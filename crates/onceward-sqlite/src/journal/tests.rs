//! Journal files in memory: what is read from them, and how many bytes are read for that.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

use std::io::{Cursor, Read, Seek, SeekFrom};

use onceward::record::StateKind;
use onceward::store::Version;
use onceward_testkit::{Random, sample};

use super::changes::Change;
use super::frame::{BLOCK, Frame, FramePosition, Key, Seal};
use super::segment::{Format, Generation, Segment, SegmentError};
use crate::job::Row;

/// The offset of the record of a frame's first change.
const RECORD_AT: usize = 80 + 46;

/// Counts the bytes that are read.
struct Counting<'b> {
    source: Cursor<&'b [u8]>,
    read: u64,
}

impl Read for Counting<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.source.read(into)?;
        self.read += read as u64;
        Ok(read)
    }
}

impl Seek for Counting<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.source.seek(to)
    }
}

fn seal() -> Seal {
    Seal::new(7, 8, &Key([9; 32]))
}

/// What was found, and how many bytes were read for it.
struct Outcome {
    found: Result<Option<Generation>, SegmentError>,
    read: u64,
}

fn read(bytes: &[u8], format: &Format, flushed: u64) -> Outcome {
    let source = Counting { source: Cursor::new(bytes), read: 0 };
    let mut segment = Segment { source, length: bytes.len() as u64, number: 1 };
    let found = segment.read(format, flushed);
    Outcome { found, read: segment.source.read }
}

impl Outcome {
    fn versions(self) -> Vec<u64> {
        let found = self.found.unwrap_or_else(|error| panic!("{error:?}"));
        found.map_or_else(Vec::new, |found| {
            found.changes.iter().map(|(_, change)| change.version.as_number()).collect()
        })
    }
}

fn frame(seal: &Seal, place: FramePosition, version: u64, record: Vec<u8>) -> Vec<u8> {
    let (due_at, created_at) = (sample::START, sample::START);
    let row = Row { state: StateKind::Completed, due_at, created_at, record };
    let mut frame = Frame::default();
    frame.clear();
    frame.push(sample::id(version), &Change { version: Version::from_number(version), row: Some(row) });
    frame.seal(seal, place).to_vec()
}

/// A file as its writer leaves it.
struct Written {
    bytes: Vec<u8>,
    place: FramePosition,
    version: u64,
    /// The offsets of this generation's frames.
    starts: Vec<usize>,
    versions: Vec<u64>,
}

impl Written {
    fn new() -> Self {
        let place = FramePosition { generation: 1, sequence: 0, at: 0 };
        Self { bytes: Vec::new(), place, version: 0, starts: Vec::new(), versions: Vec::new() }
    }

    fn append(&mut self, record: Vec<u8>) {
        self.version += 1;
        let frame = frame(&seal(), self.place, self.version, record);
        let start = usize::try_from(self.place.at).unwrap();
        let end = start + frame.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(&frame);
        self.place.at += frame.len() as u64;
        self.place.sequence += 1;
        self.starts.push(start);
        self.versions.push(self.version);
    }

    /// Begins the file's next generation, after one in the other file.
    fn turn(&mut self) {
        self.place.generation += 2;
        self.place.sequence += 1;
        self.place.at = 0;
        self.starts.clear();
        self.versions.clear();
    }

    fn read(&self) -> Outcome {
        read(&self.bytes, &Format::Second(seal()), self.place.generation - 1)
    }
}

/// A record with the bytes of `plant` at the beginning of every block that it covers.
fn planted(blocks: usize, mut plant: impl FnMut(usize) -> Vec<u8>) -> Vec<u8> {
    let mut record = vec![0x55; blocks * BLOCK + BLOCK / 2 - RECORD_AT];
    for block in 1..=blocks {
        let bytes = plant(block);
        let start = block * BLOCK - RECORD_AT;
        let kept = bytes.len().min(BLOCK).min(record.len() - start);
        record[start..start + kept].copy_from_slice(&bytes[..kept]);
    }
    record
}

/// Frames under another key, at every block, with lengths up to the end of the file.
fn overlapping(blocks: usize, generation: u64) -> Vec<u8> {
    let other = Seal::new(7, 8, &Key([10; 32]));
    planted(blocks, |block| {
        let place = FramePosition { generation, sequence: block as u64, at: (block * BLOCK) as u64 };
        let mut forged = frame(&other, place, 1, vec![0; 10]);
        let length = u32::try_from((blocks - block) * BLOCK).unwrap();
        forged[40..44].copy_from_slice(&length.to_le_bytes());
        forged
    })
}

#[test]
fn every_byte_is_read_at_most_twice_whatever_headers_are_planted() {
    let blocks = 400;
    let mut file = Written::new();
    file.append(overlapping(blocks, 3));
    file.turn();
    file.append(vec![1; 10]);
    let length = file.bytes.len() as u64;
    let outcome = file.read();
    assert!(outcome.read < length, "{} of {length} bytes", outcome.read);
    assert_eq!(outcome.versions(), [2]);
}

#[test]
fn every_byte_of_a_file_in_the_first_format_is_read_at_most_three_times() {
    use sha2::{Digest, Sha256};
    let (blocks, identity) = (400_usize, 7_u64);
    let forged = |sequence: u64, length: usize| {
        let mut frame = b"OnceJrn1".to_vec();
        [identity, 1, sequence].iter().for_each(|number| frame.extend(number.to_le_bytes()));
        frame.extend(u32::try_from(length).unwrap().to_le_bytes());
        frame.extend([0xab; 16]);
        frame
    };
    let mut bytes = vec![0; blocks * BLOCK];
    for block in 1..blocks {
        let frame = forged(block as u64, (blocks - block) * BLOCK - 100);
        bytes[block * BLOCK..][..frame.len()].copy_from_slice(&frame);
    }
    let mut first = forged(0, 1);
    let checksum = Sha256::new().chain_update(&first[..36]).chain_update([0xff]).finalize();
    first.truncate(36);
    first.extend(&checksum[..16]);
    first.push(0xff);
    bytes[..first.len()].copy_from_slice(&first);
    let outcome = read(&bytes, &Format::First { identity }, 0);
    assert!(outcome.read < 3 * bytes.len() as u64, "{} of {} bytes", outcome.read, bytes.len());
    let found = outcome.found.unwrap().unwrap();
    assert_eq!((found.generation, found.first, found.next), (1, 0, 1));
}

#[test]
fn a_copy_of_any_frame_at_any_other_place_is_content() {
    let mut file = Written::new();
    for n in 0..4 {
        file.append(vec![n; 5_000]);
    }
    let frames: Vec<Vec<u8>> =
        file.starts.iter().map(|start| file.bytes[*start..start + BLOCK].to_vec()).collect();
    for copied in &frames {
        let mut file = Written::new();
        for n in 0..4 {
            file.append(vec![n; 5_000]);
        }
        // After the last frame of the same generation, and torn: the header of the frame that contains the copy was never
        // written.
        file.append(planted(6, |_| copied.clone()));
        let torn = *file.starts.last().unwrap();
        file.bytes[torn..torn + BLOCK].fill(0);
        assert_eq!(file.read().versions(), [1, 2, 3, 4]);
        // In the next generation, before and after its last frame.
        file.turn();
        file.append(planted(12, |_| copied.clone()));
        assert_eq!(file.read().versions(), [6]);
        file.turn();
        file.append(vec![1; 10]);
        assert_eq!(file.read().versions(), [7]);
    }
}

#[test]
fn a_frame_of_the_generation_in_the_other_file_is_content() {
    // The first frame of generation 3 is cut off. It holds a copy of a frame that generation 2 has in the other file.
    let mut file = Written::new();
    file.append(vec![1; 10]);
    file.turn();
    file.append(planted(6, |block| {
        let place = FramePosition { generation: 2, sequence: 1, at: (block * BLOCK) as u64 };
        frame(&seal(), place, 9, vec![2; 10])
    }));
    file.bytes[..BLOCK].fill(0);
    let outcome = read(&file.bytes, &Format::Second(seal()), 1);
    assert_eq!(outcome.versions(), [] as [u64; 0]);
}

#[test]
fn frames_of_another_opening_are_content_and_refused_where_the_file_begins() {
    let mut file = Written::new();
    for n in 0..4 {
        file.append(vec![n; 10]);
    }
    let another = Format::Second(Seal::new(7, 99, &Key([9; 32])));
    let refused = read(&file.bytes, &another, 0).found.unwrap_err();
    assert!(matches!(refused, SegmentError::Ahead { generation: 1 }), "{refused:?}");
    assert_eq!(read(&file.bytes, &another, 1).versions(), [] as [u64; 0]);
    let place = FramePosition { generation: 1, sequence: 0, at: 0 };
    let first = frame(&Seal::new(7, 99, &Key([9; 32])), place, 50, vec![5; 10]);
    file.bytes[..first.len()].copy_from_slice(&first);
    assert_eq!(read(&file.bytes, &another, 0).versions(), [50]);
}

#[test]
fn the_beginning_of_a_file_tells_whose_it_is() {
    let place = FramePosition { generation: 1, sequence: 0, at: 0 };
    let refusal = |seal: &Seal, place: FramePosition| {
        let bytes = frame(seal, place, 1, vec![0; 10]);
        read(&bytes, &Format::Second(self::seal()), 0).found.unwrap_err()
    };
    let foreign = refusal(&Seal::new(6, 8, &Key([9; 32])), place);
    assert!(matches!(foreign, SegmentError::OtherDatabase), "{foreign:?}");
    let unknown = refusal(&Seal::new(7, 8, &Key([10; 32])), place);
    assert!(matches!(unknown, SegmentError::OtherKey), "{unknown:?}");
    let exchanged = refusal(&seal(), FramePosition { generation: 2, ..place });
    assert!(matches!(exchanged, SegmentError::OtherFile), "{exchanged:?}");
    let bytes = frame(&seal(), place, 1, vec![0; 10]);
    let without_key = read(&bytes, &Format::First { identity: 7 }, 0).found.unwrap_err();
    assert!(matches!(without_key, SegmentError::OtherKey), "{without_key:?}");
    // An incomplete header identifies nothing, wherever it ends.
    for whose in [Seal::new(6, 8, &Key([9; 32])), Seal::new(7, 8, &Key([10; 32])), seal()] {
        let whole = frame(&whose, place, 1, vec![0; 10]);
        for kept in 0..80 {
            let mut bytes = whole.clone();
            bytes[kept..].fill(0);
            assert_eq!(read(&bytes, &Format::Second(seal()), 0).versions(), [] as [u64; 0], "{kept}");
        }
    }
}

#[test]
fn a_header_whose_frame_was_cut_off_still_tells_that_its_generation_has_begun() {
    let mut bytes = frame(&seal(), FramePosition { generation: 3, sequence: 12, at: 0 }, 1, vec![5; 10_000]);
    bytes[BLOCK..].fill(0);
    let found = read(&bytes, &Format::Second(seal()), 1).found.unwrap().unwrap();
    assert_eq!((found.generation, found.first, found.next), (3, 12, 12));
    assert!(found.changes.is_empty());
}

/// Content that a client or an API may choose, with anything that was ever in a journal.
fn hostile(random: &mut Random, seen: &[Vec<u8>], place: FramePosition) -> Vec<u8> {
    let blocks = usize::try_from(random.below(6)).unwrap();
    let other = Seal::new(7, 8, &Key([10; 32]));
    planted(blocks, |block| match random.below(4) {
        0 if !seen.is_empty() => random.pick(seen).clone(),
        1 => {
            let place = FramePosition {
                at: place.at + (block * BLOCK) as u64,
                sequence: place.sequence + 1,
                ..place
            };
            frame(&other, place, 1, vec![0; usize::try_from(random.below(20_000)).unwrap()])
        }
        2 => b"OnceJrn1 and more".to_vec(),
        _ => (0..64).flat_map(|_| random.next().to_le_bytes()).collect(),
    })
}

#[test]
fn whatever_content_there_is_and_wherever_the_last_frame_is_cut_exactly_the_confirmed_frames_are_read() {
    let (mut torn, mut damaged) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::seeded(0x10a7 + seed);
        let (mut file, mut seen) = (Written::new(), Vec::new());
        for _ in 0..=random.below(4) {
            file.turn();
            for _ in 0..=random.below(6) {
                let record = hostile(&mut random, &seen, file.place);
                file.append(record);
                let start = *file.starts.last().unwrap();
                seen.push(file.bytes[start..start + BLOCK].to_vec());
            }
        }
        assert_eq!(file.read().versions(), file.versions, "seed {seed}");
        // The next frame, of which the disk wrote a random set of sectors.
        let before = file.bytes.clone();
        let confirmed = file.versions.clone();
        if random.below(4) == 0 {
            file.turn();
        }
        let record = hostile(&mut random, &seen, file.place);
        let expected = if file.versions.is_empty() { Vec::new() } else { confirmed };
        file.append(record);
        let after = file.bytes.clone();
        for (n, sector) in file.bytes.chunks_mut(512).enumerate() {
            if random.below(2) == 0 {
                let old = before.get(n * 512..n * 512 + sector.len()).map(<[u8]>::to_vec);
                sector.copy_from_slice(&old.unwrap_or_else(|| vec![0; sector.len()]));
            }
        }
        let outcome = file.read();
        assert!(outcome.read <= 2 * file.bytes.len() as u64 + 200, "seed {seed}: {}", outcome.read);
        let found = outcome.versions();
        if found != file.versions {
            assert_eq!(found, expected, "seed {seed}");
            torn += 1;
        }
        // A confirmed frame that has changed, followed by a later one.
        if let [first, .., _] = file.starts.as_slice() {
            file.bytes = after;
            let at = first + usize::try_from(random.below(76)).unwrap();
            file.bytes[at] ^= 1 << random.below(8);
            let error = file.read().found.unwrap_err();
            assert!(
                matches!(error, SegmentError::Damaged { at } if at == *first as u64),
                "seed {seed}: {error:?}"
            );
            damaged += 1;
        }
    }
    assert!(torn > 50 && damaged > 50, "{torn} were torn, {damaged} damaged");
}
