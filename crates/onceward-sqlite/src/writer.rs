//! The one thread that writes: takes whatever waits, decides each against what stands, appends it all to the journal,
//! syncs once, and answers all.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use onceward::store::StoreError;
use onceward::store::driver::Weight;
use onceward::{Clock, Timestamp};
use rusqlite::Connection;

use crate::batch::Batch;
use crate::error;
use crate::fold::Ended;
use crate::job::Job;
use crate::journal::{Failed, Journal};
use crate::options::FatalHook;
use crate::queue::{Queue, Taken};
use crate::recent::Recent;
use crate::statistics::Counters;

/// So many times as much as is folded at once may wait to be folded: beyond that, writers wait.
const FULL: u64 = 4;

pub(crate) struct Writer {
    pub path: PathBuf,
    pub queue: Arc<Queue<Job>>,
    pub limit: Weight,
    pub journal: Journal,
    pub recent: Arc<Recent>,
    /// From how many bytes on the journal is folded into the database.
    pub journal_bytes: u64,
    /// When it is folded at the latest.
    pub fold_after: Duration,
    /// The highest version that was ever given.
    pub version: u64,
    pub clock: Arc<dyn Clock>,
    pub on_fatal: FatalHook,
    pub counters: Arc<Counters>,
}

/// The store has stopped.
struct Stopped;

impl Writer {
    /// Works until the queue is closed and empty, and lets the other threads end. If everything is in the database then,
    /// the journal is removed. The connection is to look for what is not recent.
    pub(crate) fn run(mut self, connection: &Connection, end_the_others: impl FnOnce() -> Ended) {
        let mut batch = match Batch::prepare(connection, self.path.clone(), self.version) {
            Ok(batch) => batch,
            Err(error) => return self.abandon(&error::explain(&error, &self.path)),
        };
        let (mut jobs, mut now) = (VecDeque::new(), Timestamp::from_micros(0));
        loop {
            let patience = if self.recent.can_be_sealed() { self.fold_after } else { Duration::MAX };
            let taken = self.queue.take_within(patience, self.limit, &mut jobs);
            while !jobs.is_empty() {
                match self.apply(&mut jobs, &mut batch) {
                    Ok(then) => now = then,
                    Err(Stopped) => return,
                }
            }
            match taken {
                Taken::Work | Taken::Nudged => self.fold_if_due(now),
                Taken::Idle => self.fold(),
                Taken::Over => break,
            }
        }
        if self.queue.is_abandoned() {
            // A sync has failed elsewhere: the journal is the only copy that can be trusted, and stays.
            return;
        }
        if let Err(error) = self.recent.wait_until_it_can_be_sealed() {
            tracing::warn!(cause = %error, "the journal could not be written into the database: the next start does it");
        }
        self.fold();
        self.recent.close();
        if end_the_others() == Ended::Complete {
            // One that stays says nothing new to the next start.
            if let Err(error) = self.journal.remove() {
                tracing::warn!(cause = %error, path = ?self.path, "the journal could not be removed: the next start finds nothing new in it");
            }
        }
    }

    fn abandon(&self, reason: &str) {
        let error = StoreError::Unavailable { reason: reason.to_owned() };
        self.queue.abandon(reason).into_iter().for_each(|job| job.fail(error.clone()));
    }

    /// Decides jobs in order until the batch is full, makes them durable and answers them.
    fn apply(&mut self, jobs: &mut VecDeque<Job>, batch: &mut Batch<'_>) -> Result<Timestamp, Stopped> {
        if let Err(error) = self.make_room() {
            jobs.drain(..).for_each(|job| job.fail(error.clone()));
            return Ok(self.clock.now());
        }
        if let Err(error) = batch.decide(jobs, &self.recent, self.limit.bytes) {
            // Every later look would show the past.
            let reason = error::explain(&error, &self.path);
            tracing::error!(
                cause = reason,
                "the embedded store has stopped: it refuses everything until it is opened again"
            );
            return Err(self.stop(jobs, batch, &reason, StoreError::Unavailable { reason: reason.clone() }));
        }
        if !batch.frame.is_empty() {
            match self.journal.append(&mut batch.frame) {
                Ok(()) => {}
                Err(Failed::NotWritten(error)) => {
                    let reason = error::not_journaled(&error, &self.path);
                    batch.fail(&StoreError::Unavailable { reason });
                    return Ok(self.clock.now());
                }
                Err(Failed::NotConfirmed(error)) => {
                    let message = error::fatal(&error, &self.path);
                    (self.on_fatal)(&message);
                    tracing::error!(
                        cause = message,
                        "the embedded store has stopped: it refuses everything until it is opened again"
                    );
                    let unknown = StoreError::Ambiguous { reason: message.clone() };
                    return Err(self.stop(jobs, batch, &message, unknown));
                }
            }
        }
        if batch.len() > 0 {
            self.counters.count(batch.len());
        }
        let now = self.clock.now();
        batch.answer(&self.recent, now);
        Ok(now)
    }

    /// Answers everybody, and takes nothing more.
    fn stop(
        &self,
        jobs: &mut VecDeque<Job>,
        batch: &mut Batch<'_>,
        reason: &str,
        error: StoreError,
    ) -> Stopped {
        batch.fail(&error);
        jobs.drain(..).for_each(|job| job.fail(StoreError::Unavailable { reason: reason.to_owned() }));
        self.abandon(reason);
        Stopped
    }

    /// Waits while too much is not in the database yet, unless that may take long.
    fn make_room(&mut self) -> Result<(), StoreError> {
        let fill = self.recent.fill();
        let (bytes, limit) = (fill.bytes as u64, FULL * self.journal_bytes);
        if bytes < limit && self.journal.bytes() < 2 * limit {
            return Ok(());
        }
        self.recent.wait_until_it_can_be_sealed()?;
        self.fold();
        Ok(())
    }

    fn fold_if_due(&mut self, now: Timestamp) {
        let fill = self.recent.fill();
        let full = fill.bytes as u64 >= self.journal_bytes || self.journal.bytes() >= 2 * self.journal_bytes;
        if full || fill.wanted || fill.since.is_some_and(|since| now >= since.after(self.fold_after)) {
            self.fold();
        }
    }

    /// Hands what is recent to the thread that folds, if there is anything and that thread is free.
    fn fold(&mut self) {
        if self.recent.seal() {
            self.journal.turn();
        }
    }
}
