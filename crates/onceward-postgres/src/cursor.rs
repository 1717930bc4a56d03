//! Cursors: the list and the row after which a page continues.

use onceward::store::driver::foreign_cursor;
use onceward::store::{Cursor, StoreError};
use onceward::{RecordId, Timestamp};

/// The order in which rows are listed. A cursor is valid only for the order that it was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    /// Nothing is listed yet: the watermark is moving, and old claims are inserted into `due`.
    Promotion,
    /// Leases in the table `due`, by their end.
    Leases,
    /// Young claims, by the end of their lease.
    YoungLeases,
    /// Unknown outcomes in the table `due`, by the time of the next reconciliation.
    Reconcile,
    /// The claims of one minute, by expiry.
    Expiry,
    /// The claims of a crowded minute, in the order of the claims.
    Crowd,
    /// Young claims, in their order.
    Young,
    /// All records, in the order of the claims.
    All,
}

impl Walk {
    const fn tag(self) -> u8 {
        match self {
            Self::Promotion => b'p',
            Self::Leases => b'l',
            Self::YoungLeases => b'y',
            Self::Reconcile => b'r',
            Self::Expiry => b'e',
            Self::Crowd => b'c',
            Self::Young => b'n',
            Self::All => b'a',
        }
    }
}

/// A position between two rows of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub walk: Walk,
    /// The beginning of the minute that is sorted by expiry.
    pub from: Timestamp,
    pub at: Timestamp,
    pub id: RecordId,
}

/// Clients keep cursors longer than the process lives, so a new layout gets a new number.
const FORMAT: u8 = 1;

impl Position {
    pub(crate) const fn start(walk: Walk) -> Self {
        let zero = Timestamp::from_micros(0);
        Self { walk, from: zero, at: zero, id: RecordId::from_bytes([0; 16]) }
    }

    pub(crate) fn cursor(self) -> Cursor {
        let mut bytes = vec![FORMAT, self.walk.tag()];
        bytes.extend(self.from.as_micros().to_be_bytes());
        bytes.extend(self.at.as_micros().to_be_bytes());
        bytes.extend(self.id.as_bytes());
        Cursor::from_bytes(bytes)
    }

    /// Reads a cursor of one of these walks.
    pub(crate) fn read(cursor: &Cursor, walks: &[Walk]) -> Result<Self, StoreError> {
        let parse = || {
            let (&[format, tag], rest) = cursor.as_bytes().split_first_chunk()?;
            let (from, rest) = rest.split_first_chunk()?;
            let (at, rest) = rest.split_first_chunk()?;
            let id = RecordId::from_bytes(rest.try_into().ok()?);
            let walk = walks.iter().copied().find(|walk| format == FORMAT && walk.tag() == tag)?;
            let time = |bytes: &[u8; 8]| Timestamp::from_micros(u64::from_be_bytes(*bytes));
            Some(Self { walk, from: time(from), at: time(at), id })
        };
        parse().ok_or_else(|| foreign_cursor(cursor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_for_its_own_list_and_refused_for_any_other() {
        let time = Timestamp::from_micros;
        let position =
            Position { walk: Walk::Crowd, from: time(7), at: time(9), id: RecordId::from_bytes([3; 16]) };
        let cursor = position.cursor();
        assert_eq!(Position::read(&cursor, &[Walk::Expiry, Walk::Crowd]), Ok(position));
        assert!(matches!(Position::read(&cursor, &[Walk::All]), Err(StoreError::Refused { .. })));
        for foreign in [&b""[..], b"x", b"\x01c", &[0; 34], &[1; 40]] {
            let foreign = Cursor::from_bytes(foreign);
            assert!(matches!(Position::read(&foreign, &[Walk::Crowd]), Err(StoreError::Refused { .. })));
        }
    }
}
