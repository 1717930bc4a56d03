//! Sweeps lapsed leases and expired records, in small batches.
//!
//! No answer depends on it: a claim that finds a lapsed or expired record decides by itself. Sweeping keeps the store small,
//! and logs unknown outcomes that no retry has found.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::apply::{Patience, Start, StoredRecord};
use super::observe::Observation;
use super::options::Sweeping;
use super::reconcile::ask_once_more;
use super::{Engine, EngineError, Inner, Stage, log};
use crate::RecordId;
use crate::event::{Answer, Event, Write};
use crate::store::{Cursor, Due, Scan, Which};
use crate::time::{instant, sleep};

/// How often unknown shadows are swept after the first time. This version leaves none, but an earlier one may share the store.
/// The pause is long, because each sweep reads every unknown outcome.
const SHADOWS_EVERY: Duration = Duration::from_secs(60 * 60);

/// The result of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// Records read.
    pub examined: usize,
    /// Leases that had lapsed and are settled or unknown now.
    pub lapsed: usize,
    /// Records past their window that are gone or emptied now.
    pub swept: usize,
    /// Records that could not be read or written; they stay.
    pub unreadable: usize,
}

impl SweepReport {
    const fn add(&mut self, other: Self) {
        self.examined += other.examined;
        self.lapsed += other.lapsed;
        self.swept += other.swept;
        self.unreadable += other.unreadable;
    }
}

impl Engine {
    /// Sweeps every lapsed lease now. This also happens in the background.
    pub async fn sweep_leases(&self) -> Result<SweepReport, EngineError> {
        self.inner.sweep_all(Due::Leases).await
    }

    /// Sweeps every record past its window now. This also happens in the background.
    pub async fn sweep_expired(&self) -> Result<SweepReport, EngineError> {
        self.inner.sweep_all(Due::Expired).await
    }
}

/// Starts the sweepers. They hold the engine weakly, and so end with it.
pub(super) fn start(inner: &Arc<Inner>) {
    let Sweeping { leases_every, expired_every, .. } = inner.sweeping;
    for (due, every) in
        [(Due::Leases, leases_every), (Due::Expired, expired_every), (Due::Reconcile, leases_every)]
    {
        tokio::spawn(keep_sweeping(Arc::downgrade(inner), due, every));
    }
}

async fn keep_sweeping(inner: Weak<Inner>, due: Due, every: Duration) {
    let (mut pause, mut after, mut next_pass) = (every, None, instant());
    loop {
        sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        if *inner.stop.borrow() != Stage::Open {
            return;
        }
        if instant() < next_pass {
            continue;
        }
        (pause, after) = match inner.sweep(due, after).await {
            // A pause before the next batch leaves the store to claims.
            Ok((_, Some(next))) => (inner.sweeping.pause, Some(next)),
            Ok((_, None)) => {
                // Among unknown outcomes, only shadows are swept.
                if due == Due::Reconcile {
                    next_pass = instant() + SHADOWS_EVERY;
                }
                (every, None)
            }
            Err(error) => {
                tracing::debug!(?due, %error, "sweeping failed, and is tried again later");
                (every, None)
            }
        };
    }
}

impl Inner {
    async fn sweep_all(self: &Arc<Self>, due: Due) -> Result<SweepReport, EngineError> {
        let (mut total, mut after) = (SweepReport::default(), None);
        loop {
            let (report, next) = self.sweep(due, after).await?;
            total.add(report);
            if next.is_none() {
                return Ok(total);
            }
            after = next;
        }
    }

    /// Sweeps one batch, and returns where the next one begins. It goes on after records that are not due yet.
    async fn sweep(
        self: &Arc<Self>,
        due: Due,
        after: Option<Cursor>,
    ) -> Result<(SweepReport, Option<Cursor>), EngineError> {
        let scan = Scan { which: Which::Due(due), after, limit: self.sweeping.batch };
        let sent = instant();
        let page = self.scan(scan).await?;
        let moment = self.store_clock.saw(page.now, sent);
        let suspended = moment.expiry_now < moment.now;
        self.outages.observe_expiry(suspended.then(|| moment.now.since(moment.expiry_now)));
        if due == Due::Expired && suspended {
            self.observe("", RecordId::IDENTITY, Observation::ExpirySuspended);
            return Ok((SweepReport::default(), None));
        }
        let event = Event::Sweep { expiry: self.sweeping.expiry };
        let mut report = SweepReport { examined: page.entries.len(), ..SweepReport::default() };
        let mut spent = Vec::new();
        for entry in page.entries {
            let record = match entry.record {
                Ok(record) => record,
                Err(why) => {
                    self.observe("", entry.id, Observation::StoreError);
                    if self.outages.is_first_report(entry.id) {
                        log::unreadable(log::About::new(entry.id, None), &why);
                    }
                    report.unreadable += 1;
                    continue;
                }
            };
            let step = (self.machine)(Some(&record), moment, &event);
            match step.write {
                // Past its time and still there: it is looked for once more before it goes.
                Write::Keep if record.has_last_find_to_come() => {
                    let stored = StoredRecord { record: Arc::new(record), version: entry.version };
                    ask_once_more(self, entry.id, stored).await;
                }
                Write::Keep => {}
                // Deleted together, each only if it still has this version.
                Write::Remove => spent.push((entry.id, entry.version)),
                Write::Put(_) => {
                    let stored = StoredRecord { record: Arc::new(record), version: entry.version };
                    let start = Start::Decided(stored, moment, step);
                    let patience = Patience::of_claim(self.store_clock.read(), self.limits.claim_patience);
                    match self.apply(entry.id, start, &event, patience).await.map(|done| done.answer) {
                        Ok(Answer::Lapsed) => report.lapsed += 1,
                        Ok(Answer::Swept) => report.swept += 1,
                        // Another write came first.
                        Ok(_) => {}
                        // An unreadable row must not stop the batch. If the store is away, the next call fails as well.
                        Err(failed) => {
                            tracing::debug!(id = %entry.id, error = %failed.error, "a record was not swept");
                            report.unreadable += 1;
                        }
                    }
                }
            }
        }
        if !spent.is_empty() {
            let first = spent[0].0;
            let count = self.store.forget(spent).await?;
            for _ in 0..count {
                self.observe("", first, Observation::Swept);
            }
            report.swept += count;
        }
        Ok((report, page.next))
    }
}
