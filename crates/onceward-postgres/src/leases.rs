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

use crate::error::Failed;
use crate::lane::Lane;
use crate::values::{At, Id};

/// So many claims the mark passes over in one step, so that a list which nobody made for a week does not take minutes.
const STEP_ROWS: i64 = 20_000;

/// Where the mark stands.
pub(crate) struct Mark {
    pub now: Timestamp,
    /// Claims from here on are young.
    pub upto: Timestamp,
    pub reached: Reached,
}

/// Whether only young claims are left.
#[derive(PartialEq, Eq)]
pub(crate) enum Reached {
    Yes,
    No,
}

impl Lane {
    /// Where the mark stands now.
    async fn mark(&mut self) -> Result<(Mark, Timestamp), Failed> {
        let now = self.now();
        let shared = self.shared();
        let rows = self.send(&shared.statements.lists.mark, &[&now, &STEP_ROWS]).await?;
        let row = rows
            .first()
            .ok_or_else(|| Failed::not_done("the table watermark has no row: run `onceward migrate`"))?;
        let unread = |error: tokio_postgres::Error| Failed::not_done(error.to_string());
        let time = |column: usize| row.try_get::<_, At>(column).map(|at| at.0).map_err(unread);
        let step = row.try_get::<_, Option<At>>(3).map_err(unread)?;
        let (reached, to) = match step {
            None => (Reached::Yes, time(2)?),
            // The last one that is looked at is passed over, too.
            Some(last) => (Reached::No, last.0.after(Duration::from_micros(1))),
        };
        Ok((Mark { now: time(0)?, upto: time(1)?, reached }, to))
    }

    /// Where claims begin to be young.
    pub(crate) async fn young_from(&mut self) -> Result<Mark, Failed> {
        Ok(self.mark().await?.0)
    }

    /// Moves the mark a step, and notes what it passes over.
    pub(crate) async fn promote(&mut self) -> Result<Mark, Failed> {
        let (mut mark, to) = self.mark().await?;
        if to > mark.upto {
            let shared = self.shared();
            let lists = &shared.statements.lists;
            let (from, upto) = (At(mark.upto), At(to));
            self.send(&lists.promote, &[&from, &upto]).await?;
            // Somebody else may have moved it meanwhile, having noted the same.
            self.send(&lists.move_mark, &[&from, &upto]).await?;
            mark.upto = to;
        }
        Ok(mark)
    }

    /// Notes what is so for these, where it is noted otherwise or not at all.
    pub(crate) async fn mend(&mut self, noted: &[(Id, Option<At>)]) -> Result<(), Failed> {
        if noted.is_empty() {
            return Ok(());
        }
        let (ids, times): (Vec<_>, Vec<_>) = noted.iter().copied().unzip();
        let shared = self.shared();
        self.send(&shared.statements.lists.mend, &[&ids, &times]).await?;
        Ok(())
    }

    /// Forgets what is noted for these and no longer so.
    pub(crate) async fn clear(&mut self, noted: &[(Id, At)], kind: &str, state: &str) -> Result<(), Failed> {
        if noted.is_empty() {
            return Ok(());
        }
        let (ids, times): (Vec<_>, Vec<_>) = noted.iter().copied().unzip();
        let shared = self.shared();
        self.send(&shared.statements.lists.clear, &[&ids, &times, &kind, &state]).await?;
        Ok(())
    }
}
