//! How lapsed leases are found without an index that every completion would have to change.
//!
//! An ordinary claim is completed within seconds, and is written down nowhere but in its row. Young claims are found by
//! their age, through the index on `created_at`. When a claim grows old and is still in progress it is noted in the table
//! `due`: whoever lists leases moves the mark between young and old, and notes what the mark passes over. Whatever else
//! can come due (a renewed lease, one that was taken over, an unknown outcome, a claim that arrived late) is noted by the
//! statement that writes it.
//!
//! What is noted may be wrong, and never costs more than a look: whoever lists compares with the row, and puts it right.

use std::time::Duration;

use onceward::Timestamp;

use crate::error::StatementError;
use crate::values::{At, Id};
use crate::worker::Worker;

/// So many claims the mark passes over in one step, so that a list which nobody made for a week does not take minutes.
const STEP_ROWS: i64 = 20_000;

/// Where the mark stands.
pub(crate) struct Watermark {
    pub now: Timestamp,
    /// Claims from here on are young.
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
    /// Where the mark stands now.
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
            // The last one that is looked at is passed over, too.
            Some(last) => (CaughtUp::No, last.0.after(Duration::from_micros(1))),
        };
        Ok((Watermark { now: time(0)?, upto: time(1)?, caught_up }, to))
    }

    /// Where claims begin to be young.
    pub(crate) async fn young_from(&mut self) -> Result<Watermark, StatementError> {
        Ok(self.read_watermark().await?.0)
    }

    /// Moves the mark a step, and notes what it passes over.
    pub(crate) async fn promote(&mut self) -> Result<Watermark, StatementError> {
        let (mut watermark, to) = self.read_watermark().await?;
        if to > watermark.upto {
            let context = self.context();
            let lists = &context.statements.lists;
            let (from, upto) = (At(watermark.upto), At(to));
            self.send(&lists.promote, &[&from, &upto]).await?;
            // Somebody else may have moved it meanwhile, having noted the same.
            self.send(&lists.move_watermark, &[&from, &upto]).await?;
            watermark.upto = to;
        }
        Ok(watermark)
    }

    /// Notes what is so for these, where it is noted otherwise or not at all.
    pub(crate) async fn correct_due(&mut self, due: &[(Id, Option<At>)]) -> Result<(), StatementError> {
        if due.is_empty() {
            return Ok(());
        }
        let (ids, times): (Vec<_>, Vec<_>) = due.iter().copied().unzip();
        let context = self.context();
        self.send(&context.statements.lists.correct_due, &[&ids, &times]).await?;
        Ok(())
    }

    /// Forgets what is noted for these and no longer so.
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
