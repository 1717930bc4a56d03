//! Parses the answers of the scripts.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's enums grow; what is not known here is never an answer"
)]

use onceward::store::driver::RawRecord;
use onceward::store::{Stamped, StoreError, Version};
use onceward::{RecordId, Timestamp, codec};
use redis::Value;

use crate::error::Failure;

/// The digits of a version at the beginning of a stored record. Microseconds since 1970 have as many until 2286.
pub(crate) const VERSION_DIGITS: usize = 16;
/// The version, and the letter of the record's list.
const HEAD_BYTES: usize = VERSION_DIGITS + 1;

/// An answer of a script.
pub(crate) enum Reply {
    /// The bucket's marker is not the one that the caller expects.
    Lost { generation: String },
    /// The script was carried out.
    Answer { kind: ReplyKind, now: Timestamp, last: u64, rest: Value },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    Applied,
    Conflict,
    Found,
    Forgotten,
    Listed,
}

impl Reply {
    pub(crate) fn read(value: Value) -> Result<Self, Failure> {
        let Value::Array(parts) = value else { return Err(Failure::Malformed("no list")) };
        let mut parts = parts.into_iter();
        let mut text = || parts.next().and_then(text).ok_or(Failure::Malformed("a part is missing"));
        let kind = match text()?.as_str() {
            "lost" => return Ok(Self::Lost { generation: text()? }),
            "applied" => ReplyKind::Applied,
            "conflict" => ReplyKind::Conflict,
            "found" => ReplyKind::Found,
            "forgotten" => ReplyKind::Forgotten,
            "listed" => ReplyKind::Listed,
            _ => return Err(Failure::Malformed("an unknown word")),
        };
        let mut number = || text()?.parse::<u64>().map_err(|_| Failure::Malformed("no number"));
        let (seconds, micros, last) = (number()?, number()?, number()?);
        let now = Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros));
        Ok(Self::Answer { kind, now, last, rest: parts.next().unwrap_or(Value::Nil) })
    }
}

pub(crate) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A version in the form that scripts compare.
pub(crate) fn digits(version: Version) -> String {
    format!("{:0VERSION_DIGITS$}", version.as_number())
}

/// The stored record and its version. A value without a version was not written by this store, and is not absent either.
pub(crate) fn record(id: RecordId, stored: Value) -> Result<Option<Stamped>, StoreError> {
    let bytes = match stored {
        Value::Nil => return Ok(None),
        Value::BulkString(bytes) => bytes,
        _ => return Err(malformed(id)),
    };
    let version = bytes
        .get(..VERSION_DIGITS)
        .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
        .map(Version::from_number)
        .ok_or_else(|| malformed(id))?;
    RawRecord { version, bytes: bytes.get(HEAD_BYTES..).unwrap_or_default() }.decode(id).map(Some)
}

fn malformed(id: RecordId) -> StoreError {
    let why = codec::Unreadable::Damaged { how: "no version" };
    StoreError::Unreadable { id, version: Version::from_number(0), why }
}

/// The ids and scores of a list.
pub(crate) fn places(listed: Value) -> Result<Vec<(u64, RecordId)>, Failure> {
    let Value::Array(parts) = listed else { return Err(Failure::Malformed("no list of positions")) };
    let mut places = Vec::with_capacity(parts.len() / 2);
    let mut parts = parts.into_iter();
    while let (Some(id), Some(score)) = (parts.next(), parts.next()) {
        let Value::BulkString(id) = id else { return Err(Failure::Malformed("a position without an id")) };
        let id =
            <[u8; 16]>::try_from(id.as_slice()).map_err(|_| Failure::Malformed("an id of another length"))?;
        let score = text(score)
            .and_then(|text| whole(&text))
            .ok_or(Failure::Malformed("a position without a time"))?;
        places.push((score, RecordId::from_bytes(id)));
    }
    Ok(places)
}

/// Redis prints whole scores plainly, and large ones perhaps with an exponent.
fn whole(text: &str) -> Option<u64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let number: f64 = text.parse().ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast to an integer saturates, and scores are whole numbers below 2⁵³"
    )]
    (number >= 0.0).then_some(number as u64)
}
