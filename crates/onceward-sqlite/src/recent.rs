//! What is durable in the journal and not in the database yet, in memory: whoever looks for an id looks here first.
//!
//! There are two tables. The writer fills the open one; the sealed one is being folded into the database, and goes when
//! it is there. A table goes with a generation of the journal, whose file is written again only then.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::store::StoreError;
use onceward::store::driver::AnswerSender;
use onceward::{RecordId, Timestamp};

use crate::job::Job;
use crate::journal::Latest;

/// How long nothing is tried after the database could not be written: what is in the way seldom goes within less.
const PAUSE: Duration = Duration::from_millis(250);

/// Something for each of some ids. An id is a hash already; the map's own one only keeps people from choosing keys that all
/// fall into one slot.
pub(crate) type ById<T> = HashMap<RecordId, T, foldhash::fast::RandomState>;

/// One generation of changes.
pub(crate) struct Table {
    pub generation: u64,
    pub latest: ById<Arc<Latest>>,
    /// When the first change came.
    since: Option<Timestamp>,
    bytes: usize,
}

impl Table {
    pub(crate) fn new(generation: u64) -> Self {
        Self { generation, latest: ById::default(), since: None, bytes: 0 }
    }

    pub(crate) fn of(generation: u64, latest: ById<Latest>) -> Self {
        let latest = latest.into_iter().map(|(id, latest)| (id, Arc::new(latest))).collect();
        Self { latest, ..Self::new(generation) }
    }

    fn insert(&mut self, id: RecordId, latest: Arc<Latest>) {
        self.bytes += weight(&latest);
        if let Some(before) = self.latest.insert(id, latest) {
            self.bytes -= weight(&before);
        }
    }
}

/// About what a change takes in memory.
fn weight(latest: &Latest) -> usize {
    const ENTRY: usize = 128;
    ENTRY + latest.row.as_ref().map_or(0, |row| row.record.len())
}

/// Both tables, shared by the writer, the thread that folds, and everybody who loads.
pub(crate) struct Recent {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    open: Table,
    sealed: Option<Arc<Table>>,
    /// Lists that wait until what was written before them is in the database, up to a generation.
    waiting: Vec<(u64, AnswerSender<()>)>,
    /// Why the last attempt to fold failed.
    trouble: Option<StoreError>,
    /// How often it was tried to fold.
    attempts: u64,
    /// Somebody waits for the next attempt.
    hurry: bool,
    /// Nothing more will be sealed.
    closed: bool,
    /// Nothing more may be written anywhere.
    abandoned: bool,
    /// The thread that folds has ended.
    over: bool,
}

/// How full the open table is, after a batch.
pub(crate) struct Fill {
    pub bytes: usize,
    pub since: Option<Timestamp>,
    /// Whether a list waits for it.
    pub wanted: bool,
}

impl Recent {
    pub(crate) fn new(generation: u64) -> Self {
        let state = State {
            open: Table::new(generation),
            sealed: None,
            waiting: Vec::new(),
            trouble: None,
            attempts: 0,
            hurry: false,
            closed: false,
            abandoned: false,
            over: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    // Nothing in this file panics while the lock is held and something is half changed.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of an id since the database was written.
    pub(crate) fn get(&self, id: RecordId) -> Option<Arc<Latest>> {
        self.state().get(id)
    }

    /// The same for every id of these jobs, in their order and as of one moment.
    pub(crate) fn get_all<'j>(
        &self,
        jobs: impl Iterator<Item = &'j Job>,
        into: &mut VecDeque<Option<Arc<Latest>>>,
    ) {
        let state = self.state();
        jobs.for_each(|job| match job {
            Job::Swap(swap) => into.push_back(state.get(swap.id)),
            Job::Forget(forget) => into.extend(forget.records.iter().map(|(id, _)| state.get(*id))),
            Job::Fold(_) => {}
        });
    }

    /// Adds what has become durable.
    pub(crate) fn add(&self, changes: impl Iterator<Item = (RecordId, Arc<Latest>)>, now: Timestamp) {
        let mut state = self.state();
        changes.for_each(|(id, latest)| state.open.insert(id, latest));
        state.open.since.get_or_insert(now);
    }

    /// Whether nothing came since the last table was sealed.
    pub(crate) fn is_empty(&self) -> bool {
        self.state().open.latest.is_empty()
    }

    /// Whether there is something to seal, and the thread that folds is free.
    pub(crate) fn can_be_sealed(&self) -> bool {
        let state = self.state();
        !state.open.latest.is_empty() && state.sealed.is_none()
    }

    pub(crate) fn fill(&self) -> Fill {
        let state = self.state();
        Fill {
            bytes: state.open.bytes,
            since: state.open.since,
            wanted: state.waiting.iter().any(|(generation, _)| *generation == state.open.generation),
        }
    }

    /// Answers when everything that has been written is in the database.
    pub(crate) fn wait_for_database(&self, answer: AnswerSender<()>) {
        let mut state = self.state();
        if state.over
            && let Some(trouble) = state.trouble.clone()
        {
            drop(state);
            return answer.send(Err(trouble));
        }
        let generation = match &state.sealed {
            _ if !state.open.latest.is_empty() => state.open.generation,
            Some(sealed) => sealed.generation,
            None => {
                drop(state);
                return answer.send(Ok(()));
            }
        };
        state.waiting.push((generation, answer));
    }

    /// Hands the open table to the thread that folds, unless it is empty or the other one is not folded yet.
    pub(crate) fn seal(&self) -> bool {
        let mut state = self.state();
        if state.open.latest.is_empty() || state.sealed.is_some() {
            return false;
        }
        let next = Table::new(state.open.generation + 1);
        state.sealed = Some(Arc::new(std::mem::replace(&mut state.open, next)));
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Waits until the open table can be sealed. Where the last attempt to fold failed, another one is waited for.
    pub(crate) fn wait_until_it_can_be_sealed(&self) -> Result<(), StoreError> {
        let mut state = self.state();
        let mut tried_before = None;
        while state.sealed.is_some() {
            if let Some(trouble) = state.trouble.clone() {
                match tried_before {
                    Some(before) if state.attempts == before && !state.over => {}
                    None if !state.over => {
                        tried_before = Some(state.attempts);
                        state.hurry = true;
                        self.changed.notify_all();
                    }
                    Some(_) | None => return Err(trouble),
                }
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Nothing more will be sealed: the thread that folds ends after what there is.
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

    /// Waits for a sealed table. `None` when nothing more will come.
    pub(crate) fn next_sealed(&self) -> Option<Arc<Table>> {
        let mut state = self.state();
        loop {
            match (&state.sealed, &state.trouble) {
                _ if state.abandoned => return None,
                (Some(sealed), None) => return Some(sealed.clone()),
                // What could not be folded is tried once more, and else left to the next start.
                (Some(sealed), Some(_)) if state.closed || state.hurry => {
                    let sealed = sealed.clone();
                    state.hurry = false;
                    return Some(sealed);
                }
                (Some(_), Some(_)) => {
                    let (next, waited) =
                        self.changed.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner);
                    state = next;
                    if waited.timed_out() && !state.abandoned {
                        return state.sealed.clone();
                    }
                }
                (None, _) if state.closed => return None,
                (None, _) => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The sealed table is in the database.
    pub(crate) fn folded(&self) {
        let mut state = self.state();
        let sealed = state.sealed.take();
        state.trouble = None;
        state.attempts += 1;
        let through = sealed.as_ref().map_or(0, |table| table.generation);
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
    pub(crate) fn over(&self, trouble: &StoreError) {
        self.state().over = true;
        self.not_folded(trouble);
    }

    /// The sealed table could not be folded. Nothing is lost: it stays, here and in the journal. Answers whether it is left
    /// to the next start.
    pub(crate) fn not_folded(&self, trouble: &StoreError) -> bool {
        let mut state = self.state();
        state.trouble = Some(trouble.clone());
        state.attempts += 1;
        let (waiting, closed) = (std::mem::take(&mut state.waiting), state.closed);
        drop(state);
        self.changed.notify_all();
        waiting.into_iter().for_each(|(_, answer)| answer.send(Err(trouble.clone())));
        closed
    }
}

impl State {
    fn get(&self, id: RecordId) -> Option<Arc<Latest>> {
        let sealed = || self.sealed.as_ref().and_then(|table| table.latest.get(&id));
        self.open.latest.get(&id).or_else(sealed).cloned()
    }
}
