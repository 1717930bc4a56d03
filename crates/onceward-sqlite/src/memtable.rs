//! What is durable in the journal and not in the database yet, in memory: whoever looks for an id looks here first.
//!
//! There are two tables. The writer fills the open one; the frozen one is being folded into the database, and goes when
//! it is there. A table goes with a generation of the journal, whose file is written again only then.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::store::StoreError;
use onceward::store::driver::AnswerSender;
use onceward::{RecordId, Timestamp};

use crate::job::Job;
use crate::journal::Change;

/// How long nothing is tried after the database could not be written: what is in the way seldom goes within less.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// Something for each of some ids. An id is a hash already; the map's own one only keeps people from choosing keys that all
/// fall into one slot.
pub(crate) type ById<T> = HashMap<RecordId, T, foldhash::fast::RandomState>;

/// One generation of changes.
pub(crate) struct Memtable {
    pub generation: u64,
    pub changes: ById<Arc<Change>>,
    /// When the first change came.
    since: Option<Timestamp>,
    bytes: usize,
}

impl Memtable {
    pub(crate) fn new(generation: u64) -> Self {
        Self { generation, changes: ById::default(), since: None, bytes: 0 }
    }

    pub(crate) fn of(generation: u64, changes: ById<Change>) -> Self {
        let changes = changes.into_iter().map(|(id, change)| (id, Arc::new(change))).collect();
        Self { changes, ..Self::new(generation) }
    }

    fn insert(&mut self, id: RecordId, change: Arc<Change>) {
        self.bytes += weight(&change);
        if let Some(before) = self.changes.insert(id, change) {
            self.bytes -= weight(&before);
        }
    }
}

/// About what a change takes in memory.
fn weight(change: &Change) -> usize {
    const ENTRY: usize = 128;
    ENTRY + change.row.as_ref().map_or(0, |row| row.record.len())
}

/// Both tables, shared by the writer, the thread that folds, and everybody who loads.
pub(crate) struct Memtables {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    active: Memtable,
    frozen: Option<Arc<Memtable>>,
    /// Lists that wait until what was written before them is in the database, up to a generation.
    waiting: Vec<(u64, AnswerSender<()>)>,
    /// Why the last attempt to fold failed.
    last_error: Option<StoreError>,
    /// How often it was tried to fold.
    attempts: u64,
    /// Somebody waits for the next attempt.
    retry_now: bool,
    /// Nothing more will be frozen.
    closed: bool,
    /// Nothing more may be written anywhere.
    abandoned: bool,
    /// The thread that folds has ended.
    flusher_ended: bool,
}

/// How full the open table is, after a batch.
pub(crate) struct FillLevel {
    pub bytes: usize,
    pub since: Option<Timestamp>,
    /// Whether a list waits for it.
    pub awaited: bool,
}

impl Memtables {
    pub(crate) fn new(generation: u64) -> Self {
        let state = State {
            active: Memtable::new(generation),
            frozen: None,
            waiting: Vec::new(),
            last_error: None,
            attempts: 0,
            retry_now: false,
            closed: false,
            abandoned: false,
            flusher_ended: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    // Nothing in this file panics while the lock is held and something is half changed.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of an id since the database was written.
    pub(crate) fn get(&self, id: RecordId) -> Option<Arc<Change>> {
        self.state().get(id)
    }

    /// The same for every id of these jobs, in their order and as of one moment.
    pub(crate) fn get_all<'j>(
        &self,
        jobs: impl Iterator<Item = &'j Job>,
        into: &mut VecDeque<Option<Arc<Change>>>,
    ) {
        let state = self.state();
        jobs.for_each(|job| match job {
            Job::Swap(swap) => into.push_back(state.get(swap.id)),
            Job::Forget(forget) => into.extend(forget.records.iter().map(|(id, _)| state.get(*id))),
            Job::Flush(_) => {}
        });
    }

    /// Adds what has become durable.
    pub(crate) fn add(&self, changes: impl Iterator<Item = (RecordId, Arc<Change>)>, now: Timestamp) {
        let mut state = self.state();
        changes.for_each(|(id, change)| state.active.insert(id, change));
        state.active.since.get_or_insert(now);
    }

    /// Whether nothing came since the last table was frozen.
    pub(crate) fn is_empty(&self) -> bool {
        self.state().active.changes.is_empty()
    }

    /// Whether there is something to seal, and the thread that folds is free.
    pub(crate) fn can_freeze(&self) -> bool {
        let state = self.state();
        !state.active.changes.is_empty() && state.frozen.is_none()
    }

    pub(crate) fn fill_level(&self) -> FillLevel {
        let state = self.state();
        FillLevel {
            bytes: state.active.bytes,
            since: state.active.since,
            awaited: state.waiting.iter().any(|(generation, _)| *generation == state.active.generation),
        }
    }

    /// Answers when everything that has been written is in the database.
    pub(crate) fn wait_for_flush(&self, answer: AnswerSender<()>) {
        let mut state = self.state();
        if state.flusher_ended
            && let Some(last_error) = state.last_error.clone()
        {
            drop(state);
            return answer.send(Err(last_error));
        }
        let generation = match &state.frozen {
            _ if !state.active.changes.is_empty() => state.active.generation,
            Some(frozen) => frozen.generation,
            None => {
                drop(state);
                return answer.send(Ok(()));
            }
        };
        state.waiting.push((generation, answer));
    }

    /// Hands the open table to the thread that folds, unless it is empty or the other one is not folded yet.
    pub(crate) fn freeze(&self) -> bool {
        let mut state = self.state();
        if state.active.changes.is_empty() || state.frozen.is_some() {
            return false;
        }
        let next = Memtable::new(state.active.generation + 1);
        state.frozen = Some(Arc::new(std::mem::replace(&mut state.active, next)));
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Waits until the open table can be frozen. Where the last attempt to fold failed, another one is waited for.
    pub(crate) fn wait_until_it_can_freeze(&self) -> Result<(), StoreError> {
        let mut state = self.state();
        let mut attempts_before = None;
        while state.frozen.is_some() {
            if let Some(last_error) = state.last_error.clone() {
                match attempts_before {
                    Some(before) if state.attempts == before && !state.flusher_ended => {}
                    None if !state.flusher_ended => {
                        attempts_before = Some(state.attempts);
                        state.retry_now = true;
                        self.changed.notify_all();
                    }
                    Some(_) | None => return Err(last_error),
                }
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Nothing more will be frozen: the thread that folds ends after what there is.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Nothing more may be written: the journal is the only copy that can be trusted.
    pub(crate) fn abandon(&self) {
        self.state().abandoned = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.state().abandoned
    }

    /// Waits for a frozen table. `None` when nothing more will come.
    pub(crate) fn next_frozen(&self) -> Option<Arc<Memtable>> {
        let mut state = self.state();
        loop {
            match (&state.frozen, &state.last_error) {
                _ if state.abandoned => return None,
                (Some(frozen), None) => return Some(frozen.clone()),
                // What could not be folded is tried once more, and else left to the next start.
                (Some(frozen), Some(_)) if state.closed || state.retry_now => {
                    let frozen = frozen.clone();
                    state.retry_now = false;
                    return Some(frozen);
                }
                (Some(_), Some(_)) => {
                    let (next, waited) =
                        self.changed.wait_timeout(state, RETRY_AFTER).unwrap_or_else(PoisonError::into_inner);
                    state = next;
                    if waited.timed_out() && !state.abandoned {
                        return state.frozen.clone();
                    }
                }
                (None, _) if state.closed => return None,
                (None, _) => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The frozen table is in the database.
    pub(crate) fn flushed(&self) {
        let mut state = self.state();
        let frozen = state.frozen.take();
        state.last_error = None;
        state.attempts += 1;
        let through = frozen.as_ref().map_or(0, |table| table.generation);
        let (done, waiting) = std::mem::take(&mut state.waiting)
            .into_iter()
            .partition(|(generation, _)| *generation <= through);
        state.waiting = waiting;
        drop(state);
        self.changed.notify_all();
        let done: Vec<(u64, AnswerSender<()>)> = done;
        done.into_iter().for_each(|(_, answer)| answer.send(Ok(())));
    }

    /// The thread that folds has ended: nobody may wait for it.
    pub(crate) fn flusher_ended(&self, last_error: &StoreError) {
        self.state().flusher_ended = true;
        self.flush_failed(last_error);
    }

    /// The frozen table could not be folded. Nothing is lost: it stays, here and in the journal. Answers whether it is left
    /// to the next start.
    pub(crate) fn flush_failed(&self, last_error: &StoreError) -> bool {
        let mut state = self.state();
        state.last_error = Some(last_error.clone());
        state.attempts += 1;
        let (waiting, closed) = (std::mem::take(&mut state.waiting), state.closed);
        drop(state);
        self.changed.notify_all();
        waiting.into_iter().for_each(|(_, answer)| answer.send(Err(last_error.clone())));
        closed
    }
}

impl State {
    fn get(&self, id: RecordId) -> Option<Arc<Change>> {
        let frozen = || self.frozen.as_ref().and_then(|table| table.changes.get(&id));
        self.active.changes.get(&id).or_else(frozen).cloned()
    }
}
