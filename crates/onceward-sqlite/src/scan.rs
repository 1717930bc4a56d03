//! The thread that serves `scan`, one bounded page at a time.

use std::path::Path;

use onceward::store::driver::{AnswerSender, PageBudget, Weight};
use onceward::store::{Due, Filter, Page, Scan, StoreError, Which};
use onceward::{Timestamp, record::StateKind};
use rusqlite::{Connection, OptionalExtension, params};

use crate::cursor::{Position, Walk};
use crate::entry::entry;
use crate::error::unavailable;
use crate::queue::{Queue, Weigh};
use crate::rows::micros;

/// A span with more expiries than this is crowded: it is listed only after it is over, in the order of the first claims.
/// Sorting it for every page, or skipping the rows that are not due yet, would cost more than the order is worth to a
/// sweeper.
const CROWD: i64 = 2_000;

/// A scan in the thread's queue.
pub(crate) struct Listing {
    pub scan: Scan,
    pub now: Timestamp,
    pub answer: AnswerSender<Page>,
}

impl Weigh for Listing {
    fn weight(&self) -> Weight {
        Weight { rows: 1, bytes: 0 }
    }
}

/// Serves scans until the queue is closed and empty.
pub(crate) fn run(connection: &Connection, path: &Path, queue: &Queue<Listing>) {
    let mut listings = Vec::new();
    while queue.take(Weight { rows: 1, bytes: 0 }, &mut listings) {
        for Listing { scan, now, answer } in listings.drain(..) {
            answer.send(page(connection, path, &scan, now));
        }
    }
}

fn page(connection: &Connection, path: &Path, scan: &Scan, now: Timestamp) -> Result<Page, StoreError> {
    let walks = walks(&scan.which);
    let from = match (&scan.after, walks) {
        (Some(cursor), walks) => Position::read(cursor, walks)?,
        (None, [walk, ..]) => Position::start(*walk),
        (None, []) => Position::start(Walk::All),
    };
    let mut builder = PageBuilder {
        connection,
        scan,
        until: match scan.which {
            Which::Due(_) => micros(now),
            Which::Filter(_) => i64::MAX,
        },
        at: from,
        budget: PageBudget::new(scan.limit),
        page: Page { now, entries: Vec::new(), next: None },
    };
    if scan.limit > 0 {
        builder.fill().map_err(|error| unavailable(&error, path))?;
    }
    Ok(builder.page)
}

/// The orders that a list may use; it starts with the first. The states `in_progress` and `unknown` have indexes of their
/// own, which also serve the operator's lists.
fn walks(which: &Which) -> &'static [Walk] {
    match which {
        Which::Due(Due::Leases) => &[Walk::Leases],
        Which::Due(Due::Reconcile) => &[Walk::Reconcile],
        Which::Due(Due::Expired) => &[Walk::Expiry, Walk::Crowd],
        Which::Filter(Filter { state: Some(StateKind::InProgress), .. }) => &[Walk::Leases],
        Which::Filter(Filter { state: Some(StateKind::Unknown), .. }) => &[Walk::Reconcile],
        Which::Filter(_) => &[Walk::All],
    }
}

/// Rows of a walk that are due by ?1 and follow (?2, ?3); expiries are limited to one span. Each statement names its index,
/// so that a list never becomes a scan of the whole table.
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
             WHERE state IN ('completed', 'failed_retryable') AND due_at >> 30 = ?2 >> 30
               AND due_at <= ?1 AND (due_at, number) > (?2, ?3)
             ORDER BY due_at, number"
        }
        Walk::Crowd => {
            "SELECT number, due_at, id, version, state, created_at, record FROM operations
             INDEXED BY operations_expiry
             WHERE state IN ('completed', 'failed_retryable') AND due_at >> 30 = ?2 >> 30
               AND due_at <= ?1 AND number > ?3
             ORDER BY number"
        }
        Walk::All => {
            "SELECT number, due_at, id, version, state, created_at, record FROM operations
             WHERE ?1 IS NOT NULL AND ?2 IS NOT NULL AND number > ?3
             ORDER BY number"
        }
    }
}

/// The length of a span: 2³⁰ µs, about eighteen minutes. A power of two, because the index is on `due_at >> 30`.
const SPAN: i64 = 1 << 30;

const NEXT_SPAN: &str = "SELECT due_at >> 30 FROM operations INDEXED BY operations_expiry
     WHERE state IN ('completed', 'failed_retryable') AND due_at >> 30 > ?1 >> 30 AND due_at >> 30 <= ?2 >> 30
     ORDER BY due_at >> 30 LIMIT 1";

const EXPIRIES_OF_SPAN: &str = "SELECT count(*) FROM (
     SELECT 1 FROM operations INDEXED BY operations_expiry
     WHERE state IN ('completed', 'failed_retryable') AND due_at >> 30 = ?1 >> 30 LIMIT ?2)";

/// A page under construction.
struct PageBuilder<'a> {
    connection: &'a Connection,
    scan: &'a Scan,
    until: i64,
    at: Position,
    budget: PageBudget,
    page: Page,
}

impl PageBuilder<'_> {
    fn fill(&mut self) -> rusqlite::Result<()> {
        self.walk()?;
        while self.page.next.is_none() && matches!(self.at.walk, Walk::Expiry | Walk::Crowd) {
            let Some(span) = self.next_span()? else { break };
            let start = span << 30;
            let crowded = self.is_crowded(start)?;
            if crowded && start.saturating_add(SPAN) > self.until {
                break;
            }
            let walk = if crowded { Walk::Crowd } else { Walk::Expiry };
            self.at = Position { due_at: start, ..Position::start(walk) };
            self.walk()?;
        }
        Ok(())
    }

    /// Adds the rows after the current position, until the page is full or the walk ends.
    fn walk(&mut self) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(rows_of(self.at.walk))?;
        let mut rows = statement.query(params![self.until, self.at.due_at, self.at.number])?;
        while let Some(row) = rows.next()? {
            if self.budget.is_full() {
                self.page.next = Some(self.at.cursor());
                break;
            }
            self.budget.count_looks(1);
            self.at = Position { number: row.get(0)?, due_at: row.get(1)?, walk: self.at.walk };
            if let Some(entry) = entry(row, &self.scan.which, &mut self.budget)? {
                self.budget.count_row();
                self.page.entries.push(entry);
            }
        }
        Ok(())
    }

    /// The first later span in which a record expires and that has begun.
    fn next_span(&self) -> rusqlite::Result<Option<i64>> {
        let mut statement = self.connection.prepare_cached(NEXT_SPAN)?;
        statement.query_row([self.at.due_at, self.until], |row| row.get(0)).optional()
    }

    fn is_crowded(&self, start: i64) -> rusqlite::Result<bool> {
        let mut statement = self.connection.prepare_cached(EXPIRIES_OF_SPAN)?;
        let expiries: i64 = statement.query_row([start, CROWD + 1], |row| row.get(0))?;
        Ok(expiries > CROWD)
    }
}
