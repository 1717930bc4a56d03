//! The reference store: a map behind a lock. It promises nothing beyond the life of the process.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Row;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::codec;
use crate::store::{
    Cursor, Entry, Page, Scan, Seen, Stamped, Store, StoreError, StoreFuture, Swapped, Version, Which,
};
use crate::time::{Clock, SystemClock};
use crate::{Record, RecordId, Timestamp};

/// Keeps records in memory, encoded as a database would.
#[derive(Clone)]
pub struct MemoryStore {
    rows: Arc<Mutex<Rows>>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Rows {
    by_id: BTreeMap<RecordId, (Version, Vec<u8>)>,
    last_version: u64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("records", &self.rows().by_id.len()).finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store that uses this clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { rows: Arc::default(), clock }
    }

    /// Overwrites stored bytes, as a failing disk would. For tests of unreadable records.
    #[doc(hidden)]
    pub fn damage(&self, id: RecordId, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some((_, bytes)) = self.rows().by_id.get_mut(&id) {
            change(bytes);
        }
    }

    // A panic while the lock is held cannot leave a row half written: rows are replaced whole.
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self, rows: &Rows, id: RecordId) -> Result<Seen, StoreError> {
        let record = rows.by_id.get(&id).map(|(version, bytes)| match codec::decode(id, bytes) {
            Ok(record) => Ok(Stamped { record, version: *version }),
            Err(why) => Err(StoreError::Unreadable { id, version: *version, why }),
        });
        Ok(Seen { now: self.clock.now(), record: record.transpose()? })
    }

    fn swap_now(&self, id: RecordId, expect: Option<Version>, bytes: Vec<u8>) -> Result<Swapped, StoreError> {
        let mut rows = self.rows();
        let Rows { by_id, last_version } = &mut *rows;
        let row = by_id.entry(id);
        let standing = match &row {
            Row::Occupied(row) => Some(row.get().0),
            Row::Vacant(_) => None,
        };
        if standing != expect {
            return self.seen(&rows, id).map(Swapped::Conflict);
        }
        // One counter for all ids: a version never comes back, not even to an id that was forgotten.
        *last_version += 1;
        let version = Version::from_number(*last_version);
        row.insert_entry((version, bytes));
        Ok(Swapped::Applied { version, now: self.clock.now() })
    }

    fn scan_now(&self, scan: &Scan) -> Result<Page, StoreError> {
        let now = self.clock.now();
        let after = scan.after.as_ref().map(read_cursor).transpose()?;
        let rows = self.rows();
        let mut found: Vec<((Timestamp, RecordId), Entry)> = rows
            .by_id
            .iter()
            .filter_map(|(&id, (version, bytes))| {
                let record = codec::decode(id, bytes);
                let at = position(&scan.which, now, record.as_ref().ok())?;
                (after.is_none_or(|after| (at, id) > after))
                    .then_some(((at, id), Entry { id, version: *version, record }))
            })
            .collect();
        found.sort_by_key(|(position, _)| *position);
        let more = found.len() > scan.limit;
        found.truncate(scan.limit);
        let next = found.last().filter(|_| more).map(|((at, id), _)| {
            Cursor::from_bytes([&at.as_micros().to_be_bytes()[..], id.as_bytes()].concat())
        });
        Ok(Page { now, entries: found.into_iter().map(|(_, entry)| entry).collect(), next })
    }

    fn forget_now(&self, records: &[(RecordId, Version)]) -> usize {
        let mut rows = self.rows();
        let before = rows.by_id.len();
        for (id, version) in records {
            if rows.by_id.get(id).is_some_and(|(current, _)| current == version) {
                rows.by_id.remove(id);
            }
        }
        before - rows.by_id.len()
    }
}

/// A record's place in a scan, if it belongs there. An unreadable record is in every operator's list.
fn position(which: &Which, now: Timestamp, record: Option<&Record>) -> Option<Timestamp> {
    match (which, record) {
        (Which::Due(due), Some(record)) => {
            let (kind, at) = record.due();
            (kind == *due && at <= now).then_some(at)
        }
        (Which::Due(_), None) => None,
        (Which::Filter(filter), record) => {
            record.is_none_or(|record| filter.accepts(record)).then_some(Timestamp::from_micros(0))
        }
    }
}

fn read_cursor(cursor: &Cursor) -> Result<(Timestamp, RecordId), StoreError> {
    let read = || {
        let (at, id) = cursor.as_bytes().split_first_chunk::<8>()?;
        Some((Timestamp::from_micros(u64::from_be_bytes(*at)), RecordId::from_bytes(id.try_into().ok()?)))
    };
    read().ok_or_else(|| StoreError::Refused {
        reason: format!("a cursor of {} bytes is not one that this store gave", cursor.as_bytes().len()),
    })
}

impl Store for MemoryStore {
    fn load(&self, id: RecordId) -> StoreFuture<'_, Seen> {
        Box::pin(async move { self.seen(&self.rows(), id) })
    }

    fn swap(&self, id: RecordId, expect: Option<Version>, next: Record) -> StoreFuture<'_, Swapped> {
        // Encoded before it is waited for: the bytes are smaller than the record, and not moved again.
        let bytes =
            codec::encode(id, &next).map_err(|error| StoreError::Refused { reason: error.to_string() });
        Box::pin(async move { self.swap_now(id, expect, bytes?) })
    }

    fn scan(&self, scan: Scan) -> StoreFuture<'_, Page> {
        Box::pin(async move { self.scan_now(&scan) })
    }

    fn forget(&self, records: Vec<(RecordId, Version)>) -> StoreFuture<'_, usize> {
        Box::pin(async move { Ok(self.forget_now(&records)) })
    }
}
