//! A database that several simulated processes share, with every fault that a real one and its network have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::codec;
use onceward::plumbing::time::{Instant, instant, sleep};
use onceward::store::{
    Cursor, Due, Entry, Page, Scan, Seen, Stamped, Store, StoreError, StoreFuture, Swapped, Version, Which,
};
use onceward::{
    Fence, Record, RecordId, Timestamp,
    record::{State, StateKind},
};

use super::mutant::Mutant;
use super::plan::Visibility;
use super::process::Process;
use super::sometimes::Sometimes;
use super::statement::{self, RowLocks, Statement};
use super::world::World;
use super::{EPOCH_SECS, SharedLock};

/// How long after its acknowledgement a write reaches the disk, in a store that acknowledges too early.
const LAZY_FLUSH: Duration = Duration::from_millis(400);

/// The database itself.
pub struct Database {
    rows: Mutex<Rows>,
    pub(super) locks: RowLocks,
    pub(super) world: SharedLock<World>,
    mutant: Mutant,
    visibility: Visibility,
    started: Instant,
}

/// A version and a record's bytes, as a database holds them.
pub(super) type Row = (Version, Vec<u8>);

#[derive(Default)]
pub(super) struct Rows {
    /// What is committed.
    pub by_id: BTreeMap<RecordId, Row>,
    last_version: u64,
    /// For the mutant that compares fences: which fence each version had.
    fences: BTreeMap<Version, Fence>,
    jump: Duration,
    away_until: Option<Instant>,
    stall: Option<Stall>,
    /// Rises when the database crashes: calls from before never get an answer.
    pub generation: u64,
    /// For the mutant that acknowledges too early: what a crash takes back.
    unflushed: Vec<Unflushed>,
}

/// The database carries nothing out until a moment.
#[derive(Clone, Copy)]
struct Stall {
    until: Instant,
    what: Stalled,
}

/// What a stall holds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stalled {
    /// Writes: a disk that does not sync.
    Writes,
    /// Everything: a server that hangs.
    Everything,
}

/// When it reaches the disk, what was written, and what stood there before.
type Unflushed = (Instant, RecordId, Version, Option<Row>);

/// The fault that one call meets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Before,
    After,
    Instead,
    LandsLate,
}

impl Database {
    pub fn new(world: SharedLock<World>, mutant: Mutant, visibility: Visibility) -> Arc<Self> {
        Arc::new(Self {
            rows: Mutex::default(),
            locks: RowLocks::default(),
            world,
            mutant,
            visibility,
            started: instant(),
        })
    }

    pub(super) fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time without the jumps of the database's clock.
    pub fn true_now(&self) -> Timestamp {
        Timestamp::from_micros(EPOCH_SECS * 1_000_000).after(instant().duration_since(self.started))
    }

    pub(super) fn now(&self, rows: &Rows) -> Timestamp {
        self.true_now().after(rows.jump)
    }

    pub fn jump(&self, by: Duration) {
        self.rows().jump = by;
    }

    pub fn away_for(&self, span: Duration) {
        self.rows().away_until = Some(instant() + span);
    }

    pub fn stall_for(&self, span: Duration, what: Stalled) {
        self.rows().stall = Some(Stall { until: instant() + span, what });
    }

    /// How long a call that comes now is held up.
    fn stalled(&self, writes: bool) -> Duration {
        let stall = self.rows().stall.filter(|stall| writes || stall.what == Stalled::Everything);
        stall.map_or(Duration::ZERO, |stall| stall.until.saturating_duration_since(instant()))
    }

    /// The database is killed and comes back: what was durable is there, what was under way is lost or not.
    pub fn crash(&self) {
        let mut rows = self.rows();
        rows.generation += 1;
        let now = self.true_now();
        let unflushed: Vec<_> =
            rows.unflushed.drain(..).filter(|(flushed_at, ..)| *flushed_at > instant()).collect();
        for (_, id, version, before) in unflushed.into_iter().rev() {
            match before {
                Some(row) => rows.by_id.insert(id, row),
                None => rows.by_id.remove(&id),
            };
            self.world.lock().lost(now, id, version);
        }
        self.world.lock().saw(Sometimes::StoreCrashed);
    }

    pub fn records(&self) -> Vec<(RecordId, Record)> {
        let rows = self.rows();
        rows.by_id.iter().filter_map(|(&id, (_, bytes))| Some((id, codec::decode(id, bytes).ok()?))).collect()
    }

    pub(super) fn seen(&self, rows: &Rows, id: RecordId) -> Result<Seen, StoreError> {
        Ok(Seen { now: self.now(rows), record: read(id, rows.by_id.get(&id))? })
    }

    /// Whether a swap may write over what is committed.
    pub(super) fn fits(&self, rows: &Rows, id: RecordId, expect: Option<Version>) -> bool {
        let version = rows.by_id.get(&id).map(|(version, _)| *version);
        let fence_of = |version: Option<Version>| version.and_then(|v| rows.fences.get(&v).copied());
        if self.mutant == Mutant::SwapComparesFence {
            fence_of(version) == fence_of(expect) && version.is_some() == expect.is_some()
        } else {
            version == expect
        }
    }

    /// Commits a record.
    pub(super) fn write(&self, rows: &mut Rows, id: RecordId, next: &Record, bytes: Vec<u8>) -> Version {
        let current = rows.by_id.get(&id).cloned();
        rows.last_version += 1;
        let version = Version::from_number(rows.last_version);
        rows.fences.insert(version, next.fence);
        let old = current.as_ref().and_then(|(_, bytes)| codec::decode(id, bytes).ok());
        if self.mutant == Mutant::AcknowledgedBeforeDurable {
            rows.unflushed.push((instant() + LAZY_FLUSH, id, version, current));
        }
        rows.by_id.insert(id, (version, bytes));
        if id != IDENTITY {
            self.world.lock().wrote(self.true_now(), self.now(rows), id, old.as_ref(), Some(next));
        }
        version
    }

    fn swap(&self, id: RecordId, expect: Option<Version>, next: &Record) -> Result<Swapped, StoreError> {
        let bytes = encoded(id, next)?;
        let mut rows = self.rows();
        if !self.fits(&rows, id, expect) {
            return self.seen(&rows, id).map(Swapped::Conflict);
        }
        let version = self.write(&mut rows, id, next, bytes);
        Ok(Swapped::Applied { version, now: self.now(&rows) })
    }

    fn scan(&self, scan: &Scan) -> Result<Page, StoreError> {
        let rows = self.rows();
        let now = self.now(&rows);
        let after = scan.after.as_ref().and_then(|cursor| <[u8; 16]>::try_from(cursor.as_bytes()).ok());
        let mut entries = Vec::new();
        let mut next = None;
        for (&id, (version, bytes)) in &rows.by_id {
            if after.is_some_and(|after| *id.as_bytes() <= after) {
                continue;
            }
            let record = codec::decode(id, bytes);
            let listed = match (&scan.which, record.as_ref()) {
                (Which::Due(Due::Expired), Ok(_)) if self.mutant == Mutant::SweepIgnoresState => true,
                (Which::Due(due), Ok(record)) => record.due().0 == *due && record.due().1 <= now,
                (Which::Filter(filter), Ok(record)) => filter.accepts(record),
                (_, Err(_)) => false,
            };
            if listed && entries.len() == scan.limit {
                next = entries.last().map(|entry: &Entry| Cursor::from_bytes(*entry.id.as_bytes()));
                break;
            }
            if listed {
                entries.push(Entry { id, version: *version, record });
            }
        }
        Ok(Page { now, entries, next })
    }

    pub(super) fn forget(&self, records: &[(RecordId, Version)]) -> usize {
        let mut rows = self.rows();
        let mut count = 0;
        for (id, version) in records {
            let Some((current, bytes)) = rows.by_id.get(id).cloned() else { continue };
            let record = codec::decode(*id, &bytes).ok();
            if current != *version {
                let raced =
                    record.as_ref().is_some_and(|record| matches!(record.state, State::InProgress { .. }));
                if raced {
                    self.world.lock().saw(Sometimes::SweepRacingAClaim);
                }
                if self.mutant != Mutant::UnconditionalForget {
                    continue;
                }
            }
            rows.by_id.remove(id);
            self.world.lock().wrote(self.true_now(), self.now(&rows), *id, record.as_ref(), None);
            count += 1;
        }
        count
    }
}

pub(super) fn encoded(id: RecordId, next: &Record) -> Result<Vec<u8>, StoreError> {
    codec::encode(id, next).map_err(|error| StoreError::Refused { reason: error.to_string() })
}

pub(super) fn read(id: RecordId, row: Option<&Row>) -> Result<Option<Stamped>, StoreError> {
    let record = row.map(|(version, bytes)| match codec::decode(id, bytes) {
        Ok(record) => Ok(Stamped { record, version: *version }),
        Err(why) => Err(StoreError::Unreadable { id, version: *version, why }),
    });
    record.transpose()
}

/// Where engines remember their identity: not an operation.
pub const IDENTITY: RecordId = RecordId::from_bytes([0; 16]);

/// The database as one process reaches it: over a network, and only as long as the process lives.
pub struct Connection {
    pub database: Arc<Database>,
    pub process: Arc<Process>,
}

impl Connection {
    /// One call: the way there, the call itself unless a fault keeps it from happening, and the way back.
    async fn call<T: Send + 'static>(
        &self,
        call: Call,
        make: impl FnOnce(Arc<Database>) -> Statement<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let database = &self.database;
        self.process.pass().await;
        let (there, back, fault) = {
            let mut world = database.world.lock();
            let (there, back) = (world.random.millis(0, 12), world.random.millis(0, 12));
            let chance = world.chances.store_slow;
            let slow =
                if world.random.permille(chance) { world.random.millis(50, 300) } else { Duration::ZERO };
            (there + slow, back, self.draw_fault(&mut world, call.writes()))
        };
        let generation = database.rows().generation;
        sleep(there).await;
        let away = database.rows().away_until.is_some_and(|until| until > instant());
        if away || fault == Fault::Before || database.rows().generation != generation {
            self.process.pass().await;
            return Err(StoreError::Unavailable { reason: "simulated".to_owned() });
        }
        let lost = || Err(StoreError::Ambiguous { reason: "simulated".to_owned() });
        if fault == Fault::Instead {
            sleep(back).await;
            self.process.pass().await;
            return lost();
        }
        if fault == Fault::LandsLate {
            // The caller gets the lost answer while the statement is still on its way.
            let (late, database) = (database.world.lock().random.millis(5, 700), database.clone());
            tokio::spawn(async move {
                sleep(late).await;
                // Its result is not awaited.
                drop(make(database).await);
            });
            self.process.pass().await;
            return lost();
        }
        let stalled = database.stalled(call.writes());
        let done = if stalled.is_zero() {
            self.carried_out(make(database.clone())).await?
        } else {
            self.carried_out_after(stalled, generation, make).await?
        };
        sleep(back).await;
        let crashed = database.rows().generation != generation;
        self.process.pass().await;
        if call.writes() && (crashed || fault == Fault::After) {
            self.saw_ambiguous(call);
            return lost();
        }
        Ok(done)
    }

    /// A database with transactions does not notice that its client is gone: it ends what it has begun.
    async fn carried_out<T: Send + 'static>(&self, statement: Statement<T>) -> Result<T, StoreError> {
        match self.database.visibility {
            Visibility::Latest => statement.await,
            Visibility::Snapshot => tokio::spawn(statement).await.expect("a statement does not panic"),
        }
    }

    /// What a stalled database had begun, it carries out when the stall ends, whether or not a caller still waits. What is
    /// queued is carried out only if its caller does.
    async fn carried_out_after<T: Send + 'static>(
        &self,
        stalled: Duration,
        generation: u64,
        make: impl FnOnce(Arc<Database>) -> Statement<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let database = self.database.clone();
        let begun = database.world.lock().random.permille(500);
        let late = async move {
            sleep(stalled).await;
            if database.rows().generation != generation {
                let reason = "simulated: the store crashed while it stalled".to_owned();
                return Err(StoreError::Ambiguous { reason });
            }
            make(database).await
        };
        if begun { tokio::spawn(late).await.expect("a statement does not panic") } else { late.await }
    }

    fn draw_fault(&self, world: &mut World, writes: bool) -> Fault {
        let chances = world.chances.clone();
        if world.random.permille(chances.store_before) {
            Fault::Before
        } else if writes && world.random.permille(chances.store_after) {
            Fault::After
        } else if writes && world.random.permille(chances.store_instead) {
            Fault::Instead
        } else if writes && world.random.permille(chances.store_lands_late) {
            Fault::LandsLate
        } else {
            Fault::None
        }
    }

    fn saw_ambiguous(&self, call: Call) {
        match call {
            Call::Put(StateKind::InProgress) => self.database.world.lock().saw(Sometimes::AmbiguousClaim),
            Call::Put(StateKind::Completed) => self.database.world.lock().saw(Sometimes::AmbiguousSettle),
            _ => {}
        }
    }

    fn saw_conflict(&self, next: &State, swapped: &Swapped) {
        let state = next.kind();
        if let Swapped::Conflict(Seen { record: Some(stamped), .. }) = swapped
            && state == StateKind::Unknown
            && matches!(stamped.record.state, State::Completed { .. })
        {
            self.database.world.lock().saw(Sometimes::SweepRacingASettle);
        }
        // Held by another finder, until a moment that is to come.
        if let Swapped::Conflict(Seen { record: Some(stamped), now }) = swapped
            && let (State::Unknown { due_at: held, .. }, State::Unknown { due_at: wanted, .. }) =
                (&stamped.record.state, next)
            && held > now
            && wanted > now
        {
            self.database.world.lock().saw(Sometimes::FindersRaced);
        }
    }
}

/// What a call does to the database.
#[derive(Debug, Clone, Copy)]
enum Call {
    Read,
    /// Writes a record of this state.
    Put(StateKind),
    Forget,
}

impl Call {
    const fn writes(self) -> bool {
        matches!(self, Self::Put(_) | Self::Forget)
    }
}

impl Store for Connection {
    fn load(&self, id: RecordId) -> StoreFuture<'_, Seen> {
        Box::pin(self.call(Call::Read, move |database| {
            let seen = database.seen(&database.rows(), id);
            Box::pin(async { seen })
        }))
    }

    fn swap(&self, id: RecordId, expect: Option<Version>, next: Record) -> StoreFuture<'_, Swapped> {
        let state = next.state.clone();
        Box::pin(async move {
            let swapped = self.call(Call::Put(state.kind()), move |database| match database.visibility {
                Visibility::Latest => Box::pin(async move { database.swap(id, expect, &next) }),
                Visibility::Snapshot => Box::pin(statement::swap(database, id, expect, next)),
            });
            match swapped.await? {
                Swapped::Conflict(Seen { now, record: None })
                    if expect.is_none()
                        && self.database.mutant == Mutant::ConflictWithNothingTakenForAWin =>
                {
                    Ok(Swapped::Applied { version: Version::from_number(u64::MAX), now })
                }
                swapped => {
                    self.saw_conflict(&state, &swapped);
                    Ok(swapped)
                }
            }
        })
    }

    fn scan(&self, scan: Scan) -> StoreFuture<'_, Page> {
        Box::pin(self.call(Call::Read, move |database| {
            let page = database.scan(&scan);
            Box::pin(async { page })
        }))
    }

    fn forget(&self, records: Vec<(RecordId, Version)>) -> StoreFuture<'_, usize> {
        Box::pin(self.call(Call::Forget, move |database| match database.visibility {
            Visibility::Latest => Box::pin(async move { Ok(database.forget(&records)) }),
            Visibility::Snapshot => Box::pin(statement::forget(database, records)),
        }))
    }
}
