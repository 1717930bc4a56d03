//! Finds expired records by the time of their claim, which never changes.
//!
//! Claims are read one minute at a time. Those of one minute are listed in the order of their expiry, unless the minute is
//! crowded: sorting it for every page would be too slow, so it is listed in the order of the claims, which a sweeper accepts
//! as well.

use std::time::Duration;

use onceward::{RecordId, Timestamp, record::StateKind};

use crate::cursor::{Position, Walk};
use crate::error::StatementError;
use crate::listing::{ListedRow, PageBuilder, read};
use crate::swept_minutes::{minute, start_of};
use crate::values::{At, Id};
use crate::worker::Worker;

/// A minute with more claims than this is crowded.
const CROWD: usize = 2_000;
/// A record that is still in progress this long after its claim should be in `due`. If its commit was so late that the
/// watermark had passed, it is inserted here.
const OVERDUE: Duration = Duration::from_secs(5 * 60);

/// The position just before every claim of this time or later.
fn before(at: Timestamp) -> (At, Id) {
    match at.as_micros().checked_sub(1) {
        Some(earlier) => (At(Timestamp::from_micros(earlier)), Id(RecordId::from_bytes([0xff; 16]))),
        None => (At(at), Id(RecordId::from_bytes([0; 16]))),
    }
}

impl ListedRow {
    /// The expiry of a settled record.
    fn expiry(&self) -> Option<Timestamp> {
        let settled = matches!(self.state, Some(StateKind::Completed | StateKind::FailedRetryable));
        self.expires_at.filter(|_| settled)
    }
}

impl Worker {
    pub(crate) async fn walk_expiry(
        &mut self,
        builder: &mut PageBuilder,
        now: Timestamp,
    ) -> Result<(), StatementError> {
        let context = self.context();
        let swept = &context.swept;
        loop {
            let mut position = builder.at;
            // Only at the beginning of a minute: a minute that is partly listed is listed to its end.
            if position.walk == Walk::Expiry && position.at == Timestamp::from_micros(0) {
                position.from = start_of(swept.first_unswept(minute(position.from), now));
            }
            let (at, id) = match position.walk {
                Walk::Crowd => (At(position.at), Id(position.id)),
                Walk::Expiry
                | Walk::Promotion
                | Walk::Leases
                | Walk::YoungLeases
                | Walk::Reconcile
                | Walk::Young
                | Walk::All => before(position.from),
            };
            let heads = self.claims_after(at, id, now).await?;
            self.note_overdue(&heads, now).await?;
            let Some(first) = heads.first().map(|head| minute(head.created_at)) else { return Ok(()) };
            let cut = heads.len() > CROWD;
            let same = heads.iter().take_while(|head| minute(head.created_at) == first).count();
            let crowd = position.walk == Walk::Crowd && first == minute(position.at);
            if crowd || (cut && same == heads.len()) {
                if !crowd {
                    swept.begin_crowd(first);
                }
                for head in heads.iter().take(same) {
                    let to = Position {
                        walk: Walk::Crowd,
                        from: start_of(first),
                        at: head.created_at,
                        id: head.id,
                    };
                    if !builder.pass(head, to) {
                        return Ok(());
                    }
                    if let Some(expiry) = head.expiry() {
                        swept.note_expiry_in_crowd(first, expiry);
                    }
                }
                if cut && same == heads.len() {
                    continue;
                }
                swept.end_crowd(first, now);
            } else {
                let mut rows: Vec<_> = heads.into_iter().take(same).collect();
                rows.sort_by_key(|head| (head.expires_at, head.id));
                let resumed = (position.walk == Walk::Expiry && minute(position.from) == first)
                    .then_some((position.at, position.id));
                for head in &rows {
                    let at = head.expires_at.unwrap_or(Timestamp::from_micros(0));
                    let listed_already = resumed.is_some_and(|after| (at, head.id) <= after);
                    // Rows that do not match are skipped, and do not move the position.
                    if !head.matches || listed_already {
                        continue;
                    }
                    let to = Position { walk: Walk::Expiry, from: start_of(first), at, id: head.id };
                    if !builder.pass(head, to) {
                        return Ok(());
                    }
                }
                builder.budget.count_looks(rows.len());
                let first_expiry =
                    rows.iter().filter_map(ListedRow::expiry).min().unwrap_or(Timestamp::NEVER);
                swept.mark_swept(minute(position.from)..first.saturating_add(1), first_expiry, now);
            }
            // Continues at the beginning of the next minute.
            builder.at =
                Position { from: start_of(first.saturating_add(1)), ..Position::start(Walk::Expiry) };
            if builder.budget.is_full() {
                builder.more = true;
                return Ok(());
            }
        }
    }

    async fn claims_after(
        &mut self,
        at: At,
        id: Id,
        now: Timestamp,
    ) -> Result<Vec<ListedRow>, StatementError> {
        let context = self.context();
        let most = i64::try_from(CROWD + 1).unwrap_or(i64::MAX);
        let rows =
            self.send(&context.statements.lists.all, &[&at, &id, &At(Timestamp::NEVER), &most]).await?;
        read(&rows, 0, |row| {
            let (state, expires_at): (&str, Option<At>) = (row.try_get(1)?, row.try_get(5)?);
            let settled = matches!(
                StateKind::from_name(state),
                Some(StateKind::Completed | StateKind::FailedRetryable)
            );
            Ok((row.try_get::<_, At>(2)?.0, settled && expires_at.is_some_and(|at| at.0 <= now)))
        })
    }

    async fn note_overdue(&mut self, heads: &[ListedRow], now: Timestamp) -> Result<(), StatementError> {
        let overdue: Vec<_> = heads
            .iter()
            .filter(|head| matches!(head.state, Some(StateKind::InProgress | StateKind::Unknown)))
            .filter(|head| now.since(head.created_at) > OVERDUE)
            .map(|head| (Id(head.id), None))
            .collect();
        self.correct_due(&overdue).await
    }
}
