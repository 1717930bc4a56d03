//! Stored replies that imitate frames of the journal.
//!
//! A journal file is overwritten from its beginning, so its last frame is followed by remains of older frames, with bytes
//! that a client or an API chose, at block boundaries that can be calculated.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::files::{cut_off, journal, listed, slow};
use crate::support::forged::{self, BLOCK, Claim};
use crate::support::{block_on, flush, open, put};
use onceward::store::{Store, Version};
use onceward::{Record, Reply, record::State};
use onceward_sqlite::SqliteStore;
use onceward_testkit::sample;

const BLOCKS: usize = 40;
const BODY_BYTES: usize = BLOCKS * BLOCK;

fn reply(body: Vec<u8>) -> Record {
    let reply = Reply { body: body.into(), ..(*sample::reply(201, "")).clone() };
    let (settled_at, expires_at) = (sample::START, onceward::Timestamp::NEVER);
    sample::in_state("k", State::Completed { reply: Arc::new(reply), settled_at, expires_at })
}

fn version(store: &SqliteStore, n: u64) -> Option<Version> {
    block_on(store.load(sample::id(n))).unwrap().record.map(|found| found.version)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The journal file that was written last, and its content.
fn current(store: &SqliteStore, marker: &[u8]) -> (u8, Vec<u8>) {
    let files = (0..2).map(|part| (part, std::fs::read(journal(store.path(), part)).unwrap()));
    files.into_iter().find(|(_, bytes)| bytes.windows(marker.len()).any(|window| window == marker)).unwrap()
}

/// What an attacker knows before the reply is stored.
struct Known {
    /// The header fields of the frame after the planted ones.
    next: Claim,
}

/// The state after the reply was planted, its file was overwritten, and the process was killed.
struct Planted {
    path: PathBuf,
    /// The file that holds the planted bytes.
    part: PathBuf,
    /// The acknowledged versions of the ids from 1 on.
    versions: [Option<Version>; 4],
}

impl Planted {
    /// Stores replies so that the bytes of `forge` begin every block after the last frame.
    fn store(directory: &Path, forge: &dyn Fn(&Known, usize) -> Vec<u8>) -> Self {
        let path = directory.join("onceward.db");
        let store = slow(&path);
        let turn = |n| {
            flush(&store);
            let version = put(&store, sample::id(n), None, sample::record("k"));
            flush(&store);
            version
        };
        // The attacker finds out where a reply of this size is stored.
        let marker = b"here the body begins";
        let mut filler = vec![0x55; BODY_BYTES];
        filler[..marker.len()].copy_from_slice(marker);
        let first = put(&store, sample::id(1), None, reply(filler));
        let (part, bytes) = current(&store, marker);
        let body_at = bytes.windows(marker.len()).position(|window| window == marker).unwrap();
        let keyed = bytes.starts_with(b"OnceJrn2");
        let (opening, generation) =
            if keyed { (number(&bytes, 16), number(&bytes, 24)) } else { (0, number(&bytes, 16)) };
        let identity = forged::meta_value(&path, "journal_identity");
        let next = Claim { identity, opening, generation: generation + 4, sequence: 5 };
        let second = turn(2);
        let known = Known { next };
        let mut body = vec![0; BODY_BYTES];
        for block in 1..BLOCKS {
            let forged = forge(&known, block);
            let start = block * BLOCK - body_at;
            body[start..start + forged.len()].copy_from_slice(&forged);
        }
        let first = put(&store, sample::id(1), Some(first), reply(body));
        let third = turn(3);
        let fourth = put(&store, sample::id(4), None, sample::record("k"));
        let bytes = std::fs::read(journal(store.path(), part)).unwrap();
        for block in 1..BLOCKS {
            let forged = forge(&known, block);
            assert_eq!(bytes[block * BLOCK..][..forged.len()], forged, "block {block} was not reached");
        }
        let path = cut_off(&store, &directory.join("left"));
        let part = journal(&path, part);
        Self { path, part, versions: [first, second, third, fourth].map(Some) }
    }

    #[track_caller]
    fn is_recovered(&self, name: &str) {
        let store = open(&self.path);
        assert_eq!([1, 2, 3, 4].map(|n| version(&store, n)), self.versions, "{name}");
        assert_eq!(listed(&store), self.versions.iter().flatten().count(), "{name}");
    }

    /// Tears the last frame, before the planted ones: its first block was never written.
    fn tear(&mut self) {
        let mut bytes = std::fs::read(&self.part).unwrap();
        bytes[..BLOCK].fill(0);
        std::fs::write(&self.part, bytes).unwrap();
        self.versions[3] = None;
    }
}

type Forge = fn(&Known, usize) -> Vec<u8>;

fn at(block: usize) -> u64 {
    (block * BLOCK) as u64
}

fn whole(block: usize) -> (Vec<u8>, u32) {
    assert!(block > 0);
    let changes = forged::changes();
    let length = u32::try_from(changes.len()).unwrap();
    (changes, length)
}

/// The header that would be accepted at this block, if its tags were valid.
fn claim(known: &Known, block: usize) -> Claim {
    Claim { sequence: known.next.sequence + block as u64 - 1, ..known.next }
}

fn foreign(known: &Known, block: usize) -> Claim {
    Claim { identity: 0x0bad_0bad, ..claim(known, block) }
}

fn to_the_end(block: usize) -> u32 {
    u32::try_from(BODY_BYTES - block * BLOCK).unwrap()
}

/// Forgeries that need no secret, and forgeries that need everything but the key.
const FORGERIES: [(&str, Forge); 11] = [
    ("a whole frame of another database, first format", |known, block| {
        let (changes, length) = whole(block);
        forged::first(foreign(known, block), &changes, length)
    }),
    ("a whole frame of another database, second format", |known, block| {
        let (changes, length) = whole(block);
        forged::second(foreign(known, block), at(block), &changes, length)
    }),
    ("the greatest length, first format", |known, block| forged::first(foreign(known, block), &[], u32::MAX)),
    ("the greatest length, second format", |known, block| {
        forged::second(claim(known, block), at(block), &[], u32::MAX)
    }),
    ("lengths that overlap, first format", |known, block| {
        forged::first(foreign(known, block), &[], to_the_end(block))
    }),
    ("lengths that overlap, with the right identity, first format", |known, block| {
        forged::first(claim(known, block), &[], to_the_end(block))
    }),
    ("lengths that overlap, with the right identity, second format", |known, block| {
        forged::second(claim(known, block), at(block), &[], to_the_end(block))
    }),
    ("a whole frame with the right identity, first format", |known, block| {
        let (changes, length) = whole(block);
        forged::first(claim(known, block), &changes, length)
    }),
    ("a whole frame with the right identity and opening, second format", |known, block| {
        let (changes, length) = whole(block);
        forged::second(claim(known, block), at(block), &changes, length)
    }),
    ("a frame of a later generation, second format", |known, block| {
        let (changes, length) = whole(block);
        let claim = Claim { generation: known.next.generation + 2, ..claim(known, block) };
        forged::second(claim, at(block), &changes, length)
    }),
    ("only the magic", |_, block| if block % 2 == 0 { b"OnceJrn1".to_vec() } else { b"OnceJrn2".to_vec() }),
];

#[test]
fn a_reply_that_imitates_frames_at_every_block_is_content() {
    for (name, forge) in FORGERIES {
        let directory = tempfile::tempdir().unwrap();
        Planted::store(directory.path(), &forge).is_recovered(name);
    }
}

#[test]
fn a_reply_that_imitates_frames_is_content_behind_a_torn_frame_too() {
    for (name, forge) in FORGERIES {
        let directory = tempfile::tempdir().unwrap();
        let mut planted = Planted::store(directory.path(), &forge);
        planted.tear();
        planted.is_recovered(name);
    }
}

#[test]
fn frames_of_earlier_generations_and_openings_behind_the_last_one_are_content() {
    let directory = tempfile::tempdir().unwrap();
    let mut path = directory.path().join("onceward.db");
    let mut expected = Vec::new();
    for opening in 0..4 {
        let store = slow(&path);
        // Fewer each time, so that real frames of every earlier opening remain.
        for generation in 0..4 {
            for n in 0..12 - 3 * opening - u64::from(generation > 1) {
                let id = sample::id(1_000 * opening + 100 * generation + n);
                expected.push((id, put(&store, id, None, sample::record("k"))));
            }
            if generation < 3 {
                flush(&store);
            }
        }
        for part in 0..2 {
            let bytes = std::fs::read(journal(store.path(), part)).unwrap();
            assert_eq!(bytes[11 * BLOCK..][..8], *b"OnceJrn2", "nothing was left behind");
        }
        path = cut_off(&store, &directory.path().join(format!("left-{opening}")));
    }
    let store = open(&path);
    for (id, version) in &expected {
        assert_eq!(block_on(store.load(*id)).unwrap().record.map(|found| found.version), Some(*version));
    }
    assert_eq!(listed(&store), expected.len());
}
