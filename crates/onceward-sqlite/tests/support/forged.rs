//! Journal frames as an attacker writes them: with everything that is in the source, and no secret.

use std::path::Path;

use rusqlite::Connection;
use sha2::{Digest, Sha256};

pub const BLOCK: usize = 4_096;

/// The header fields that a forged frame claims.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    pub identity: u64,
    pub opening: u64,
    pub generation: u64,
    pub sequence: u64,
}

/// Changes that put a row of one byte under an id that was never written.
pub fn changes() -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend([0xee; 16]);
    bytes.extend(u64::MAX.to_le_bytes());
    bytes.push(2);
    bytes.extend([0; 16]);
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend([0, 0xff]);
    bytes
}

/// A frame of the first format with a correct checksum, which needs no secret but the identity.
pub fn first(claim: Claim, changes: &[u8], length: u32) -> Vec<u8> {
    let mut frame = b"OnceJrn1".to_vec();
    frame.extend(claim.identity.to_le_bytes());
    frame.extend(claim.generation.to_le_bytes());
    frame.extend(claim.sequence.to_le_bytes());
    frame.extend(length.to_le_bytes());
    let checksum = Sha256::new().chain_update(&frame).chain_update(changes).finalize();
    frame.extend(&checksum[..16]);
    frame.extend(changes);
    frame
}

/// A frame of the second format with tags under a key that is not the store's.
pub fn second(claim: Claim, at: u64, changes: &[u8], length: u32) -> Vec<u8> {
    use hmac::{Hmac, KeyInit, Mac};
    let tag = |label: u8, parts: [&[u8]; 2]| {
        let mut mac = Hmac::<Sha256>::new_from_slice(&[0; 32]).unwrap();
        mac.update(&[label]);
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes()[..16].to_vec()
    };
    let mut frame = b"OnceJrn2".to_vec();
    frame.extend(claim.identity.to_le_bytes());
    frame.extend(claim.opening.to_le_bytes());
    frame.extend(claim.generation.to_le_bytes());
    frame.extend(claim.sequence.to_le_bytes());
    frame.extend(length.to_le_bytes());
    let head = tag(1, [&frame, &at.to_le_bytes()]);
    let body = tag(2, [&head, changes]);
    frame.extend(head);
    frame.extend(body);
    let check = Sha256::digest(&frame);
    frame.extend(&check[..4]);
    frame.extend(changes);
    frame
}

/// A value of the database's table `meta`, for an attacker who could read the files once.
pub fn meta_value(database: &Path, name: &str) -> u64 {
    let connection = Connection::open(database).unwrap();
    let select = "SELECT value FROM meta WHERE name = ?1";
    connection.query_row(select, [name], |row| row.get::<_, i64>(0)).map_or(0, i64::cast_unsigned)
}
