//! Converts ids, times and versions to PostgreSQL's types.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use onceward::store::Version;
use onceward::{RecordId, Timestamp};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// PostgreSQL counts microseconds from the year 2000.
const MICROS_TO_2000: i64 = 946_684_800_000_000;

/// An id, in a `uuid` column: sixteen bytes with an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(pub RecordId);

impl ToSql for Id {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Id {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(RecordId::from_bytes(raw.try_into()?)))
    }

    accepts!(UUID);
}

/// A time, in a `timestamptz` column. Every [`Timestamp`] fits, including the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At(pub Timestamp);

impl ToSql for At {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_i64(match i64::try_from(self.0.as_micros()) {
            // PostgreSQL's `infinity`, which is easier to read.
            Ok(i64::MAX) | Err(_) => i64::MAX,
            Ok(micros) => micros - MICROS_TO_2000,
        });
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for At {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        // `infinity` is the largest number, and becomes the last time.
        let micros = i64::from_be_bytes(raw.try_into()?).saturating_add(MICROS_TO_2000);
        Ok(Self(Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))))
    }

    accepts!(TIMESTAMPTZ);
}

/// A version as its column holds it. No row has version 0, so a number that does not fit matches no row.
pub(crate) fn column(version: Version) -> i64 {
    i64::try_from(version.as_number()).unwrap_or(0)
}

/// A version as the store gave it. A negative number was written by another program.
pub(crate) fn version(column: i64) -> Version {
    Version::from_number(column.unsigned_abs())
}

/// The readable columns are for people. A longer text is complete only in the record.
const READABLE_BYTES_MAX: usize = 1_000;

/// A text as a column can hold it: truncated, and without null characters, which PostgreSQL cannot store.
pub(crate) fn readable(text: &str) -> String {
    let mut end = text.len().min(READABLE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_time_survive_their_column() {
        for micros in [0, 1, 1_767_225_600_000_001, i64::MAX as u64] {
            let mut out = BytesMut::new();
            let at = At(Timestamp::from_micros(micros));
            assert!(matches!(at.to_sql(&Type::TIMESTAMPTZ, &mut out), Ok(IsNull::No)));
            assert_eq!(At::from_sql(&Type::TIMESTAMPTZ, &out).unwrap(), at);
        }
        assert_eq!(At::from_sql(&Type::TIMESTAMPTZ, &i64::MAX.to_be_bytes()).unwrap(), At(Timestamp::NEVER));
    }

    #[test]
    fn a_text_for_a_column_has_no_null_byte_and_an_end() {
        assert_eq!(readable("a\0b"), "a\u{fffd}b");
        assert_eq!(readable(&"é".repeat(1_000)).len(), 1_000);
    }
}
