//! One transaction for everything that waits: every write is applied in turn, and one commit makes them durable.

use std::path::Path;

use onceward::store::{StoreError, Version};
use rusqlite::{Connection, OptionalExtension, Statement};

use crate::error::{self, Concerns};
use crate::job::{Job, Row, Stored};
use crate::versions::{Reserved, Versions, column, version};
use onceward::RecordId;

/// What came of one job, once its transaction is durable.
pub(crate) enum Outcome {
    Applied(Version),
    Conflict(Option<Stored>),
    Forgotten(usize),
    Failed(StoreError),
}

/// Why nothing of a transaction counts.
pub(crate) enum Failure {
    /// Every job gets this answer.
    All(StoreError),
    /// The process must stop. Every job gets this answer if it does not.
    Fatal { message: String, answer: StoreError },
}

/// The writer's statements, prepared once.
pub(crate) struct Batch<'c> {
    connection: &'c Connection,
    path: &'c Path,
    versions: Versions,
    begin: Statement<'c>,
    commit: Statement<'c>,
    rollback: Statement<'c>,
    insert: Statement<'c>,
    update: Statement<'c>,
    select: Statement<'c>,
    delete: Statement<'c>,
    reserve: Statement<'c>,
}

pub(crate) const SELECT: &str = "SELECT version, record FROM operations WHERE id = ?1";

/// How an attempt at a transaction ended before its commit.
enum Interrupted {
    /// The job at this place cannot be part of it: the transaction was rolled back and is begun again without it.
    Without(usize, StoreError),
    Failed(Failure),
}

impl<'c> Batch<'c> {
    pub(crate) fn prepare(connection: &'c Connection, path: &'c Path) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            path,
            versions: Versions::open(connection)?,
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            rollback: connection.prepare("ROLLBACK")?,
            insert: connection.prepare(
                "INSERT INTO operations (id, version, state, due_at, created_at, record)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (id) DO NOTHING",
            )?,
            update: connection.prepare(
                "UPDATE operations SET version = ?2, state = ?3, due_at = ?4, created_at = ?5, record = ?6
                 WHERE id = ?1 AND version = ?7",
            )?,
            select: connection.prepare(SELECT)?,
            delete: connection.prepare("DELETE FROM operations WHERE id = ?1 AND version = ?2")?,
            reserve: connection.prepare(Versions::RESERVE)?,
        })
    }

    /// Applies the jobs in order, until `bytes` have been read or written, and makes them durable.
    /// There is one outcome for each job that was applied, and always at least one.
    pub(crate) fn apply(
        &mut self,
        jobs: &[Job],
        bytes: usize,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Failure> {
        let mut spoiled: Vec<(usize, StoreError)> = Vec::new();
        loop {
            outcomes.clear();
            let reserved = self.versions.reserved();
            match self.attempt(jobs, bytes, &spoiled, outcomes) {
                Ok(()) => return Ok(()),
                Err(Interrupted::Without(index, error)) => {
                    self.undo(reserved);
                    spoiled.push((index, error));
                }
                Err(Interrupted::Failed(failure)) => {
                    self.undo(reserved);
                    return Err(failure);
                }
            }
        }
    }

    fn attempt(
        &mut self,
        jobs: &[Job],
        bytes: usize,
        spoiled: &[(usize, StoreError)],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Interrupted> {
        self.begin.execute([]).map_err(|error| self.failed(&error))?;
        let mut moved = 0;
        for (index, job) in jobs.iter().enumerate() {
            if let Some((_, error)) = spoiled.iter().find(|(at, _)| *at == index) {
                outcomes.push(Outcome::Failed(error.clone()));
                continue;
            }
            let outcome = match self.apply_one(job, &mut moved) {
                Ok(outcome) => outcome,
                Err(error) => self.spoil(index, &error)?,
            };
            outcomes.push(outcome);
            if moved >= bytes {
                break;
            }
        }
        self.commit.execute([]).map(drop).map_err(|error| {
            let answer = error::commit_failed(&error, self.path);
            Interrupted::Failed(match error::concerns(&error) {
                Concerns::Process => self.fatal(&error),
                Concerns::Row | Concerns::Place | Concerns::Transaction => Failure::All(answer),
            })
        })
    }

    /// Decides who suffers for a failed statement. One that failed for its row alone has been undone by SQLite, and the
    /// transaction goes on, unless SQLite gave that up too.
    fn spoil(&self, index: usize, error: &rusqlite::Error) -> Result<Outcome, Interrupted> {
        match error::concerns(error) {
            Concerns::Row if !self.connection.is_autocommit() => {
                Ok(Outcome::Failed(error::not_written(error, self.path)))
            }
            Concerns::Row | Concerns::Place => {
                Err(Interrupted::Without(index, error::not_written(error, self.path)))
            }
            Concerns::Transaction | Concerns::Process => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: &rusqlite::Error) -> Interrupted {
        Interrupted::Failed(match error::concerns(error) {
            Concerns::Process => self.fatal(error),
            Concerns::Row | Concerns::Place | Concerns::Transaction => {
                Failure::All(error::unavailable(error, self.path))
            }
        })
    }

    fn fatal(&self, error: &rusqlite::Error) -> Failure {
        let message = error::fatal(error, self.path);
        Failure::Fatal { answer: StoreError::Ambiguous { reason: message.clone() }, message }
    }

    fn undo(&mut self, reserved: Reserved) {
        self.versions.rolled_back(reserved);
        // SQLite rolls back by itself when the disk is full or fails; what is left open is closed here.
        if !self.connection.is_autocommit()
            && let Err(error) = self.rollback.execute([])
        {
            tracing::error!(%error, path = ?self.path, "a transaction could not be rolled back");
        }
    }

    fn apply_one(&mut self, job: &Job, moved: &mut usize) -> rusqlite::Result<Outcome> {
        match job {
            Job::Swap(swap) => {
                *moved += swap.row.record.len();
                self.swap(swap.id, swap.expect, &swap.row, moved)
            }
            Job::Forget(forget) => self.forget(&forget.records).map(Outcome::Forgotten),
        }
    }

    fn swap(
        &mut self,
        id: RecordId,
        expect: Option<Version>,
        row: &Row,
        moved: &mut usize,
    ) -> rusqlite::Result<Outcome> {
        let given = self.versions.next(&mut self.reserve)?;
        let statement = if expect.is_some() { &mut self.update } else { &mut self.insert };
        statement.raw_bind_parameter(1, &id.as_bytes()[..])?;
        statement.raw_bind_parameter(2, given)?;
        statement.raw_bind_parameter(3, row.state)?;
        statement.raw_bind_parameter(4, micros(row.due_at))?;
        statement.raw_bind_parameter(5, micros(row.created_at))?;
        statement.raw_bind_parameter(6, row.record.as_slice())?;
        if let Some(expected) = expect {
            statement.raw_bind_parameter(7, column(expected))?;
        }
        if statement.raw_execute()? > 0 {
            return Ok(Outcome::Applied(version(given)));
        }
        let stored = stored(&mut self.select, id)?;
        *moved += stored.as_ref().map_or(0, |stored| stored.record.len());
        Ok(Outcome::Conflict(stored))
    }

    fn forget(&mut self, records: &[(RecordId, Version)]) -> rusqlite::Result<usize> {
        let mut forgotten = 0;
        for (id, version) in records {
            forgotten += self.delete.execute((&id.as_bytes()[..], column(*version)))?;
        }
        Ok(forgotten)
    }
}

/// Reads what stands in the table for an id.
pub(crate) fn stored(select: &mut Statement<'_>, id: RecordId) -> rusqlite::Result<Option<Stored>> {
    select
        .query_row([&id.as_bytes()[..]], |row| {
            Ok(Stored { version: version(row.get(0)?), record: row.get_ref(1)?.as_blob()?.to_vec() })
        })
        .optional()
}

/// A time as the column holds it. Every [`onceward::Timestamp`] fits.
pub(crate) fn micros(at: onceward::Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}
