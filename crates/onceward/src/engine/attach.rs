//! Waiting for somebody else's execution: woken at once in this process, by polling across processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio::sync::Semaphore;

use crate::RecordId;
use crate::time::sleep;

/// The first poll comes soon, because most executions are short.
const POLL_FIRST: Duration = Duration::from_millis(25);
/// Later ones come at most this far apart, so that an answer from another process is at most this late.
const POLL_MAX: Duration = Duration::from_millis(500);

/// Stands for one execution: a semaphore without permits that is closed when it ends. Closing wakes everybody who waits,
/// first come first served, and whoever comes later does not wait at all. (A watch channel wakes in random order, which
/// simulations could not repeat.)
pub(crate) type Execution = Arc<Semaphore>;

/// The executions that run in this process, and those that ended and whose outcome is not stored yet.
pub(crate) struct Running(Mutex<HashMap<RecordId, Execution, FixedState>>);

/// Stands for one tenure, from the claim until its outcome is stored or given up.
pub(crate) struct Tenancy {
    running: Arc<Running>,
    id: RecordId,
    execution: Execution,
}

/// Wakes everybody who waits for an execution when it is dropped.
pub(crate) struct Wake(Execution);

impl Running {
    /// `seed` keys the hash, so that nobody can choose keys that all fall into one slot.
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(HashMap::with_hasher(FixedState::with_seed(seed)))))
    }

    /// A tenure begins, and its execution.
    pub(crate) fn begin(self: &Arc<Self>, id: RecordId) -> (Tenancy, Wake) {
        let execution = Arc::new(Semaphore::new(0));
        self.map().insert(id, execution.clone());
        (Tenancy { running: self.clone(), id, execution: execution.clone() }, Wake(execution))
    }

    /// What ends when the execution does, if it runs here.
    pub(crate) fn attach(&self, id: RecordId) -> Option<Execution> {
        self.map().get(&id).filter(|execution| !execution.is_closed()).cloned()
    }

    /// Whether there is a tenure here.
    #[cfg(feature = "http")]
    pub(crate) fn has(&self, id: RecordId) -> bool {
        self.map().contains_key(&id)
    }

    // A panic while the lock is held cannot leave the map half changed.
    fn map(&self) -> MutexGuard<'_, HashMap<RecordId, Execution, FixedState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        let mut map = self.running.map();
        // A later tenure of the same id may have begun meanwhile; only one's own entry goes.
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
    /// It is time to ask the store.
    Poll,
}

/// How long until the next poll, twice as long each time.
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
                    // There is never a permit: this returns when the execution has ended.
                    _ = execution.acquire() => Woken::Ended,
                    () = sleep(POLL_MAX.min(remaining)) => Woken::Poll,
                }
            }
        }
    }
}
