//! The encoding of a batch's changes.

use onceward::store::Version;
use onceward::store::driver::RawRecord;
use onceward::{RecordId, Timestamp, record::StateKind};

use crate::job::Row;

/// A write to an id and its version. Without a row, the record was deleted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub version: Version,
    pub row: Option<Row>,
}

impl Change {
    /// The version of the record, if it was not deleted.
    pub(crate) fn version_of_row(&self) -> Option<Version> {
        self.row.as_ref().map(|_| self.version)
    }

    /// A copy of the record, as the database would return it.
    pub(crate) fn stored(&self) -> Option<RawRecord> {
        self.row.as_ref().map(|row| RawRecord { version: self.version, bytes: row.record.clone() })
    }
}

const PUT: u8 = 1;
const FORGOTTEN: u8 = 2;
/// Ends the changes. Without it, a write that stopped just before trailing zeros could look complete.
const END: u8 = 0xff;

/// Appends a change.
pub(crate) fn write(bytes: &mut Vec<u8>, id: RecordId, change: &Change) {
    bytes.push(if change.row.is_some() { PUT } else { FORGOTTEN });
    bytes.extend(id.as_bytes());
    bytes.extend(change.version.as_number().to_le_bytes());
    let Some(row) = &change.row else { return };
    bytes.push(code(row.state));
    bytes.extend(row.due_at.as_micros().to_le_bytes());
    bytes.extend(row.created_at.as_micros().to_le_bytes());
    bytes.extend(length(&row.record).to_le_bytes());
    bytes.extend(&row.record);
}

/// Appends the end.
pub(crate) fn end(bytes: &mut Vec<u8>) {
    bytes.push(END);
}

/// A batch has at most 1 GiB and one record more, and a record at most 64 MiB: both are checked before.
pub(crate) fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Reads the changes of a verified frame. `None` if another program or a newer version wrote them.
pub(crate) fn read(mut bytes: &[u8]) -> Option<Vec<(RecordId, Change)>> {
    let mut changes = Vec::new();
    loop {
        let (&kind, rest) = bytes.split_first()?;
        if kind == END {
            return rest.is_empty().then_some(changes);
        }
        let (id, rest) = rest.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let version = Version::from_number(u64::from_le_bytes(*version));
        let (row, rest) = match kind {
            PUT => row(rest).map(|(row, rest)| (Some(row), rest))?,
            FORGOTTEN => (None, rest),
            _ => return None,
        };
        changes.push((RecordId::from_bytes(*id), Change { version, row }));
        bytes = rest;
    }
}

fn row(bytes: &[u8]) -> Option<(Row, &[u8])> {
    let (&state, rest) = bytes.split_first()?;
    let (due_at, rest) = rest.split_first_chunk()?;
    let (created_at, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (record, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let time = |micros: &[u8; 8]| Timestamp::from_micros(u64::from_le_bytes(*micros));
    let row = Row {
        state: state_of(state)?,
        due_at: time(due_at),
        created_at: time(created_at),
        record: record.to_vec(),
    };
    Some((row, rest))
}

/// The number of a state. Journals contain it, so it never changes.
const fn code(state: StateKind) -> u8 {
    match state {
        StateKind::InProgress => 1,
        StateKind::Completed => 2,
        StateKind::FailedRetryable => 3,
        StateKind::Unknown => 4,
        StateKind::Expired => 5,
    }
}

fn state_of(number: u8) -> Option<StateKind> {
    StateKind::ALL.into_iter().find(|state| code(*state) == number)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test reports")]
pub(crate) mod tests {
    use super::*;
    use onceward_testkit::sample;

    pub(crate) fn samples() -> Vec<(RecordId, Change)> {
        let put = |(n, state)| {
            let (id, record) = (sample::id(n), sample::in_state("k", state));
            (id, Change { version: Version::from_number(n), row: Some(Row::new(id, &record).unwrap()) })
        };
        let forgotten = (sample::id(99), Change { version: Version::from_number(99), row: None });
        (1..).zip(sample::states(sample::START)).map(put).chain([forgotten]).collect()
    }

    fn written(changes: &[(RecordId, Change)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        changes.iter().for_each(|(id, change)| write(&mut bytes, *id, change));
        end(&mut bytes);
        bytes
    }

    #[test]
    fn changes_to_every_state_are_read_back_as_they_were_written() {
        for state in StateKind::ALL {
            assert!(sample::states(sample::START).iter().any(|sample| sample.kind() == state), "{state:?}");
        }
        assert_eq!(read(&written(&samples())), Some(samples()));
    }

    #[test]
    fn changes_that_are_cut_short_or_of_another_kind_are_not_read() {
        let few: Vec<_> = samples().into_iter().take(2).collect();
        let whole = written(&few);
        let ends: Vec<_> = (0..=whole.len()).filter(|end| read(&whole[..*end]).is_some()).collect();
        assert_eq!(ends, [whole.len()]);
        assert_eq!(read(&[3; 25]), None);
        assert_eq!(read(&[whole.as_slice(), &[0]].concat()), None);
    }
}
