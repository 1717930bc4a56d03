//! Reads rows, and converts versions and times to their columns.

use onceward::store::Version;
use onceward::store::driver::RawRecord;
use onceward::{RecordId, Timestamp};
use rusqlite::{OptionalExtension, Statement};

pub(crate) const SELECT: &str = "SELECT version, record FROM operations WHERE id = ?1";
pub(crate) const SELECT_VERSION: &str = "SELECT version FROM operations WHERE id = ?1";

/// Reads the stored record of an id.
pub(crate) fn stored(select: &mut Statement<'_>, id: RecordId) -> rusqlite::Result<Option<RawRecord>> {
    select
        .query_row([&id.as_bytes()[..]], |row| {
            Ok(RawRecord { version: version(row.get(0)?), bytes: row.get_ref(1)?.as_blob()?.to_vec() })
        })
        .optional()
}

/// Reads the stored version of an id.
pub(crate) fn stored_version(select: &mut Statement<'_>, id: RecordId) -> rusqlite::Result<Option<Version>> {
    select.query_row([&id.as_bytes()[..]], |row| row.get(0).map(version)).optional()
}

/// A time as its column holds it. Every [`Timestamp`] fits.
pub(crate) fn micros(at: Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

/// A version as its column holds it. Versions are counted up one by one, so none exceeds an `i64`.
pub(crate) fn column(version: Version) -> i64 {
    i64::try_from(version.as_number()).unwrap_or(i64::MAX)
}

/// A version as the store gave it. A negative number was written by another program.
pub(crate) fn version(column: i64) -> Version {
    Version::from_number(column.unsigned_abs())
}
