//! Decides the jobs of a batch in order, each against the current version of its id: in the batch, in a memtable or in the
//! database.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use onceward::store::driver::{AnswerSender, RawRecord, RawSeen, RawSwapped};
use onceward::store::{StoreError, Version};
use onceward::{RecordId, Timestamp};
use rusqlite::{Connection, Statement};

use crate::error::unavailable;
use crate::job::{Forget, Job, Swap};
use crate::journal::{Change, Frame};
use crate::memtable::{ById, Memtables};
use crate::rows::{SELECT, SELECT_VERSION, stored, stored_version};

/// A batch from its first decision until it is answered.
pub(crate) struct Batch<'c> {
    /// The changes, encoded for the journal.
    pub frame: Frame,
    decided: Vec<Decided>,
    changes: ById<Arc<Change>>,
    /// The unflushed change of each id when the batch began, in the order of the jobs.
    unflushed: VecDeque<Option<Arc<Change>>>,
    /// Bytes that were read and written so far.
    bytes: usize,
    /// The last version that was assigned. A version of a failed batch is not used again either.
    version: u64,
    path: PathBuf,
    connection: &'c Connection,
    begin: Statement<'c>,
    end: Statement<'c>,
    select: Statement<'c>,
    select_version: Statement<'c>,
}

/// A decided job, whose answer is held back until the batch is durable.
enum Decided {
    Applied(AnswerSender<RawSwapped>, Version),
    Conflict(AnswerSender<RawSwapped>, Option<RawRecord>),
    Forgotten(AnswerSender<usize>, usize),
}

impl<'c> Batch<'c> {
    pub(crate) fn prepare(connection: &'c Connection, path: PathBuf, version: u64) -> rusqlite::Result<Self> {
        Ok(Self {
            frame: Frame::default(),
            decided: Vec::new(),
            changes: ById::default(),
            unflushed: VecDeque::new(),
            bytes: 0,
            version,
            path,
            connection,
            begin: connection.prepare("BEGIN")?,
            end: connection.prepare("ROLLBACK")?,
            select: connection.prepare(SELECT)?,
            select_version: connection.prepare(SELECT_VERSION)?,
        })
    }

    /// The number of decided jobs.
    pub(crate) fn len(&self) -> usize {
        self.decided.len()
    }

    /// Decides jobs until this many bytes were read or written, at least one. Fails only if the read transaction cannot be
    /// ended: later batches would then see old data.
    pub(crate) fn decide(
        &mut self,
        jobs: &mut VecDeque<Job>,
        memtables: &Memtables,
        bytes: usize,
    ) -> rusqlite::Result<()> {
        self.frame.clear();
        self.bytes = 0;
        self.unflushed.clear();
        // The memtables are read before the database, so that a change that is flushed in between is found in one of them.
        // In the opposite order it could be missed in both.
        memtables.get_all(jobs.iter(), &mut self.unflushed);
        while let Some(job) = jobs.pop_front() {
            match job {
                Job::Swap(swap) => self.swap(swap),
                Job::Forget(forget) => self.forget(forget),
                Job::Flush(answer) if self.decided.is_empty() => memtables.wait_for_flush(answer),
                Job::Flush(answer) => {
                    // Earlier jobs of this batch must be durable first.
                    jobs.push_front(Job::Flush(answer));
                    break;
                }
            }
            if self.bytes >= bytes {
                break;
            }
        }
        if !self.connection.is_autocommit() {
            self.end.execute([])?;
        }
        Ok(())
    }

    fn swap(&mut self, swap: Swap) {
        let Swap { id, expect, row, answer } = swap;
        let unflushed = self.unflushed.pop_front().flatten();
        // The caller gave up. A claim that is written now would block its key, and no task would work on it.
        if answer.is_abandoned() {
            return;
        }
        self.bytes += row.record.len();
        let found = match self.changes.get(&id).or(unflushed.as_ref()) {
            Some(change) if change.version_of_row() == expect => Ok(None),
            Some(change) => Ok(Some(change.stored())),
            None => self.in_database(id).map(|found| {
                let same = found.as_ref().map(|found| found.version) == expect;
                (!same).then_some(found)
            }),
        };
        match found {
            Ok(None) => {
                self.version += 1;
                let version = Version::from_number(self.version);
                self.change(id, Change { version, row: Some(row) });
                self.decided.push(Decided::Applied(answer, version));
            }
            Ok(Some(stored)) => {
                self.bytes += stored.as_ref().map_or(0, |stored| stored.bytes.len());
                self.decided.push(Decided::Conflict(answer, stored));
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    fn forget(&mut self, Forget { records, answer }: Forget) {
        let mut forgotten = 0;
        let mut failed = None;
        for (id, version) in records {
            let unflushed = self.unflushed.pop_front().flatten();
            let stored = match self.changes.get(&id).or(unflushed.as_ref()) {
                Some(change) => change.version_of_row(),
                None => match self.version_in_database(id) {
                    Ok(stored) => stored,
                    Err(error) => {
                        failed.get_or_insert(error);
                        continue;
                    }
                },
            };
            if stored == Some(version) {
                self.change(id, Change { version, row: None });
                forgotten += 1;
            }
        }
        match failed {
            // The other records are deleted. Those that could not be read stay, and are listed again.
            Some(error) if forgotten == 0 => answer.send(Err(error)),
            Some(_) | None => self.decided.push(Decided::Forgotten(answer, forgotten)),
        }
    }

    fn change(&mut self, id: RecordId, change: Change) {
        self.frame.push(id, &change);
        self.changes.insert(id, Arc::new(change));
    }

    fn in_database(&mut self, id: RecordId) -> Result<Option<RawRecord>, StoreError> {
        self.begin_read()
            .and_then(|()| stored(&mut self.select, id))
            .map_err(|error| unavailable(&error, &self.path))
    }

    fn version_in_database(&mut self, id: RecordId) -> Result<Option<Version>, StoreError> {
        self.begin_read()
            .and_then(|()| stored_version(&mut self.select_version, id))
            .map_err(|error| unavailable(&error, &self.path))
    }

    /// One read transaction serves the whole batch.
    fn begin_read(&mut self) -> rusqlite::Result<()> {
        if self.connection.is_autocommit() {
            self.begin.execute([])?;
        }
        Ok(())
    }

    /// The batch is durable: makes its changes visible, and answers its jobs.
    pub(crate) fn answer(&mut self, memtables: &Memtables, now: Timestamp) {
        if !self.changes.is_empty() {
            memtables.add(self.changes.drain(), now);
        }
        self.decided.drain(..).for_each(|decided| match decided {
            Decided::Applied(answer, version) => answer.send(Ok(RawSwapped::Applied { version, now })),
            Decided::Conflict(answer, record) => {
                answer.send(Ok(RawSwapped::Conflict(RawSeen { now, record })))
            }
            Decided::Forgotten(answer, count) => answer.send(Ok(count)),
        });
    }

    /// The batch was not written: answers all its jobs with this error.
    pub(crate) fn fail(&mut self, error: &StoreError) {
        self.changes.clear();
        self.decided.drain(..).for_each(|decided| match decided {
            Decided::Applied(answer, _) | Decided::Conflict(answer, _) => answer.send(Err(error.clone())),
            Decided::Forgotten(answer, _) => answer.send(Err(error.clone())),
        });
    }
}
