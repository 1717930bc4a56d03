//! The one thread that writes: takes whatever waits, decides each against what stands, appends it all to the journal,
//! syncs once, and answers all.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use onceward::store::StoreError;
use onceward::{Clock, Timestamp};
use rusqlite::Connection;

use crate::batch::Batch;
use crate::error;
use crate::fold::Ended;
use crate::job::Job;
use crate::journal::{Failed, Journal};
use crate::options::FatalHook;
use crate::queue::{Queue, Taken, Weight};
use crate::recent::Recent;
use crate::statistics::Counters;

/// So many times as much as is folded at once may wait to be folded: beyond that, writers wait.
const FULL: usize = 4;

pub(crate) struct Writer {
    pub path: PathBuf,
    pub queue: Arc<Queue<Job>>,
    pub limit: Weight,
    pub journal: Journal,
    pub recent: Arc<Recent>,
    /// From how many bytes on the journal is folded into the database.
    pub journal_bytes: usize,
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
            let patience = if self.recent.is_empty() { Duration::MAX } else { self.fold_after };
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
        let all = self.recent.wait_until_it_can_be_sealed().is_ok();
        if all {
            self.fold();
        }
        self.recent.close();
        if end_the_others() == Ended::Complete && all {
            // One that stays says nothing new to the next start.
            if let Err(error) = self.journal.remove() {
                tracing::warn!(%error, path = ?self.path, "the journal could not be removed");
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
        batch.decide(jobs, &self.recent, self.limit.bytes);
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
                    tracing::error!(message, "the store has stopped");
                    batch.fail(&StoreError::Ambiguous { reason: message.clone() });
                    jobs.drain(..)
                        .for_each(|job| job.fail(StoreError::Unavailable { reason: message.clone() }));
                    self.abandon(&message);
                    return Err(Stopped);
                }
            }
        }
        self.counters.count(batch.len());
        let now = self.clock.now();
        batch.answer(&self.recent, now);
        Ok(now)
    }

    /// Waits while too much is not in the database yet, unless that may take long.
    fn make_room(&mut self) -> Result<(), StoreError> {
        let fill = self.recent.fill();
        if fill.bytes < FULL * self.journal_bytes
            && self.journal.bytes() < (2 * FULL * self.journal_bytes) as u64
        {
            return Ok(());
        }
        self.recent.wait_until_it_can_be_sealed()?;
        self.fold();
        Ok(())
    }

    fn fold_if_due(&mut self, now: Timestamp) {
        let fill = self.recent.fill();
        let full = fill.bytes >= self.journal_bytes || self.journal.bytes() >= 2 * self.journal_bytes as u64;
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
