//! Cursors: the list and the record after which a page continues.

use onceward::RecordId;
use onceward::store::driver::foreign_cursor;
use onceward::store::{Cursor, Due, StoreError, Which};

use crate::keys::List;

/// A position after a record. For due records all buckets form one list; in an operator's list one bucket follows the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub list: List,
    pub score: u64,
    pub id: RecordId,
}

/// Clients keep cursors longer than the process lives, so a new layout gets a new number.
const FORMAT: u8 = 1;

const fn kind(which: &Which) -> u8 {
    match which {
        Which::Due(Due::Leases) => b'l',
        Which::Due(Due::Reconcile) => b'u',
        Which::Due(Due::Expired) => b'e',
        Which::Filter(_) => b'f',
    }
}

impl Position {
    pub(crate) fn cursor(self, which: &Which) -> Cursor {
        let mut bytes = vec![FORMAT, kind(which)];
        bytes.extend(self.list.letter().as_bytes());
        bytes.extend(self.score.to_be_bytes());
        bytes.extend(self.id.as_bytes());
        Cursor::from_bytes(bytes)
    }

    pub(crate) fn read(cursor: &Cursor, which: &Which) -> Result<Self, StoreError> {
        let parse = || {
            let (&[format, tag, letter], rest) = cursor.as_bytes().split_first_chunk()?;
            let (score, id) = rest.split_first_chunk()?;
            let list = List::ALL.into_iter().find(|list| list.letter().as_bytes() == [letter])?;
            let id = RecordId::from_bytes(id.try_into().ok()?);
            (format == FORMAT && tag == kind(which)).then_some(Self {
                list,
                score: u64::from_be_bytes(*score),
                id,
            })
        };
        parse().ok_or_else(|| foreign_cursor(cursor))
    }
}

#[cfg(test)]
mod tests {
    use onceward::store::Filter;

    use super::*;

    #[test]
    fn a_cursor_is_read_back_for_its_own_list_and_refused_for_any_other() {
        let place = Position { list: List::Unknown, score: 7, id: RecordId::from_bytes([9; 16]) };
        let (due, filter) = (Which::Due(Due::Reconcile), Which::Filter(Filter::default()));
        let cursor = place.cursor(&due);
        assert_eq!(Position::read(&cursor, &due), Ok(place));
        assert!(matches!(Position::read(&cursor, &filter), Err(StoreError::Refused { .. })));
        for foreign in [&b""[..], b"x", b"\x01uu", &[0; 27], &[0; 300]] {
            let foreign = Cursor::from_bytes(foreign);
            assert!(matches!(Position::read(&foreign, &due), Err(StoreError::Refused { .. })));
        }
    }
}
