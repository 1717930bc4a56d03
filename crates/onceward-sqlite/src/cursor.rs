//! Cursors: the list and the row after which a page continues.

use onceward::store::driver::foreign_cursor;
use onceward::store::{Cursor, StoreError};

/// The order in which rows are listed. A cursor is valid only for the order that it was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    /// `in_progress`, by the end of the lease.
    Leases,
    /// `unknown`, by the time of the next reconciliation.
    Reconcile,
    /// Records with an expiry, by expiry.
    Expiry,
    /// Records that expire within one crowded span, in the order of their first claims.
    Crowd,
    /// All records, in the order of their first claims.
    All,
}

impl Walk {
    const fn tag(self) -> u8 {
        match self {
            Self::Leases => b'l',
            Self::Reconcile => b'r',
            Self::Expiry => b'e',
            Self::Crowd => b'c',
            Self::All => b'a',
        }
    }
}

/// A position between two rows of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub walk: Walk,
    pub due_at: i64,
    pub number: i64,
}

/// Clients keep cursors longer than the process lives, so a new layout gets a new number.
const FORMAT: u8 = 1;

impl Position {
    pub(crate) const fn start(walk: Walk) -> Self {
        Self { walk, due_at: i64::MIN, number: i64::MIN }
    }

    pub(crate) fn cursor(self) -> Cursor {
        let mut bytes = vec![FORMAT, self.walk.tag()];
        bytes.extend(self.due_at.to_be_bytes());
        bytes.extend(self.number.to_be_bytes());
        Cursor::from_bytes(bytes)
    }

    /// Reads a cursor of one of these walks.
    pub(crate) fn read(cursor: &Cursor, walks: &[Walk]) -> Result<Self, StoreError> {
        let parse = || {
            let (&[format, tag], rest) = cursor.as_bytes().split_first_chunk()?;
            let (due_at, rest) = rest.split_first_chunk()?;
            let number = rest.try_into().ok()?;
            let walk = walks.iter().copied().find(|walk| format == FORMAT && walk.tag() == tag)?;
            Some(Self { walk, due_at: i64::from_be_bytes(*due_at), number: i64::from_be_bytes(number) })
        };
        parse().ok_or_else(|| foreign_cursor(cursor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_for_its_own_list_and_refused_for_any_other() {
        let position = Position { walk: Walk::Crowd, due_at: 7, number: -3 };
        let cursor = position.cursor();
        assert_eq!(Position::read(&cursor, &[Walk::Expiry, Walk::Crowd]), Ok(position));
        assert!(matches!(Position::read(&cursor, &[Walk::All]), Err(StoreError::Refused { .. })));
        for foreign in [&b""[..], b"x", b"\x01c", &[0; 18], &[0; 24]] {
            let foreign = Cursor::from_bytes(foreign);
            assert!(matches!(Position::read(&foreign, &[Walk::Crowd]), Err(StoreError::Refused { .. })));
        }
    }
}
