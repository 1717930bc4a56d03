//! A record as bytes: a format number, a checksum, and the fields.
//!
//! ```text
//! byte 0      format
//! bytes 1-4   CRC-32 of the record's id, the format and all that follows, little-endian
//! bytes 5-    format 1: the fields; format 2: the envelope's number, then the fields; in postcard's published encoding
//! ```
//!
//! The first five bytes mean the same in every format, now and later. The checksum is verified before the format byte is
//! trusted, so a flipped bit in that byte is damage, which an operator can resolve, and not a newer format.
//!
//! What cannot be read is an error and never absence: taking a damaged record for a new key would execute twice. The
//! checksum covers the id, so that a row copied under another id is noticed too.

mod format1;
mod format2;

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::RecordId;
use crate::outcome::Reply;
use crate::record::{Record, RecordFormat, State};

const HEADER_BYTES: usize = 5;

/// Why stored bytes are not a record that this version can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// A newer Onceward wrote it.
    #[error(
        "it was written in format {found}, and this version reads up to {}: run the newer version, or wait until the roll-back has been undone",
        RecordFormat::newest().number()
    )]
    Newer {
        /// The format it was written in.
        found: u8,
    },
    /// A newer Onceward added a critical extension to it.
    #[error("it needs {what} {number}, which this version does not know: run the newer version")]
    Foreign {
        /// What kind of thing it is, such as an extension.
        what: &'static str,
        /// Its number.
        number: u32,
    },
    /// A bit flipped, a row was cut short or copied to another id.
    #[error("it is damaged ({how}): look at the disk and restore it, or resolve the operation by its id")]
    Damaged {
        /// What is wrong.
        how: &'static str,
    },
}

/// The bytes to store for a record, in its own format.
pub fn encode(id: RecordId, record: &Record) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::with_capacity(size_of_encoded(record));
    let format = record.format.number();
    bytes.extend([format, 0, 0, 0, 0]);
    let mut bytes = match record.format {
        RecordFormat::One => append(bytes, &format1::written(record)),
        RecordFormat::Two => {
            bytes.push(format2::PLAIN);
            append(bytes, record)
        }
    }?;
    let checksum = checksum(id, format, &bytes[HEADER_BYTES..]).to_le_bytes();
    bytes[1..HEADER_BYTES].copy_from_slice(&checksum);
    Ok(bytes)
}

/// Decodes the bytes of a record.
pub fn decode(id: RecordId, bytes: &[u8]) -> Result<Record, Unreadable> {
    let (&[format, a, b, c, d], rest) =
        bytes.split_first_chunk().ok_or(Unreadable::Damaged { how: "cut short" })?;
    if checksum(id, format, rest) != u32::from_le_bytes([a, b, c, d]) {
        return Err(Unreadable::Damaged { how: "wrong checksum" });
    }
    match RecordFormat::from_number(format) {
        Some(RecordFormat::One) => format1::read(rest),
        Some(RecordFormat::Two) => format2::read(rest),
        None if format == 0 => Err(Unreadable::Damaged { how: "no such format" }),
        None => Err(Unreadable::Newer { found: format }),
    }
}

fn append(bytes: Vec<u8>, fields: &impl Serialize) -> Result<Vec<u8>, EncodeError> {
    postcard::serialize_with_flavor(fields, Tail(bytes))
        .map_err(|error| EncodeError { reason: error.to_string() })
}

/// All of the fields, and nothing after them.
fn whole<'a, T: serde::Deserialize<'a>>(fields: &'a [u8]) -> Result<T, Unreadable> {
    match postcard::take_from_bytes(fields) {
        Ok((record, [])) => Ok(record),
        Ok(_) => Err(Unreadable::Damaged { how: "bytes left over" }),
        Err(_) => Err(Unreadable::Damaged { how: "fields do not fit" }),
    }
}

/// Room for the fields of an ordinary record that have no length of their own, and for the lengths of those that have.
const FIXED_BYTES: usize = 216;
/// Room for the lengths of a header's name and value.
const HEADER_LENGTHS: usize = 6;

/// An estimate of a record's encoded length, rarely too low: a buffer of this capacity is rarely reallocated.
fn size_of_encoded(record: &Record) -> usize {
    let Record { subject, evidence, last_error, state, .. } = record;
    let reply = |reply: &Reply| reply.bytes() + reply.headers.len() * HEADER_LENGTHS;
    let answer = match state {
        State::Completed { reply: answer, .. } => reply(answer),
        State::InProgress { .. }
        | State::FailedRetryable { .. }
        | State::Unknown { .. }
        | State::Expired { .. } => 0,
    };
    FIXED_BYTES
        + subject.scope.len()
        + subject.key.len()
        + subject.route.len()
        + subject.path.len()
        + evidence.as_ref().map_or(0, |evidence| reply(&evidence.reply))
        + last_error.as_ref().map_or(0, String::len)
        + answer
}

/// Where postcard writes: after what is there already.
struct Tail(Vec<u8>);

impl postcard::ser_flavors::Flavor for Tail {
    type Output = Vec<u8>;

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.0.push(data);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// A record could not be encoded. Every record that the machine makes can be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record cannot be encoded: {reason}")]
pub struct EncodeError {
    reason: String,
}

fn checksum(id: RecordId, format: u8, rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(id.as_bytes());
    hasher.update(&[format]);
    hasher.update(rest);
    hasher.finalize()
}
