//! The thread that brings the database up to date with the journal, a table of changes at a time.
//!
//! A table says what its ids have come to, not how, so folding it again, after a crash in the middle, changes nothing. It
//! goes in parts: syncing all of it at once would make the next claim wait for the disk.

use std::path::Path;
use std::sync::Arc;

use onceward::RecordId;
use onceward::store::StoreError;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, MAIN_DB, Statement};

use crate::error::{self, Concerns};
use crate::journal::Latest;
use crate::log_length::LogLength;
use crate::recent::{Recent, Table};
use crate::rows::{column, micros};
use crate::schema;

/// So many bytes of records go into one transaction.
const PART_BYTES: usize = 512 << 10;

/// What is written into the database, prepared once.
pub(crate) struct Folder<'c> {
    connection: &'c Connection,
    path: &'c Path,
    length: LogLength,
    /// From how many pages on SQLite's log is moved into the database.
    checkpoint_pages: u32,
    begin: Statement<'c>,
    commit: Statement<'c>,
    rollback: Statement<'c>,
    put: Statement<'c>,
    delete: Statement<'c>,
    note: Statement<'c>,
}

/// How the thread ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Everything is in the database, and nothing is needed of the journal any more.
    Complete,
    /// The next start folds what is left.
    Partly,
}

impl<'c> Folder<'c> {
    pub(crate) fn prepare(
        connection: &'c Connection,
        path: &'c Path,
        length: LogLength,
        checkpoint_pages: u32,
    ) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            path,
            length,
            checkpoint_pages,
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            rollback: connection.prepare("ROLLBACK")?,
            put: connection.prepare(
                "INSERT INTO operations (id, version, state, due_at, created_at, record)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (id) DO UPDATE SET version = excluded.version,
                 state = excluded.state, due_at = excluded.due_at, created_at = excluded.created_at,
                 record = excluded.record",
            )?,
            delete: connection.prepare("DELETE FROM operations WHERE id = ?1")?,
            // Without a generation `journal_folded` stays as it is.
            note: connection.prepare(
                "UPDATE meta SET value = max(value, CASE name WHEN 'journal_folded' THEN ifnull(?1, 0) ELSE ?2 END)
                 WHERE name IN ('journal_folded', 'versions_reserved')",
            )?,
        })
    }

    /// Folds whatever is sealed until nothing more will be. Fails only where a sync did.
    pub(crate) fn run(&mut self, recent: &Recent, next: impl Fn()) -> Result<Ended, rusqlite::Error> {
        let mut troubled = false;
        while let Some(table) = recent.next_sealed() {
            let Err(error) = self.fold(&table) else {
                if std::mem::take(&mut troubled) {
                    tracing::info!(path = ?self.path, "the embedded store's database can be written again");
                }
                recent.folded();
                next();
                self.move_log()?;
                continue;
            };
            if error::concerns(&error) == Concerns::Process {
                return Err(error);
            }
            let reason = error::explain(&error, self.path);
            if !std::mem::replace(&mut troubled, true) {
                tracing::warn!(
                    cause = reason,
                    next = "see to the disk, or end the program that holds the file: claims are refused once the journal is full",
                    "the embedded store's database could not be written: the journal keeps what was acknowledged, and it is tried again"
                );
            }
            let given_up = recent.not_folded(&StoreError::Unavailable { reason });
            next();
            if given_up {
                return Ok(Ended::Partly);
            }
        }
        if recent.is_abandoned() {
            return Ok(Ended::Partly);
        }
        let ended = if recent.is_empty() { self.note_the_end() } else { Ended::Partly };
        self.empty_log()?;
        Ok(ended)
    }

    /// Writes a table into the database, durably.
    pub(crate) fn fold(&mut self, table: &Table) -> rusqlite::Result<()> {
        let mut changes: Vec<_> = table.latest.iter().collect();
        // So each page of the index on ids is written in one part only, and not in every one.
        changes.sort_unstable_by_key(|(id, _)| id.as_bytes());
        let highest = changes.iter().map(|(_, latest)| column(latest.version)).max().unwrap_or(0);
        let mut rest = changes.as_slice();
        loop {
            let (part, later) = rest.split_at(part(rest));
            rest = later;
            let generation = rest.is_empty().then_some(table.generation);
            self.write(part, generation, highest).inspect_err(|_| self.undo())?;
            if rest.is_empty() {
                return Ok(());
            }
            self.move_log()?;
        }
    }

    fn write(
        &mut self,
        part: &[(&RecordId, &Arc<Latest>)],
        generation: Option<u64>,
        highest: i64,
    ) -> rusqlite::Result<()> {
        self.begin.execute([])?;
        for (id, latest) in part {
            let id = &id.as_bytes()[..];
            let Some(row) = &latest.row else {
                self.delete.execute([id])?;
                continue;
            };
            let times = (micros(row.due_at), micros(row.created_at));
            let record = row.record.as_slice();
            self.put.execute((id, column(latest.version), row.state.name(), times.0, times.1, record))?;
        }
        // The versions with every part: of a fold that ends in the middle the journal may not be left, in a backup or after
        // a batch that was read at a start was never on the disk. Generations rise by one, and never come near the end of
        // either number.
        let generation = generation.map(|generation| i64::try_from(generation).unwrap_or(i64::MAX));
        self.note.execute((generation, highest))?;
        self.commit.execute([]).map(drop)
    }

    fn undo(&mut self) {
        // SQLite rolls back by itself when the disk is full or fails; what is left open is closed here.
        if !self.connection.is_autocommit()
            && let Err(error) = self.rollback.execute([])
        {
            tracing::error!(cause = %error, path = ?self.path, "a transaction of the embedded store could not be rolled back: it is tried again");
        }
    }

    /// Moves SQLite's own log into the database when it has become long; the next transaction begins it anew. Answers
    /// only what concerns the process.
    fn move_log(&self) -> rusqlite::Result<()> {
        if self.length.pages() < self.checkpoint_pages {
            return Ok(());
        }
        match self.connection.wal_checkpoint_v2(Some(MAIN_DB), CheckpointMode::PASSIVE) {
            Ok((pages, moved)) => tracing::debug!(pages, moved, "moved the log"),
            Err(error) if error::concerns(&error) == Concerns::Process => return Err(error),
            // The log keeps what could not be moved, and nothing is lost: the next time may do better.
            Err(error) => {
                tracing::warn!(
                    cause = error::explain(&error, self.path),
                    "SQLite's write-ahead log could not be moved into the database: it grows until that works, and nothing is lost"
                );
            }
        }
        Ok(())
    }

    /// The journal is no longer part of the store.
    fn note_the_end(&self) -> Ended {
        match schema::journal_is_over(self.connection) {
            Ok(()) => Ended::Complete,
            Err(error) => {
                let reason = error::explain(&error, self.path);
                tracing::warn!(
                    cause = reason,
                    "the journal could not be closed: the next start reads it again"
                );
                Ended::Partly
            }
        }
    }

    /// Moves all of the log when everything else has ended, so that the database's file is everything there is.
    fn empty_log(&self) -> rusqlite::Result<()> {
        match self.connection.wal_checkpoint_v2(Some(MAIN_DB), CheckpointMode::TRUNCATE) {
            Ok(_) => Ok(()),
            Err(error) if error::concerns(&error) == Concerns::Process => Err(error),
            // Another program still reads; the next start moves the log.
            Err(error) => {
                let reason = error::explain(&error, self.path);
                tracing::warn!(
                    cause = reason,
                    "SQLite's write-ahead log could not be emptied: the next start does it"
                );
                Ok(())
            }
        }
    }
}

/// How many changes make a part: at least one.
fn part(changes: &[(&RecordId, &Arc<Latest>)]) -> usize {
    let mut bytes = 0;
    let fits = |(_, latest): &&(&RecordId, &Arc<Latest>)| {
        let before = bytes;
        bytes += latest.row.as_ref().map_or(0, |row| row.record.len()) + 64;
        before < PART_BYTES
    };
    changes.iter().take_while(fits).count()
}
