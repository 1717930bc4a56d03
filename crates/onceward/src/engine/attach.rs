//! Waiting for another caller's execution: woken when it ends in this process, by polling where it runs in another one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio::sync::Semaphore;

use crate::RecordId;
use crate::time::sleep;

/// The first poll. It is early, because most executions are short.
const POLL_FIRST: Duration = Duration::from_millis(25);
/// The longest time between polls. An answer from another process is at most this late.
const POLL_MAX: Duration = Duration::from_millis(500);

/// One execution: a semaphore without permits that is closed when the execution ends. Closing it wakes all waiting tasks in
/// the order in which they came, and later ones do not wait. (A watch channel wakes in random order, which simulations could
/// not repeat.)
pub(crate) type Execution = Arc<Semaphore>;

/// The executions of this process, until their outcome is stored or given up.
pub(crate) struct LocalExecutions(Mutex<HashMap<RecordId, Execution, FixedState>>);

/// One tenure of this process, from the claim until its outcome is stored or given up.
pub(crate) struct LocalTenure {
    executions: Arc<LocalExecutions>,
    id: RecordId,
    execution: Execution,
}

/// Wakes all tasks that wait for an execution when it is dropped.
pub(crate) struct WakeOnDrop(Execution);

impl LocalExecutions {
    /// `seed` keys the hash, so that clients cannot choose keys that all fall into one slot.
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(HashMap::with_hasher(FixedState::with_seed(seed)))))
    }

    /// Registers a tenure and its execution.
    pub(crate) fn begin(self: &Arc<Self>, id: RecordId) -> (LocalTenure, WakeOnDrop) {
        let execution = Arc::new(Semaphore::new(0));
        self.map().insert(id, execution.clone());
        (LocalTenure { executions: self.clone(), id, execution: execution.clone() }, WakeOnDrop(execution))
    }

    /// The execution, if it runs here now.
    pub(crate) fn attach(&self, id: RecordId) -> Option<Execution> {
        self.map().get(&id).filter(|execution| !execution.is_closed()).cloned()
    }

    /// Whether a tenure of this operation is registered.
    #[cfg(feature = "http")]
    pub(crate) fn has(&self, id: RecordId) -> bool {
        self.map().contains_key(&id)
    }

    // A panic while the lock is held cannot leave the map half changed.
    fn map(&self) -> MutexGuard<'_, HashMap<RecordId, Execution, FixedState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Drop for LocalTenure {
    fn drop(&mut self) {
        let mut map = self.executions.map();
        // The entry may belong to a later tenure of the same id by now.
        if map.get(&self.id).is_some_and(|entry| Arc::ptr_eq(entry, &self.execution)) {
            map.remove(&self.id);
        }
    }
}

/// Why waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The execution ended in this process.
    Ended,
    /// It is time to read the record again.
    Poll,
}

/// The time until the next poll, which doubles each time.
pub(crate) struct Pace(Duration);

impl Pace {
    pub(crate) const fn new() -> Self {
        Self(POLL_FIRST)
    }

    /// Waits for the execution's end, the next poll or `remaining`, whichever comes first.
    pub(crate) async fn wait(&mut self, running: Option<Execution>, remaining: Duration) -> Woken {
        let pause = self.0.min(remaining);
        self.0 = (self.0 * 2).min(POLL_MAX);
        match running {
            None => {
                sleep(pause).await;
                Woken::Poll
            }
            Some(execution) => {
                tokio::select! {
                    biased;
                    // It has no permits, so this returns when it is closed.
                    _ = execution.acquire() => Woken::Ended,
                    () = sleep(POLL_MAX.min(remaining)) => Woken::Poll,
                }
            }
        }
    }
}
