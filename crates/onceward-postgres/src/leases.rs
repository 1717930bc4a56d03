//! Finds lapsed leases without an index that every completion would have to update.
//!
//! An ordinary claim completes within seconds, and exists only as its row. Young claims are found by their age, through the
//! index on `created_at`. A claim that becomes old and is still in progress gets an entry in the table `due`: listing leases
//! moves the watermark between young and old, and inserts the claims that it passes. All other records that can come due (a
//! renewed lease, a lease that was taken over, an unknown outcome, a late claim) get their entry from the statement that
//! writes them.
//!
//! An entry may be out of date, which costs only a read: a list compares it with the row, and corrects it.

use std::time::Duration;

use onceward::Timestamp;

use crate::error::StatementError;
use crate::values::{At, Id};
use crate::worker::Worker;

/// The claims that the watermark passes in one step, so that a list after a week does not take minutes.
const STEP_ROWS: i64 = 20_000;

/// The watermark, as of `now`.
pub(crate) struct Watermark {
    pub now: Timestamp,
    /// Claims from this time on are young.
    pub upto: Timestamp,
    pub caught_up: CaughtUp,
}

/// Whether only young claims are left.
#[derive(PartialEq, Eq)]
pub(crate) enum CaughtUp {
    Yes,
    No,
}

impl Worker {
    /// Reads the watermark, and the time to which the next step may move it.
    async fn read_watermark(&mut self) -> Result<(Watermark, Timestamp), StatementError> {
        let now = self.now();
        let context = self.context();
        let rows = self.send(&context.statements.lists.watermark, &[&now, &STEP_ROWS]).await?;
        let row = rows.first().ok_or_else(|| {
            StatementError::not_done("the table watermark has no row: run `onceward migrate`")
        })?;
        let unread = |error: tokio_postgres::Error| StatementError::not_done(error.to_string());
        let time = |column: usize| row.try_get::<_, At>(column).map(|at| at.0).map_err(unread);
        let step = row.try_get::<_, Option<At>>(3).map_err(unread)?;
        let (caught_up, to) = match step {
            None => (CaughtUp::Yes, time(2)?),
            // The last claim of the step is passed too.
            Some(last) => (CaughtUp::No, last.0.after(Duration::from_micros(1))),
        };
        Ok((Watermark { now: time(0)?, upto: time(1)?, caught_up }, to))
    }

    /// Reads the watermark.
    pub(crate) async fn young_from(&mut self) -> Result<Watermark, StatementError> {
        Ok(self.read_watermark().await?.0)
    }

    /// Moves the watermark one step, and inserts the claims that it passes into `due`.
    pub(crate) async fn promote(&mut self) -> Result<Watermark, StatementError> {
        let (mut watermark, to) = self.read_watermark().await?;
        if to > watermark.upto {
            let context = self.context();
            let lists = &context.statements.lists;
            let (from, upto) = (At(watermark.upto), At(to));
            self.send(&lists.promote, &[&from, &upto]).await?;
            // Another gateway may have moved it meanwhile, after it inserted the same claims.
            self.send(&lists.move_watermark, &[&from, &upto]).await?;
            watermark.upto = to;
        }
        Ok(watermark)
    }

    /// Inserts the current due times of these records, where `due` has another time or none.
    pub(crate) async fn correct_due(&mut self, due: &[(Id, Option<At>)]) -> Result<(), StatementError> {
        if due.is_empty() {
            return Ok(());
        }
        let (ids, times): (Vec<_>, Vec<_>) = due.iter().copied().unzip();
        let context = self.context();
        self.send(&context.statements.lists.correct_due, &[&ids, &times]).await?;
        Ok(())
    }

    /// Deletes entries of these records whose state has changed.
    pub(crate) async fn remove_due(
        &mut self,
        due: &[(Id, At)],
        kind: &str,
        state: &str,
    ) -> Result<(), StatementError> {
        if due.is_empty() {
            return Ok(());
        }
        let (ids, times): (Vec<_>, Vec<_>) = due.iter().copied().unzip();
        let context = self.context();
        self.send(&context.statements.lists.remove_due, &[&ids, &times, &kind, &state]).await?;
        Ok(())
    }
}
