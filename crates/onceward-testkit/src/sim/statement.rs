//! Statements of a database with PostgreSQL's visibility.
//!
//! A statement sees what was committed when it began. A write locks its row, and is invisible until it is committed
//! a moment later; another write of that row waits for it, is then held against what is committed *by then*, and still
//! shows only what was committed when it began. So the loser of a race for a new key gets a conflict with nothing,
//! and the loser of one for a record may be shown the very version that it had expected. A driver may ask a second time
//! before it answers, or leave that to the engine: both are played.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use onceward::plumbing::time::sleep;
use onceward::store::{Seen, StoreError, Swapped, Version};
use onceward::{Record, RecordId};
use tokio::sync::OwnedMutexGuard;

use super::sometimes::Sometimes;
use super::store::{Database, encoded, read};

/// A statement on its way through the database.
pub type Statement<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Who may write which row. Waiters get it in the order in which they came.
#[derive(Default)]
pub struct RowLocks(Mutex<BTreeMap<RecordId, Arc<tokio::sync::Mutex<()>>>>);

impl RowLocks {
    async fn take(&self, id: RecordId) -> OwnedMutexGuard<()> {
        let row = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default().clone();
        row.lock_owned().await
    }
}

/// `INSERT … ON CONFLICT DO NOTHING`, or `UPDATE … WHERE version = …`, with the record that is there in the same answer.
pub async fn swap(
    database: Arc<Database>,
    id: RecordId,
    expect: Option<Version>,
    next: Record,
) -> Result<Swapped, StoreError> {
    let bytes = encoded(id, &next)?;
    let (now, snapshot, generation) = {
        let rows = database.rows();
        (database.now(&rows), rows.by_id.get(&id).cloned(), rows.generation)
    };
    let lock = database.locks.take(id).await;
    let fits = database.fits(&database.rows(), id, expect);
    if fits {
        commit(&database, generation).await?;
        let version = database.write(&mut database.rows(), id, &next, bytes);
        drop(lock);
        return Ok(Swapped::Applied { version, now });
    }
    drop(lock);
    let shown = read(id, snapshot.as_ref())?;
    if shown.as_ref().map(|stamped| stamped.version) != expect {
        return Ok(Swapped::Conflict(Seen { now, record: shown }));
    }
    let (asks_again, pause) = {
        let mut world = database.world.lock();
        world.saw(if expect.is_none() { Sometimes::LoserSawNothing } else { Sometimes::LoserSawThePast });
        (world.random.permille(500), world.random.millis(0, 24))
    };
    if !asks_again {
        return Ok(Swapped::Conflict(Seen { now, record: shown }));
    }
    sleep(pause).await;
    let rows = database.rows();
    database.seen(&rows, id).map(Swapped::Conflict)
}

/// `DELETE … WHERE version = …`, row by row as their locks are had. All are gone at once, or none.
pub async fn forget(
    database: Arc<Database>,
    mut records: Vec<(RecordId, Version)>,
) -> Result<usize, StoreError> {
    let generation = database.rows().generation;
    // In one order for all, as drivers do it, so that no two of them wait for each other.
    records.sort_by_key(|(id, _)| *id);
    let mut ids: Vec<_> = records.iter().map(|(id, _)| *id).collect();
    ids.dedup();
    let mut locks = Vec::with_capacity(ids.len());
    for id in ids {
        locks.push(database.locks.take(id).await);
    }
    commit(&database, generation).await?;
    let forgotten = database.forget(&records);
    drop(locks);
    Ok(forgotten)
}

/// The time between a write and its commit, in which a crash takes it back. Now and then the disk is slow.
async fn commit(database: &Database, generation: u64) -> Result<(), StoreError> {
    let pause = {
        let mut world = database.world.lock();
        let chance = world.chances.store_slow;
        if world.random.permille(chance) { world.random.millis(20, 200) } else { world.random.millis(0, 8) }
    };
    sleep(pause).await;
    if database.rows().generation == generation {
        return Ok(());
    }
    database.world.lock().saw(Sometimes::WriteRolledBack);
    Err(StoreError::Ambiguous { reason: "simulated: the store crashed before the commit".to_owned() })
}
