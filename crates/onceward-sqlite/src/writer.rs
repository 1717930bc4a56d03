//! The one thread that writes: drains whatever waits, applies it in one transaction, syncs once, answers all.

use std::path::PathBuf;
use std::sync::Arc;

use onceward::Clock;
use onceward::store::StoreError;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, MAIN_DB};

use crate::batch::{Batch, Failure, Outcome};
use crate::checkpoint::Tender;
use crate::error::{self, Concerns};
use crate::job::{Found, Job, Written};
use crate::options::FatalHook;
use crate::queue::{Queue, Weight};
use crate::statistics::Counters;

pub(crate) struct Writer {
    pub connection: Connection,
    pub path: PathBuf,
    pub queue: Arc<Queue<Job>>,
    pub batch: Weight,
    pub clock: Arc<dyn Clock>,
    pub on_fatal: FatalHook,
    pub tender: Tender,
    pub counters: Arc<Counters>,
}

impl Writer {
    /// Works until the queue is closed and empty, lets the other threads end, and leaves an empty log.
    pub(crate) fn run(self, end_the_others: impl FnOnce()) {
        let Self { connection, path, queue, batch: limit, clock, on_fatal, mut tender, counters } = self;
        let fatal = |message: &str| {
            on_fatal(message);
            tracing::error!(message, "the store has stopped");
            fail_all(queue.abandon(message), message);
        };
        let mut batch = match Batch::prepare(&connection, &path) {
            Ok(batch) => batch,
            Err(error) => {
                let reason = error::explain(&error, &path);
                return fail_all(queue.abandon(&reason), &reason);
            }
        };
        let (mut jobs, mut outcomes) = (Vec::new(), Vec::new());
        while queue.take(limit, &mut jobs) {
            while !jobs.is_empty() {
                match batch.apply(&jobs, limit.bytes, &mut outcomes) {
                    Ok(()) => {
                        let done = outcomes.len();
                        counters.count(done);
                        answer(jobs.drain(..done), outcomes.drain(..), clock.as_ref());
                    }
                    Err(Failure::All(error)) => jobs.drain(..).for_each(|job| job.fail(error.clone())),
                    Err(Failure::Fatal { message, answer }) => {
                        fatal(&message);
                        return jobs.drain(..).for_each(|job| job.fail(answer.clone()));
                    }
                }
            }
            if let Err(error) = tender.tend(&connection) {
                match error::concerns(&error) {
                    Concerns::Process => return fatal(&error::fatal(&error, &path)),
                    // The log keeps what could not be moved, and nothing is lost.
                    Concerns::Row | Concerns::Place | Concerns::Transaction => {
                        tracing::warn!(reason = error::explain(&error, &path), "the log could not be moved");
                    }
                }
            }
        }
        // The checkpointer ends when nobody can ask it any more.
        drop((batch, tender));
        end_the_others();
        if queue.is_abandoned() {
            // A sync has failed elsewhere: the log is the only copy that can be trusted, and stays.
            return;
        }
        if let Err(error) = connection.wal_checkpoint_v2(Some(MAIN_DB), CheckpointMode::TRUNCATE) {
            match error::concerns(&error) {
                Concerns::Process => fatal(&error::fatal(&error, &path)),
                // Another program still reads; the next start moves the log.
                Concerns::Row | Concerns::Place | Concerns::Transaction => {
                    tracing::warn!(
                        reason = error::explain(&error, &path),
                        "the log is left for the next start"
                    );
                }
            }
        }
    }
}

/// A caller that has gone away no longer wants its answer.
fn answer(jobs: impl Iterator<Item = Job>, outcomes: impl Iterator<Item = Outcome>, clock: &dyn Clock) {
    let now = clock.now();
    for (job, outcome) in jobs.zip(outcomes) {
        match (job, outcome) {
            (Job::Swap(swap), Outcome::Applied(version)) => {
                drop(swap.answer.send(Ok(Written::Applied { version, now })));
            }
            (Job::Swap(swap), Outcome::Conflict(stored)) => {
                drop(swap.answer.send(Ok(Written::Conflict(Found { now, stored }))));
            }
            (Job::Forget(forget), Outcome::Forgotten(count)) => drop(forget.answer.send(Ok(count))),
            (job, Outcome::Failed(error)) => job.fail(error),
            (job, Outcome::Applied(_) | Outcome::Conflict(_) | Outcome::Forgotten(_)) => {
                job.fail(StoreError::Ambiguous { reason: "the writer mixed up its answers".to_owned() });
            }
        }
    }
}

fn fail_all(jobs: impl IntoIterator<Item = Job>, reason: &str) {
    for job in jobs {
        job.fail(StoreError::Unavailable { reason: reason.to_owned() });
    }
}
