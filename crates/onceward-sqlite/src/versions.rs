//! Versions for the whole file from one counter, so that none comes back to an id, forgotten or not.

use onceward::store::Version;
use rusqlite::{Connection, Statement};

/// So many are reserved at once, in the transaction that first needs them. What is left of a block is lost when the
/// process ends; at a million restarts a day the numbers last for 25 million years.
const BLOCK: i64 = 1_000_000;

/// The counter. Numbers are used up even by a transaction that is rolled back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Versions {
    last: i64,
    reserved: i64,
}

/// How far versions are reserved in the file, to return to when a transaction is rolled back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserved(i64);

impl Versions {
    pub(crate) const RESERVE: &str = "UPDATE meta SET value = ?1 WHERE name = 'versions_reserved'";

    /// Goes on above everything that was ever reserved.
    pub(crate) fn open(connection: &Connection) -> rusqlite::Result<Self> {
        let reserved =
            connection
                .query_row("SELECT value FROM meta WHERE name = 'versions_reserved'", [], |row| row.get(0))?;
        Ok(Self { last: reserved, reserved })
    }

    /// The next number, reserved in the present transaction if need be.
    pub(crate) fn next(&mut self, reserve: &mut Statement<'_>) -> rusqlite::Result<i64> {
        let next = self.last + 1;
        if next > self.reserved {
            let upto = self.last + BLOCK;
            reserve.execute([upto])?;
            self.reserved = upto;
        }
        self.last = next;
        Ok(next)
    }

    pub(crate) fn reserved(&self) -> Reserved {
        Reserved(self.reserved)
    }

    /// The transaction was rolled back, and what it reserved with it.
    pub(crate) fn rolled_back(&mut self, to: Reserved) {
        self.reserved = to.0;
    }
}

/// A version as the column holds it. No row has version 0, so what does not fit matches nothing.
pub(crate) fn column(version: Version) -> i64 {
    i64::try_from(version.as_number()).unwrap_or(0)
}

/// A version as the store gave it. A negative one can only come from another program's hand.
pub(crate) fn version(column: i64) -> Version {
    Version::from_number(column.unsigned_abs())
}
