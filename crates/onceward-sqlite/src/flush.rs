//! The flusher thread, which writes frozen memtables into the database.
//!
//! A memtable holds the final change of each id, so flushing it again after a crash changes nothing. It is written in
//! chunks, one transaction each: syncing a whole memtable at once would delay the next claim.

use std::path::Path;
use std::sync::Arc;

use onceward::RecordId;
use onceward::store::StoreError;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, MAIN_DB, Statement};

use crate::error::{self, Severity};
use crate::journal::Change;
use crate::memtable::{Memtable, Memtables};
use crate::rows::{column, micros};
use crate::schema;
use crate::wal_length::WalLength;

/// The bytes of records in one transaction.
const CHUNK_BYTES: usize = 512 << 10;

/// The connection that writes, with its prepared statements.
pub(crate) struct Flusher<'c> {
    connection: &'c Connection,
    path: &'c Path,
    wal: WalLength,
    /// The length of SQLite's log from which it is checkpointed.
    checkpoint_pages: u32,
    begin: Statement<'c>,
    commit: Statement<'c>,
    rollback: Statement<'c>,
    put: Statement<'c>,
    delete: Statement<'c>,
    update_meta: Statement<'c>,
}

/// How the flusher ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushEnd {
    /// Everything is in the database, and the journal is no longer needed.
    Complete,
    /// The next start flushes the rest.
    Partial,
}

impl<'c> Flusher<'c> {
    pub(crate) fn prepare(
        connection: &'c Connection,
        path: &'c Path,
        wal: WalLength,
        checkpoint_pages: u32,
    ) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            path,
            wal,
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
            // Without a generation, `journal_folded` keeps its value.
            update_meta: connection.prepare(
                "UPDATE meta SET value = max(value, CASE name WHEN 'journal_folded' THEN ifnull(?1, 0) ELSE ?2 END)
                 WHERE name IN ('journal_folded', 'versions_reserved')",
            )?,
        })
    }

    /// Flushes memtables until no further one comes. Calls `after_attempt` after each attempt. Fails only if a sync failed.
    pub(crate) fn run(
        &mut self,
        memtables: &Memtables,
        after_attempt: impl Fn(),
    ) -> Result<FlushEnd, rusqlite::Error> {
        let mut failing = false;
        while let Some(table) = memtables.next_frozen() {
            let Err(error) = self.flush(&table) else {
                if std::mem::take(&mut failing) {
                    tracing::info!(path = ?self.path, "the embedded store's database can be written again");
                }
                memtables.flushed();
                after_attempt();
                self.checkpoint_if_long()?;
                continue;
            };
            if error::severity(&error) == Severity::Fatal {
                return Err(error);
            }
            let reason = error::explain(&error, self.path);
            if !std::mem::replace(&mut failing, true) {
                tracing::warn!(
                    cause = reason,
                    next = "repair the disk, or end the program that holds the file: claims are refused once the journal is full",
                    "the embedded store's database could not be written: the journal keeps what was acknowledged, and the write is tried again"
                );
            }
            let left_to_next_start = memtables.flush_failed(&StoreError::Unavailable { reason });
            after_attempt();
            if left_to_next_start {
                return Ok(FlushEnd::Partial);
            }
        }
        if memtables.is_abandoned() {
            return Ok(FlushEnd::Partial);
        }
        let ended = if memtables.is_empty() { self.mark_journal_closed() } else { FlushEnd::Partial };
        self.truncate_wal()?;
        Ok(ended)
    }

    /// Writes a memtable into the database, durably.
    pub(crate) fn flush(&mut self, table: &Memtable) -> rusqlite::Result<()> {
        let mut changes: Vec<_> = table.changes.iter().collect();
        // In the order of ids, so that each page of their index is written by one chunk only.
        changes.sort_unstable_by_key(|(id, _)| id.as_bytes());
        let highest = changes.iter().map(|(_, change)| column(change.version)).max().unwrap_or(0);
        let mut rest = changes.as_slice();
        loop {
            let (chunk, later) = rest.split_at(chunk_rows(rest));
            rest = later;
            let generation = rest.is_empty().then_some(table.generation);
            self.write(chunk, generation, highest).inspect_err(|_| self.undo())?;
            if rest.is_empty() {
                return Ok(());
            }
            self.checkpoint_if_long()?;
        }
    }

    fn write(
        &mut self,
        chunk: &[(&RecordId, &Arc<Change>)],
        generation: Option<u64>,
        highest: i64,
    ) -> rusqlite::Result<()> {
        self.begin.execute([])?;
        for (id, change) in chunk {
            let id = &id.as_bytes()[..];
            let Some(row) = &change.row else {
                self.delete.execute([id])?;
                continue;
            };
            let times = (micros(row.due_at), micros(row.created_at));
            let record = row.record.as_slice();
            self.put.execute((id, column(change.version), row.state.name(), times.0, times.1, record))?;
        }
        // The highest version is stored with every chunk, because a flush that stops half-way may lose its journal: in a
        // backup, or if a batch that recovery read was never synced. Generations are counted up one by one, and never exceed
        // an `i64`.
        let generation = generation.map(|generation| i64::try_from(generation).unwrap_or(i64::MAX));
        self.update_meta.execute((generation, highest))?;
        self.commit.execute([]).map(drop)
    }

    fn undo(&mut self) {
        // SQLite rolls back by itself when the disk is full or fails. Any other open transaction is rolled back here.
        if !self.connection.is_autocommit()
            && let Err(error) = self.rollback.execute([])
        {
            tracing::error!(cause = %error, path = ?self.path, "a transaction of the embedded store could not be rolled back: the next attempt tries it again");
        }
    }

    /// Checkpoints SQLite's log if it is long; the next transaction then starts it again from its beginning. Returns only
    /// errors that are fatal for the process.
    fn checkpoint_if_long(&self) -> rusqlite::Result<()> {
        if self.wal.pages() < self.checkpoint_pages {
            return Ok(());
        }
        match self.connection.wal_checkpoint_v2(Some(MAIN_DB), CheckpointMode::PASSIVE) {
            Ok((pages, moved)) => tracing::debug!(pages, moved, "checkpointed the log"),
            Err(error) if error::severity(&error) == Severity::Fatal => return Err(error),
            // The log keeps all pages, so nothing is lost, and a later checkpoint may succeed.
            Err(error) => {
                tracing::warn!(
                    cause = error::explain(&error, self.path),
                    "SQLite's write-ahead log could not be moved into the database: it grows until that succeeds, and nothing is lost"
                );
            }
        }
        Ok(())
    }

    /// Records in the database that the journal holds nothing new.
    fn mark_journal_closed(&self) -> FlushEnd {
        match schema::mark_journal_closed(self.connection) {
            Ok(()) => FlushEnd::Complete,
            Err(error) => {
                let reason = error::explain(&error, self.path);
                tracing::warn!(
                    cause = reason,
                    "the journal could not be closed: the next start reads it again"
                );
                FlushEnd::Partial
            }
        }
    }

    /// Checkpoints and truncates the log after all other threads have ended, so that the database file alone is complete.
    fn truncate_wal(&self) -> rusqlite::Result<()> {
        match self.connection.wal_checkpoint_v2(Some(MAIN_DB), CheckpointMode::TRUNCATE) {
            Ok(_) => Ok(()),
            Err(error) if error::severity(&error) == Severity::Fatal => Err(error),
            // Another program is reading. The next start checkpoints the log.
            Err(error) => {
                let reason = error::explain(&error, self.path);
                tracing::warn!(
                    cause = reason,
                    "SQLite's write-ahead log could not be truncated: the next start does it"
                );
                Ok(())
            }
        }
    }
}

/// How many changes form the next chunk, at least one.
fn chunk_rows(changes: &[(&RecordId, &Arc<Change>)]) -> usize {
    let mut bytes = 0;
    let fits = |(_, change): &&(&RecordId, &Arc<Change>)| {
        let before = bytes;
        bytes += change.row.as_ref().map_or(0, |row| row.record.len()) + 64;
        before < CHUNK_BYTES
    };
    changes.iter().take_while(fits).count()
}
