//! The writer thread: takes all queued jobs, decides them, appends them to the journal, syncs once and answers them.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use onceward::store::StoreError;
use onceward::store::driver::Weight;
use onceward::{Timestamp, store::Clock};
use rusqlite::Connection;

use crate::batch::Batch;
use crate::error;
use crate::flush::FlushEnd;
use crate::job::Job;
use crate::journal::{AppendError, Journal};
use crate::memtable::Memtables;
use crate::options::FatalHook;
use crate::queue::{Queue, Wakeup};
use crate::statistics::Counters;

/// Writers wait when the unflushed changes reach this multiple of `journal_bytes`.
const FULL_FACTOR: u64 = 4;

pub(crate) struct Writer {
    pub path: PathBuf,
    pub queue: Arc<Queue<Job>>,
    pub limit: Weight,
    pub journal: Journal,
    pub memtables: Arc<Memtables>,
    /// The size from which the memtable is flushed.
    pub journal_bytes: u64,
    /// The age at which the memtable is flushed.
    pub flush_after: Duration,
    /// The highest version that was ever assigned.
    pub version: u64,
    pub clock: Arc<dyn Clock>,
    pub on_fatal: FatalHook,
    pub counters: Arc<Counters>,
}

/// The store has stopped.
struct Stopped;

impl Writer {
    /// Serves jobs until the queue is closed and empty, then ends the other threads. Removes the journal if everything is in
    /// the database by then. The connection reads records that are in no memtable.
    pub(crate) fn run(mut self, connection: &Connection, end_helpers: impl FnOnce() -> FlushEnd) {
        let mut batch = match Batch::prepare(connection, self.path.clone(), self.version) {
            Ok(batch) => batch,
            Err(error) => return self.abandon(&error::explain(&error, &self.path)),
        };
        let (mut jobs, mut now) = (VecDeque::new(), Timestamp::from_micros(0));
        loop {
            let timeout = if self.memtables.can_freeze() { self.flush_after } else { Duration::MAX };
            let wakeup = self.queue.take_within(timeout, self.limit, &mut jobs);
            while !jobs.is_empty() {
                match self.apply(&mut jobs, &mut batch) {
                    Ok(then) => now = then,
                    Err(Stopped) => return,
                }
            }
            match wakeup {
                Wakeup::Work | Wakeup::Nudged => self.flush_if_due(now),
                Wakeup::TimedOut => self.flush(),
                Wakeup::Closed => break,
            }
        }
        if self.queue.is_abandoned() {
            // A sync failed on another thread. Only the journal can be trusted, so it is kept.
            return;
        }
        if let Err(error) = self.memtables.wait_until_it_can_freeze() {
            tracing::warn!(cause = %error, "the journal could not be written into the database: the next start does it");
        }
        self.flush();
        self.memtables.close();
        if end_helpers() == FlushEnd::Complete {
            // A journal that stays behind has nothing new for the next start.
            if let Err(error) = self.journal.remove() {
                tracing::warn!(cause = %error, path = ?self.path, "the journal could not be removed: the next start finds nothing new in it");
            }
        }
    }

    fn abandon(&self, reason: &str) {
        let error = StoreError::Unavailable { reason: reason.to_owned() };
        self.queue.abandon(reason).into_iter().for_each(|job| job.fail(error.clone()));
    }

    /// Decides one batch, makes it durable and answers it.
    fn apply(&mut self, jobs: &mut VecDeque<Job>, batch: &mut Batch<'_>) -> Result<Timestamp, Stopped> {
        if let Err(error) = self.make_room() {
            jobs.drain(..).for_each(|job| job.fail(error.clone()));
            return Ok(self.clock.now());
        }
        if let Err(error) = batch.decide(jobs, &self.memtables, self.limit.bytes) {
            // Every later read would return old data.
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
                Err(AppendError::NotWritten(error)) => {
                    let reason = error::not_journaled(&error, &self.path);
                    batch.fail(&StoreError::Unavailable { reason });
                    return Ok(self.clock.now());
                }
                Err(AppendError::NotConfirmed(error)) => {
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
        batch.answer(&self.memtables, now);
        Ok(now)
    }

    /// Answers all jobs with an error, and closes the queue.
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

    /// Waits while too much is unflushed, unless flushing fails.
    fn make_room(&mut self) -> Result<(), StoreError> {
        let fill = self.memtables.fill_level();
        let (bytes, limit) = (fill.bytes as u64, FULL_FACTOR * self.journal_bytes);
        if bytes < limit && self.journal.bytes() < 2 * limit {
            return Ok(());
        }
        self.memtables.wait_until_it_can_freeze()?;
        self.flush();
        Ok(())
    }

    fn flush_if_due(&mut self, now: Timestamp) {
        let fill = self.memtables.fill_level();
        let full = fill.bytes as u64 >= self.journal_bytes || self.journal.bytes() >= 2 * self.journal_bytes;
        if full || fill.awaited || fill.since.is_some_and(|since| now >= since.after(self.flush_after)) {
            self.flush();
        }
    }

    /// Hands the memtable to the flusher, if it has changes and the flusher is idle.
    fn flush(&mut self) {
        if self.memtables.freeze() {
            self.journal.switch_file();
        }
    }
}
