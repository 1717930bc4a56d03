//! The thread that lists records, a bounded page at a time.

use std::path::Path;

use onceward::codec::{self, Unreadable};
use onceward::store::{Due, Entry, Filter, Page, Scan, StoreError, Which};
use onceward::{Record, RecordId, Timestamp};
use rusqlite::{Connection, Row, params};

use crate::batch::micros;
use crate::cursor::{Position, Walk};
use crate::error::unavailable;
use crate::job::Answer;
use crate::queue::{Queue, Weigh, Weight};
use crate::versions::version;

/// A page longer than this is a list that nobody reads, and a batch that nobody should make.
const PAGE_ROWS_MAX: usize = 1_000;
/// Pages are held in memory whole, on their way through an API too.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// So many rows are looked at for one page, whether they are asked for or not. A page may therefore be empty and still
/// have a next one: a search through millions of rows must not keep the log from being moved, nor other lists waiting.
const PAGE_LOOKS_MAX: usize = 10_000;

/// A list that waits for the thread.
pub(crate) struct Listing {
    pub scan: Scan,
    pub now: Timestamp,
    pub answer: Answer<Page>,
}

impl Weigh for Listing {
    fn weight(&self) -> Weight {
        Weight { rows: 1, bytes: 0 }
    }
}

/// Works until the queue is closed and empty.
pub(crate) fn run(connection: &Connection, path: &Path, queue: &Queue<Listing>) {
    let mut listings = Vec::new();
    while queue.take(Weight { rows: 1, bytes: 0 }, &mut listings) {
        for Listing { scan, now, answer } in listings.drain(..) {
            // A caller that has gone away no longer wants its answer.
            drop(answer.send(page(connection, path, &scan, now)));
        }
    }
}

fn page(connection: &Connection, path: &Path, scan: &Scan, now: Timestamp) -> Result<Page, StoreError> {
    let walk = walk(&scan.which);
    let after = match &scan.after {
        Some(cursor) => Position::read(cursor, walk)?,
        None => Position::START,
    };
    let mut page = Page { now, entries: Vec::new(), next: None };
    if scan.limit > 0 {
        fill(&mut page, connection, scan, walk, after).map_err(|error| unavailable(&error, path))?;
    }
    Ok(page)
}

/// The states that few records are in have an index of their own, which serves the operator's lists too.
fn walk(which: &Which) -> Walk {
    match which {
        Which::Due(Due::Leases) => Walk::Leases,
        Which::Due(Due::Reconcile) => Walk::Reconcile,
        Which::Due(Due::Expired) => Walk::Expiry,
        Which::Filter(Filter { state: Some("in_progress"), .. }) => Walk::Leases,
        Which::Filter(Filter { state: Some("unknown"), .. }) => Walk::Reconcile,
        Which::Filter(_) => Walk::All,
    }
}

/// Rows of a walk after a position. Each names its index, so that a list never becomes a sort of the whole table.
const fn rows_of(walk: Walk) -> &'static str {
    match walk {
        Walk::Leases => {
            "SELECT number, due_at, id, version, state, created_at, record FROM operations
             INDEXED BY operations_leases
             WHERE state = 'in_progress' AND due_at <= ?1 AND (due_at, number) > (?2, ?3)
             ORDER BY due_at, number"
        }
        Walk::Reconcile => {
            "SELECT number, due_at, id, version, state, created_at, record FROM operations
             INDEXED BY operations_reconcile
             WHERE state = 'unknown' AND due_at <= ?1 AND (due_at, number) > (?2, ?3)
             ORDER BY due_at, number"
        }
        Walk::Expiry => {
            "SELECT number, due_at, id, version, state, created_at, record FROM operations
             INDEXED BY operations_expiry
             WHERE state IN ('completed', 'failed_retryable') AND due_at <= ?1 AND (due_at, number) > (?2, ?3)
             ORDER BY due_at, number"
        }
        Walk::All => {
            "SELECT number, due_at, id, version, state, created_at, record FROM operations
             WHERE ?1 IS NOT NULL AND ?2 IS NOT NULL AND number > ?3
             ORDER BY number"
        }
    }
}

fn fill(
    page: &mut Page,
    connection: &Connection,
    scan: &Scan,
    walk: Walk,
    after: Position,
) -> rusqlite::Result<()> {
    let until = match &scan.which {
        Which::Due(_) => micros(page.now),
        Which::Filter(_) => i64::MAX,
    };
    let most = scan.limit.min(PAGE_ROWS_MAX);
    let mut statement = connection.prepare_cached(rows_of(walk))?;
    let mut rows = statement.query(params![until, after.due_at, after.number])?;
    let (mut at, mut looks, mut bytes) = (after, 0, 0);
    while let Some(row) = rows.next()? {
        if page.entries.len() == most || bytes >= PAGE_BYTES_MAX || looks == PAGE_LOOKS_MAX {
            page.next = Some(at.cursor(walk));
            break;
        }
        looks += 1;
        at = Position { number: row.get(0)?, due_at: row.get(1)? };
        if let Some(entry) = entry(row, &scan.which, &mut bytes)? {
            page.entries.push(entry);
        }
    }
    Ok(())
}

/// The row as an entry, if it is asked for. What cannot be read is judged by its columns, and by them alone.
fn entry(row: &Row<'_>, which: &Which, bytes: &mut usize) -> rusqlite::Result<Option<Entry>> {
    if let Which::Filter(filter) = which
        && !columns_agree(filter, row)?
    {
        return Ok(None);
    }
    let id = RecordId::from_bytes(row.get(2)?);
    let record = match row.get_ref(6)?.as_blob() {
        Ok(stored) => {
            *bytes += stored.len();
            codec::decode(id, stored)
        }
        Err(_) => Err(Unreadable::Damaged { how: "not stored as bytes" }),
    };
    let asked_for = |record: &Record| match which {
        Which::Due(_) => true,
        Which::Filter(filter) => filter.accepts(record),
    };
    let wanted = record.as_ref().map_or(true, asked_for);
    Ok(wanted.then_some(Entry { id, version: version(row.get(3)?), record }))
}

fn columns_agree(filter: &Filter, row: &Row<'_>) -> rusqlite::Result<bool> {
    if let Some(state) = filter.state
        && row.get_ref(4)?.as_bytes()? != state.as_bytes()
    {
        return Ok(false);
    }
    if let Some(before) = filter.created_before
        && row.get::<_, i64>(5)? >= micros(before)
    {
        return Ok(false);
    }
    Ok(true)
}
