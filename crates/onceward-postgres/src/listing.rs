//! Scans, one bounded page at a time.
//!
//! A walk reads the columns of rows in the order of an index and picks ids. The records of the picked ids are read at the
//! end, and filtered once more by their content.

use std::collections::HashMap;

use onceward::codec;
use onceward::store::driver::{AnswerSender, PageBudget};
use onceward::store::{Due, Entry, Filter, Page, Scan, StoreError, Version, Which};
use onceward::{
    RecordId, Timestamp,
    record::{Letter, StateKind},
};
use tokio_postgres::Row;

use crate::cursor::{Position, Walk};
use crate::error::StatementError;
use crate::leases::CaughtUp;
use crate::values::{At, Id, readable, version};
use crate::worker::Worker;

/// The rows of one statement of a walk in which most rows may not match.
const LOOKS_AT_ONCE: usize = 2_000;

/// A scan in its task's queue.
pub(crate) struct Listing {
    pub scan: Scan,
    pub answer: AnswerSender<Page>,
}

/// The columns of a row that a walk has read.
pub(crate) struct ListedRow {
    pub id: RecordId,
    pub at: Timestamp,
    /// `None` if there is no record, or if this version does not know its state.
    pub state: Option<StateKind>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub bytes: usize,
    pub matches: bool,
    /// Its entry in `due` was too early. It is corrected, and the row is listed again at its true time.
    listed_again: bool,
}

/// A page under construction.
pub(crate) struct PageBuilder {
    pub budget: PageBudget,
    pub at: Position,
    picked: Vec<RecordId>,
    pub more: bool,
}

impl PageBuilder {
    /// Counts a row, and picks its id if it matches. Returns `false` if the page is full: the next page begins with this
    /// row.
    pub(crate) fn pass(&mut self, head: &ListedRow, to: Position) -> bool {
        if self.budget.is_full() {
            self.more = true;
            return false;
        }
        self.budget.count_looks(1);
        self.at = to;
        if head.matches {
            self.picked.push(head.id);
            self.budget.count_row();
            self.budget.count_bytes(head.bytes);
        }
        true
    }
}

/// The walks of a list, one after the other.
fn walks(which: &Which) -> &'static [Walk] {
    match which {
        Which::Due(Due::Leases) => &[Walk::Promotion, Walk::Leases, Walk::YoungLeases],
        Which::Due(Due::Reconcile) => &[Walk::Reconcile],
        Which::Due(Due::Expired) => &[Walk::Expiry, Walk::Crowd],
        Which::Filter(Filter { state: Some(StateKind::InProgress), .. }) => &[Walk::Leases, Walk::Young],
        Which::Filter(Filter { state: Some(StateKind::Unknown), .. }) => &[Walk::Reconcile],
        Which::Filter(_) => &[Walk::All],
    }
}

impl Worker {
    pub(crate) async fn list(&mut self, scan: &Scan) -> Result<Page, StoreError> {
        let walks = walks(&scan.which);
        let from = match (&scan.after, walks) {
            (Some(cursor), walks) => Position::read(cursor, walks)?,
            (None, [walk, ..]) => Position::start(*walk),
            (None, []) => Position::start(Walk::All),
        };
        self.page(scan, walks, from).await.map_err(|failed| failed.of_read())
    }

    async fn page(&mut self, scan: &Scan, walks: &[Walk], from: Position) -> Result<Page, StatementError> {
        let watermark = if from.walk == Walk::Promotion && scan.limit > 0 {
            self.promote().await?
        } else {
            self.young_from().await?
        };
        let now = watermark.now;
        let mut page = Page { now, entries: Vec::new(), next: None };
        if scan.limit == 0 {
            return Ok(page);
        }
        if from.walk == Walk::Promotion && watermark.caught_up == CaughtUp::No {
            page.next = Some(from.cursor());
            return Ok(page);
        }
        let until = match scan.which {
            Which::Due(_) => now,
            Which::Filter(_) => Timestamp::NEVER,
        };
        let budget = PageBudget::new(scan.limit);
        let mut builder = PageBuilder { budget, at: from, picked: Vec::new(), more: false };
        if let Which::Due(Due::Expired) = scan.which {
            self.walk_expiry(&mut builder, now).await?;
        } else {
            let mut left = walks.iter().copied().skip_while(|walk| *walk != from.walk).peekable();
            while let Some(walk) = left.next() {
                if walk != Walk::Promotion {
                    self.walk(&mut builder, &scan.which, until, watermark.upto).await?;
                }
                if builder.more {
                    break;
                }
                if let Some(next) = left.peek() {
                    builder.at = Position::start(*next);
                }
            }
        }
        page.entries = self.entries(&builder.picked, &scan.which, now).await?;
        page.next = builder.more.then(|| builder.at.cursor());
        Ok(page)
    }

    /// Reads rows of the current walk until the page is full or the walk ends.
    async fn walk(
        &mut self,
        builder: &mut PageBuilder,
        which: &Which,
        until: Timestamp,
        young: Timestamp,
    ) -> Result<(), StatementError> {
        loop {
            let walk = builder.at.walk;
            let room = builder.budget.rows_left() + 1;
            let at_once = match walk {
                Walk::All | Walk::Young => LOOKS_AT_ONCE,
                Walk::Promotion
                | Walk::Leases
                | Walk::YoungLeases
                | Walk::Reconcile
                | Walk::Expiry
                | Walk::Crowd => room,
            };
            let heads = self.heads(builder.at, which, until, young, at_once).await?;
            for head in &heads {
                let to = Position { at: head.at, id: head.id, ..builder.at };
                if !builder.pass(head, to) {
                    return Ok(());
                }
            }
            if heads.len() < at_once && !heads.iter().any(|head| head.listed_again) {
                return Ok(());
            }
        }
    }

    async fn heads(
        &mut self,
        after: Position,
        which: &Which,
        until: Timestamp,
        young: Timestamp,
        most: usize,
    ) -> Result<Vec<ListedRow>, StatementError> {
        let context = self.context();
        let lists = &context.statements.lists;
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let (at, id, until, young) = (At(after.at), Id(after.id), At(until), At(young));
        match after.walk {
            Walk::Leases => self.due_rows("lease", StateKind::InProgress, after, until, limit).await,
            Walk::Reconcile => {
                let mut rows = self.due_rows("reconcile", StateKind::Unknown, after, until, limit).await?;
                // A dead letter is never due. Its entry saves reading the records of the outcomes that are.
                if let Which::Filter(Filter { letter: Some(Letter::Dead), .. }) = which {
                    rows.iter_mut().for_each(|row| row.matches &= row.at == Timestamp::NEVER);
                }
                Ok(rows)
            }
            Walk::YoungLeases => {
                let rows = self.send(&lists.young_by_lease, &[&young, &until, &at, &id, &limit]).await?;
                read(&rows, 0, |row| Ok((row.try_get::<_, At>(3)?.0, true)))
            }
            Walk::Young => {
                let rows = self.send(&lists.young, &[&young, &at, &id, &limit]).await?;
                read(&rows, 0, |row| {
                    Ok((
                        row.try_get::<_, At>(2)?.0,
                        row.try_get::<_, &str>(1)? == StateKind::InProgress.name(),
                    ))
                })
            }
            Walk::All | Walk::Expiry | Walk::Crowd | Walk::Promotion => {
                let before = match which {
                    Which::Filter(Filter { created_before: Some(before), .. }) => At(*before),
                    Which::Filter(_) | Which::Due(_) => At(Timestamp::NEVER),
                };
                let rows = self.send(&lists.all, &[&at, &id, &before, &limit]).await?;
                read(&rows, 0, |row| Ok((row.try_get::<_, At>(2)?.0, agrees(which, row)?)))
            }
        }
    }

    /// Reads entries of `due` with their rows, and corrects entries that are out of date.
    async fn due_rows(
        &mut self,
        kind: &str,
        state: StateKind,
        after: Position,
        until: At,
        limit: i64,
    ) -> Result<Vec<ListedRow>, StatementError> {
        let context = self.context();
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&kind, &until, &At(after.at), &Id(after.id), &limit];
        let rows = self.send(&context.statements.lists.due, &parameters).await?;
        let unread = |error: tokio_postgres::Error| StatementError::not_done(error.to_string());
        let (mut heads, mut wrong, mut gone) = (Vec::with_capacity(rows.len()), Vec::new(), Vec::new());
        let mut put_right = None;
        for row in &rows {
            let (id, at): (Id, At) = (row.try_get(0).map_err(unread)?, row.try_get(1).map_err(unread)?);
            let found = row.try_get::<_, Option<&str>>(3).map_err(unread)?.and_then(StateKind::from_name);
            let truth = match found {
                Some(StateKind::InProgress) => row.try_get::<_, Option<At>>(5).map_err(unread)?,
                Some(StateKind::Unknown) => {
                    Some(row.try_get::<_, Option<At>>(6).map_err(unread)?.unwrap_or(At(Timestamp::NEVER)))
                }
                Some(_) | None => None,
            };
            // A corrected entry sorts before the remaining ones, so they are read again.
            if put_right.is_some_and(|first| at >= first) {
                break;
            }
            let listed_again =
                found == Some(state) && truth.is_some_and(|truth| truth > at && truth <= until);
            if listed_again {
                put_right = put_right.into_iter().chain(truth).min();
            }
            match truth {
                Some(truth) if found == Some(state) && truth == at => {}
                Some(_) if found == Some(state) => wrong.push((id, Some(at))),
                Some(_) | None => gone.push((id, at)),
            }
            heads.push(ListedRow {
                id: id.0,
                at: at.0,
                state: found,
                created_at: at.0,
                expires_at: None,
                bytes: bytes(row, 8).map_err(unread)?,
                // An entry that was too early is corrected below, and is listed again at its true time.
                listed_again,
                matches: found == Some(state) && truth.is_some_and(|truth| truth <= until && truth <= at),
            });
        }
        self.correct_due(&wrong).await?;
        self.remove_due(&gone, kind, state.name()).await?;
        Ok(heads)
    }

    /// The records of these ids, in this order, without those that have changed and no longer match.
    async fn entries(
        &mut self,
        ids: &[RecordId],
        which: &Which,
        now: Timestamp,
    ) -> Result<Vec<Entry>, StatementError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: Vec<_> = ids.iter().copied().map(Id).collect();
        let context = self.context();
        let rows = self.send(&context.statements.lists.records, &[&wanted]).await?;
        let unread = |error: tokio_postgres::Error| StatementError::not_done(error.to_string());
        let mut found: HashMap<RecordId, (Version, Vec<u8>)> = HashMap::with_capacity(rows.len());
        for row in &rows {
            let id: Id = row.try_get(0).map_err(unread)?;
            let stamp = version(row.try_get(1).map_err(unread)?);
            found.insert(id.0, (stamp, row.try_get(2).map_err(unread)?));
        }
        let entry = |id: &RecordId| {
            let (version, bytes) = found.remove(id)?;
            let record = codec::decode(*id, &bytes);
            let matches = record.as_ref().map_or(true, |record| match which {
                Which::Due(due) => record.due().0 == *due && record.due().1 <= now,
                Which::Filter(filter) => filter.accepts(record),
            });
            matches.then_some(Entry { id: *id, version, record })
        };
        Ok(ids.iter().filter_map(entry).collect())
    }
}

/// Whether the columns of a row match the filter. The record is filtered at the end.
fn agrees(which: &Which, row: &Row) -> Result<bool, tokio_postgres::Error> {
    let Which::Filter(filter) = which else { return Ok(false) };
    let state = row.try_get::<_, &str>(1)?;
    if filter.state.is_some_and(|asked| state != asked.name()) {
        return Ok(false);
    }
    // Only a dead letter is unknown and never due.
    let is_dead = state == StateKind::Unknown.name() && row.try_get::<_, Option<At>>(4)?.is_none();
    if filter.letter.is_some_and(|asked| is_dead != (asked == Letter::Dead)) {
        return Ok(false);
    }
    for (asked, column) in [(&filter.scope, 7), (&filter.route, 8)] {
        if let Some(asked) = asked
            && row.try_get::<_, &str>(column)? != readable(asked)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

fn bytes(row: &Row, column: usize) -> Result<usize, tokio_postgres::Error> {
    Ok(usize::try_from(row.try_get::<_, Option<i32>>(column)?.unwrap_or(0)).unwrap_or(0))
}

/// Reads rows whose columns from `first` on are (id, state, created_at, lease_until, reconcile_at, expires_at, bytes, …).
pub(crate) fn read(
    rows: &[Row],
    first: usize,
    judge: impl Fn(&Row) -> Result<(Timestamp, bool), tokio_postgres::Error>,
) -> Result<Vec<ListedRow>, StatementError> {
    let head = |row: &Row| -> Result<ListedRow, tokio_postgres::Error> {
        let (at, matches) = judge(row)?;
        Ok(ListedRow {
            id: row.try_get::<_, Id>(first)?.0,
            at,
            state: StateKind::from_name(row.try_get(first + 1)?),
            created_at: row.try_get::<_, At>(first + 2)?.0,
            expires_at: row.try_get::<_, Option<At>>(first + 5)?.map(|at| at.0),
            bytes: bytes(row, first + 6)?,
            matches,
            listed_again: false,
        })
    };
    rows.iter()
        .map(head)
        .collect::<Result<_, _>>()
        .map_err(|error| StatementError::not_done(error.to_string()))
}
