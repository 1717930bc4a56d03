//! How a row of the database is read, and what its columns hold.

use onceward::store::Version;
use onceward::store::driver::RawRecord;
use onceward::{RecordId, Timestamp};
use rusqlite::{OptionalExtension, Statement};

pub(crate) const SELECT: &str = "SELECT version, record FROM operations WHERE id = ?1";
pub(crate) const SELECT_VERSION: &str = "SELECT version FROM operations WHERE id = ?1";

/// Reads what stands in the database for an id.
pub(crate) fn stored(select: &mut Statement<'_>, id: RecordId) -> rusqlite::Result<Option<RawRecord>> {
    select
        .query_row([&id.as_bytes()[..]], |row| {
            Ok(RawRecord { version: version(row.get(0)?), bytes: row.get_ref(1)?.as_blob()?.to_vec() })
        })
        .optional()
}

/// Reads at which version an id stands in the database.
pub(crate) fn stored_version(select: &mut Statement<'_>, id: RecordId) -> rusqlite::Result<Option<Version>> {
    select.query_row([&id.as_bytes()[..]], |row| row.get(0).map(version)).optional()
}

/// A time as the column holds it. Every [`Timestamp`] fits.
pub(crate) fn micros(at: Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

/// A version as the column holds it. None is so high that it would not fit: they are given one by one.
pub(crate) fn column(version: Version) -> i64 {
    i64::try_from(version.as_number()).unwrap_or(i64::MAX)
}

/// A version as the store gave it. A negative one can only come from another program's hand.
pub(crate) fn version(column: i64) -> Version {
    Version::from_number(column.unsigned_abs())
}
