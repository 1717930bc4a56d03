//! The queue of calls, bounded in rows and bytes, from which workers take a batch at a time.
//!
//! A free worker takes all queued calls of one kind, beginning with the oldest kind; a single call does not wait for others.
//! An id occurs once in a batch. A second swap of an id that expects the same version becomes a follower of the first: the
//! answer to the first determines the answer to the second. So ten thousand claims of one key are one row of one
//! statement, whether the key is new or was released.
//!
//! Swaps whose callers gave up are not sent: a claim that is written then blocks its key, and no task works on it. If such a
//! swap has followers, the next one that is still awaited takes its place.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward::RecordId;
use onceward::store::StoreError;
use onceward::store::driver::{AnswerSender, Weight};
use tokio::sync::Notify;

use crate::job::{Forget, LOAD_WEIGHT, Load, Loaded, Swap};

/// The limits of the queue and of one statement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub waiting: Weight,
    pub batch: Weight,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Notify,
    limits: Limits,
}

#[derive(Default)]
struct State {
    claims: VecDeque<(u64, Swap)>,
    updates: VecDeque<(u64, Swap)>,
    loads: VecDeque<(u64, Load)>,
    forgets: VecDeque<(u64, Forget)>,
    weight: Weight,
    /// Numbers the calls in the order of their arrival.
    next: u64,
    /// Why new calls are refused.
    closed: Option<String>,
}

/// A batch for a worker.
pub(crate) enum Work {
    Claims(Vec<SwapGroup>),
    Updates(Vec<SwapGroup>),
    Loads(Vec<(RecordId, Vec<AnswerSender<Loaded>>)>),
    Forget(Forget),
}

/// Swaps of one id that expect the same version, or that the id is absent.
pub(crate) struct SwapGroup {
    pub first: Swap,
    pub followers: Vec<Swap>,
}

impl SwapGroup {
    fn new(first: Swap) -> Self {
        Self { first, followers: Vec::new() }
    }

    /// Replaces an abandoned first swap by a follower. Returns `false` if all of them were abandoned.
    pub(crate) fn is_wanted(&mut self) -> bool {
        if !self.first.answer.is_abandoned() {
            return true;
        }
        self.followers.retain(|follower| !follower.answer.is_abandoned());
        if self.followers.is_empty() {
            return false;
        }
        self.first = self.followers.remove(0);
        true
    }
}

/// A call.
#[expect(
    clippy::large_enum_variant,
    reason = "almost all of them are swaps, and boxing would cost every one"
)]
pub(crate) enum Job {
    Swap(Swap),
    Load(Load),
    Forget(Forget),
}

impl Job {
    fn weight(&self) -> Weight {
        match self {
            Self::Swap(swap) => swap.weight(),
            Self::Load(_) => LOAD_WEIGHT,
            Self::Forget(forget) => forget.weight(),
        }
    }

    /// Answers that the call was not carried out.
    fn fail(self, error: StoreError) {
        match self {
            Self::Swap(swap) => swap.answer.send(Err(error)),
            Self::Load(load) => load.answer.send(Err(error)),
            Self::Forget(forget) => forget.answer.send(Err(error)),
        }
    }
}

impl State {
    fn put(&mut self, job: Job) {
        self.weight = self.weight.plus(job.weight());
        let number = self.next;
        self.next += 1;
        match job {
            Job::Swap(swap) if swap.expect.is_none() => self.claims.push_back((number, swap)),
            Job::Swap(swap) => self.updates.push_back((number, swap)),
            Job::Load(load) => self.loads.push_back((number, load)),
            Job::Forget(forget) => self.forgets.push_back((number, forget)),
        }
    }

    fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.updates.is_empty() && self.loads.is_empty() && self.forgets.is_empty()
    }

    fn drain(&mut self) -> Vec<Job> {
        self.weight = Weight::default();
        let mut all: Vec<_> = self.claims.drain(..).map(|(_, swap)| Job::Swap(swap)).collect();
        all.extend(self.updates.drain(..).map(|(_, swap)| Job::Swap(swap)));
        all.extend(self.loads.drain(..).map(|(_, load)| Job::Load(load)));
        all.extend(self.forgets.drain(..).map(|(_, forget)| Job::Forget(forget)));
        all
    }

    fn took(&mut self, weight: Weight) {
        self.weight = self.weight.minus(weight);
    }

    /// Removes abandoned calls from the front of each kind, so that a kind with a front has a call to send.
    fn drop_abandoned(&mut self) {
        while let Some((_, swap)) = self.claims.pop_front_if(|(_, swap)| swap.answer.is_abandoned()) {
            self.took(swap.weight());
        }
        while let Some((_, swap)) = self.updates.pop_front_if(|(_, swap)| swap.answer.is_abandoned()) {
            self.took(swap.weight());
        }
        while self.loads.pop_front_if(|(_, load)| load.answer.is_abandoned()).is_some() {
            self.took(LOAD_WEIGHT);
        }
    }

    fn take(&mut self, limits: &Limits) -> Option<Work> {
        self.drop_abandoned();
        let fronts = [
            self.claims.front().map(|(number, _)| *number),
            self.updates.front().map(|(number, _)| *number),
            self.loads.front().map(|(number, _)| *number),
            self.forgets.front().map(|(number, _)| *number),
        ];
        let (kind, _) = fronts
            .iter()
            .enumerate()
            .filter_map(|(kind, number)| Some((kind, (*number)?)))
            .min_by_key(|(_, n)| *n)?;
        match kind {
            0 => Some(Work::Claims(self.take_claims(limits))),
            1 => Some(Work::Updates(self.take_updates(limits))),
            2 => Some(Work::Loads(self.take_loads(limits))),
            _ => {
                let (_, forget) = self.forgets.pop_front()?;
                self.took(forget.weight());
                Some(Work::Forget(forget))
            }
        }
    }

    fn take_claims(&mut self, limits: &Limits) -> Vec<SwapGroup> {
        let (mut batch, mut places, mut bytes) = (Vec::<SwapGroup>::new(), HashMap::new(), 0);
        while let Some((_, swap)) = self.claims.front() {
            let (weight, known) = (swap.row.record.len(), places.get(&swap.id).copied());
            let full = batch.len() >= limits.batch.rows || bytes + weight > limits.batch.bytes;
            // A follower adds nothing to the statement. Without batching there are no followers.
            if !batch.is_empty() && full && (known.is_none() || limits.batch.rows == 1) {
                break;
            }
            let Some((_, swap)) = self.claims.pop_front() else { break };
            self.took(swap.weight());
            if swap.answer.is_abandoned() {
                continue;
            }
            match known.and_then(|place: usize| batch.get_mut(place)) {
                Some(group) => group.followers.push(swap),
                None => {
                    bytes += weight;
                    places.insert(swap.id, batch.len());
                    batch.push(SwapGroup::new(swap));
                }
            }
        }
        batch
    }

    fn take_updates(&mut self, limits: &Limits) -> Vec<SwapGroup> {
        let (mut batch, mut places, mut bytes) = (Vec::<SwapGroup>::new(), HashMap::new(), 0);
        let mut later = VecDeque::new();
        while let Some((_, swap)) = self.updates.front() {
            let weight = swap.row.record.len();
            if !batch.is_empty() && (batch.len() >= limits.batch.rows || bytes + weight > limits.batch.bytes)
            {
                break;
            }
            let Some((number, swap)) = self.updates.pop_front() else { break };
            if swap.answer.is_abandoned() {
                self.took(swap.weight());
                continue;
            }
            match places.get(&swap.id).and_then(|place: &usize| batch.get_mut(*place)) {
                Some(group) if group.first.expect == swap.expect => {
                    self.took(swap.weight());
                    group.followers.push(swap);
                }
                // It expects another version, and stays queued for the next batch.
                Some(_) => later.push_back((number, swap)),
                None => {
                    self.took(swap.weight());
                    bytes += weight;
                    places.insert(swap.id, batch.len());
                    batch.push(SwapGroup::new(swap));
                }
            }
        }
        while let Some(entry) = later.pop_back() {
            self.updates.push_front(entry);
        }
        batch
    }

    fn take_loads(&mut self, limits: &Limits) -> Vec<(RecordId, Vec<AnswerSender<Loaded>>)> {
        let (mut batch, mut places) = (Vec::<(RecordId, Vec<AnswerSender<Loaded>>)>::new(), HashMap::new());
        while batch.len() < limits.batch.rows {
            let Some((_, load)) = self.loads.pop_front() else { break };
            self.took(LOAD_WEIGHT);
            if load.answer.is_abandoned() {
                continue;
            }
            let place = *places.entry(load.id).or_insert(batch.len());
            match batch.get_mut(place) {
                Some((_, answers)) => answers.push(load.answer),
                None => batch.push((load.id, vec![load.answer])),
            }
        }
        batch
    }
}

impl Queue {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { state: Mutex::new(State::default()), filled: Notify::new(), limits }
    }

    // No code in this file panics while the lock is held, so a poisoned lock guards a consistent state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a call, or refuses it where it exceeds the limit. An empty queue accepts a call of any weight: else a heavy
    /// one would be refused for ever.
    pub(crate) fn push(&self, job: Job) -> Result<(), StoreError> {
        let mut state = self.state();
        if let Some(reason) = &state.closed {
            return Err(StoreError::Unavailable { reason: reason.clone() });
        }
        if !state.weight.plus(job.weight()).fits(self.limits.waiting) && !state.is_empty() {
            return Err(StoreError::Overloaded { waiting: state.weight.rows });
        }
        state.put(job);
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// Returns a batch that was not sent, for another worker.
    pub(crate) fn give_back(&self, work: Work) {
        let jobs = work.into_jobs();
        let mut state = self.state();
        // No worker is left to take it.
        if state.closed.is_some() && self.is_abandoned(&state) {
            drop(state);
            return jobs.into_iter().for_each(|job| job.fail(unavailable(ABANDONED)));
        }
        jobs.into_iter().for_each(|job| state.put(job));
        drop(state);
        self.filled.notify_one();
    }

    fn is_abandoned(&self, state: &State) -> bool {
        state.closed.as_deref() == Some(ABANDONED)
    }

    /// Waits for a batch; `None` once the queue is closed and empty.
    pub(crate) async fn take(&self) -> Option<Work> {
        loop {
            let notified = self.filled.notified();
            {
                let mut state = self.state();
                if let Some(work) = state.take(&self.limits) {
                    let more = !state.is_empty();
                    drop(state);
                    if more {
                        self.filled.notify_one();
                    }
                    return Some(work);
                }
                if state.closed.is_some() {
                    drop(state);
                    // The next waiting worker must end as well.
                    self.filled.notify_one();
                    return None;
                }
            }
            notified.await;
        }
    }

    /// Refuses new calls. Queued calls are still sent.
    pub(crate) fn close(&self) {
        self.state().closed.get_or_insert_with(|| CLOSED.to_owned());
        self.filled.notify_one();
    }

    /// No worker is left: answers all queued calls that nothing was done.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        if state.closed.is_none() {
            state.closed = Some(ABANDONED.to_owned());
        }
        let waiting = state.drain();
        drop(state);
        waiting.into_iter().for_each(|job| job.fail(unavailable(ABANDONED)));
    }
}

const CLOSED: &str = "the store has been closed";
const ABANDONED: &str =
    "the store's tasks have ended, by a panic or with their runtime: restart the process, and see its log";

fn unavailable(reason: &str) -> StoreError {
    StoreError::Unavailable { reason: reason.to_owned() }
}

impl Work {
    fn into_jobs(self) -> Vec<Job> {
        match self {
            Self::Claims(batch) | Self::Updates(batch) => batch
                .into_iter()
                .flat_map(|SwapGroup { first, followers }| std::iter::once(first).chain(followers))
                .map(Job::Swap)
                .collect(),
            Self::Loads(batch) => batch
                .into_iter()
                .flat_map(|(id, answers)| {
                    answers.into_iter().map(move |answer| Job::Load(Load { id, answer }))
                })
                .collect(),
            Self::Forget(forget) => vec![Job::Forget(forget)],
        }
    }

    /// Answers all calls of the batch that nothing was done.
    pub(crate) fn fail(self, error: &StoreError) {
        self.into_jobs().into_iter().for_each(|job| job.fail(error.clone()));
    }
}
