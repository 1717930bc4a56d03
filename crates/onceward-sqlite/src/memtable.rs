//! Memtables: the changes that are durable in the journal and not yet in the database. Every lookup searches them first.
//!
//! There are two. The writer fills the active one. The frozen one is being flushed into the database, and is dropped when
//! that is done. A memtable belongs to one generation of the journal, and the journal's file is overwritten only after its
//! memtable was flushed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::store::StoreError;
use onceward::store::driver::AnswerSender;
use onceward::{RecordId, Timestamp};

use crate::job::Job;
use crate::journal::Change;

/// The pause after a failed flush. Its cause, such as another program's lock, rarely ends sooner.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// A map by id. Ids are hashes already, so a fast hasher is enough; its random seed keeps attackers from choosing keys that
/// collide.
pub(crate) type ById<T> = HashMap<RecordId, T, foldhash::fast::RandomState>;

/// The changes of one generation of the journal.
pub(crate) struct Memtable {
    pub generation: u64,
    pub changes: ById<Arc<Change>>,
    /// The time of the first change.
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

/// The approximate memory of a change.
fn weight(change: &Change) -> usize {
    const ENTRY: usize = 128;
    ENTRY + change.row.as_ref().map_or(0, |row| row.record.len())
}

/// Both memtables, shared by the writer, the flusher and all loads.
pub(crate) struct Memtables {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    active: Memtable,
    frozen: Option<Arc<Memtable>>,
    /// Lists that wait until the database holds everything up to a generation.
    waiting: Vec<(u64, AnswerSender<()>)>,
    /// Why the last flush failed.
    last_error: Option<StoreError>,
    /// The number of flushes that were tried.
    attempts: u64,
    /// The writer waits for the next flush.
    retry_now: bool,
    /// No further memtable will be frozen.
    closed: bool,
    /// Nothing more may be written into the database.
    abandoned: bool,
    /// The flusher thread has ended.
    flusher_ended: bool,
}

/// How full the active memtable is.
pub(crate) struct FillLevel {
    pub bytes: usize,
    pub since: Option<Timestamp>,
    /// Whether a list waits for its flush.
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

    // No code in this file panics while the lock is held, so a poisoned lock guards a consistent state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The change of an id that is not in the database yet.
    pub(crate) fn get(&self, id: RecordId) -> Option<Arc<Change>> {
        self.state().get(id)
    }

    /// The changes of all ids of these jobs, in their order, as of one moment.
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

    /// Adds changes that are durable.
    pub(crate) fn add(&self, changes: impl Iterator<Item = (RecordId, Arc<Change>)>, now: Timestamp) {
        let mut state = self.state();
        changes.for_each(|(id, change)| state.active.insert(id, change));
        state.active.since.get_or_insert(now);
    }

    /// Whether the active memtable is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.state().active.changes.is_empty()
    }

    /// Whether the active memtable has changes, and the flusher is idle.
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

    /// Answers when every change so far is in the database.
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

    /// Hands the active memtable to the flusher, unless it is empty or the flusher is still busy with the other one.
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

    /// Waits until the flusher is idle. If its last attempt failed, waits for one more attempt, and returns that attempt's
    /// error.
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

    /// The flusher ends after the frozen memtable.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Stops the flusher at once: a sync has failed, and only the journal can be trusted.
    pub(crate) fn abandon(&self) {
        self.state().abandoned = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.state().abandoned
    }

    /// Waits for a frozen memtable. `None` if no further one will come.
    pub(crate) fn next_frozen(&self) -> Option<Arc<Memtable>> {
        let mut state = self.state();
        loop {
            match (&state.frozen, &state.last_error) {
                _ if state.abandoned => return None,
                (Some(frozen), None) => return Some(frozen.clone()),
                // A failed flush is tried once more, and otherwise left to the next start.
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

    /// The frozen memtable is in the database.
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

    /// The flusher has ended: every waiting call gets this error.
    pub(crate) fn flusher_ended(&self, last_error: &StoreError) {
        self.state().flusher_ended = true;
        self.flush_failed(last_error);
    }

    /// The flush failed. The changes stay in the memtable and in the journal. Returns whether the flush is left to the next
    /// start.
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
