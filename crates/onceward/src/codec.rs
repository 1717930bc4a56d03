//! A record as bytes: a format number, a checksum, and the fields.
//!
//! ```text
//! byte 0      format, 1
//! bytes 1-4   CRC-32 of the record's id, the format and the fields, little-endian
//! bytes 5-    the fields, in postcard's published encoding
//! ```
//!
//! What cannot be read is an error and never absence: taking a damaged record for a new key would execute twice. The
//! checksum covers the id, so that a row copied under another id is noticed too.

use crate::RecordId;
use crate::record::Record;

/// The format that is written. A change of [`Record`] is a new number and a reader for the old one.
const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 5;

/// Why stored bytes are not a record that this version can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A newer Onceward wrote it.
    #[error(
        "it was written in format {found}, and this version reads up to {FORMAT}: run the newer version, or wait until the roll-back has been undone"
    )]
    Newer {
        /// The format it was written in.
        found: u8,
    },
    /// A bit flipped, a row was cut short or copied to another id.
    #[error("it is damaged ({how}): look at the disk and restore it, or resolve the operation by its id")]
    Damaged {
        /// What did not fit.
        how: &'static str,
    },
}

/// The bytes to store for a record.
pub fn encode(id: RecordId, record: &Record) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = postcard::to_extend(record, vec![FORMAT, 0, 0, 0, 0])
        .map_err(|error| EncodeError { reason: error.to_string() })?;
    let checksum = checksum(id, FORMAT, &bytes[HEADER_BYTES..]).to_le_bytes();
    bytes[1..HEADER_BYTES].copy_from_slice(&checksum);
    Ok(bytes)
}

/// The record that these bytes are.
pub fn decode(id: RecordId, bytes: &[u8]) -> Result<Record, Unreadable> {
    let (&[format, a, b, c, d], fields) =
        bytes.split_first_chunk().ok_or(Unreadable::Damaged { how: "cut short" })?;
    if format > FORMAT {
        return Err(Unreadable::Newer { found: format });
    }
    if format != FORMAT {
        return Err(Unreadable::Damaged { how: "no such format" });
    }
    if checksum(id, format, fields) != u32::from_le_bytes([a, b, c, d]) {
        return Err(Unreadable::Damaged { how: "wrong checksum" });
    }
    match postcard::take_from_bytes(fields) {
        Ok((record, [])) => Ok(record),
        Ok(_) => Err(Unreadable::Damaged { how: "bytes left over" }),
        Err(_) => Err(Unreadable::Damaged { how: "fields do not fit" }),
    }
}

/// A record could not be written down. Every record that the machine makes can be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record cannot be encoded: {reason}")]
pub struct EncodeError {
    reason: String,
}

fn checksum(id: RecordId, format: u8, fields: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(id.as_bytes());
    hasher.update(&[format]);
    hasher.update(fields);
    hasher.finalize()
}
