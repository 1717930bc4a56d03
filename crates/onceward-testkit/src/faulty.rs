//! A store that fails as a test's plan says.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::codec::Unreadable;
use onceward::store::{Page, Scan, Seen, Store, StoreError, StoreFuture, Swapped, Version};
use onceward::{Record, RecordId, plumbing::time};
use tokio::sync::oneshot;

/// One of the four things that a store is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// `load`
    Load,
    /// `swap`
    Swap,
    /// `scan`
    Scan,
    /// `forget`
    Forget,
}

/// A call that may meet a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// What is asked for.
    pub method: Method,
    /// Its number among the calls of this method, from 1.
    pub nth: u64,
    /// Which record it is about, where it is about one.
    pub id: Option<RecordId>,
}

/// What a call meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing goes wrong.
    None,
    /// The store reports that it was not reached: nothing is written.
    Unavailable,
    /// The store reports that it is overloaded: nothing is written.
    Overloaded,
    /// The store does it, and the answer is lost.
    AnswerLost,
    /// The store never does it, and the answer is ambiguous.
    CallLost,
    /// The answer is ambiguous, and the store does it when [`FaultyStore::land`] is called.
    LandsWhenTold,
    /// The answer is ambiguous, and the store does it after this duration. Needs a tokio runtime.
    LandsAfter(Duration),
    /// There is no answer until [`FaultyStore::land`] is called. The store does it then, whether or not the caller still
    /// waits: a disk that does not sync, a transaction that waits for a lock.
    Stalls,
    /// The call is on its way for a while, and so is the answer.
    Slow {
        /// How long until the store does it.
        before: Duration,
        /// How long until the answer is there.
        after: Duration,
    },
    /// The store will not do it, now or later: nothing is written.
    Refused,
    /// Every record in the answer cannot be read. What is absent stays absent, and writes are written.
    Unreadable,
}

type Plan = Box<dyn FnMut(Call) -> Fault + Send>;
type Work<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;
type HeldCall = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Wraps any store; a plan says which call meets which fault.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    state: Mutex<State>,
}

struct State {
    plan: Plan,
    calls: [u64; 4],
    held_back: Vec<HeldCall>,
}

impl FaultyStore {
    /// Consults the plan for every call, in the order in which they are made.
    pub fn new(inner: impl Store, plan: impl FnMut(Call) -> Fault + Send + 'static) -> Self {
        let state = State { plan: Box::new(plan), calls: [0; 4], held_back: Vec::new() };
        Self { inner: Arc::new(inner), state: Mutex::new(state) }
    }

    /// Gives the listed calls their faults, and none to the others: `[(Method::Swap, 2, Fault::AnswerLost)]`.
    pub fn scripted(inner: impl Store, script: impl Into<Vec<(Method, u64, Fault)>>) -> Self {
        let script = script.into();
        Self::new(inner, move |call| {
            let planned = script.iter().find(|(method, nth, _)| (*method, *nth) == (call.method, call.nth));
            planned.map_or(Fault::None, |(_, _, fault)| *fault)
        })
    }

    /// Does what [`Fault::LandsWhenTold`] and [`Fault::Stalls`] held back, in the order in which it was asked for.
    pub async fn land(&self) {
        let calls = std::mem::take(&mut self.state().held_back);
        for call in calls {
            call.await;
        }
    }

    // A panic in a plan fails its test; the next call still gets its answer.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, method: Method, id: Option<RecordId>) -> Fault {
        let mut state = self.state();
        let nth = &mut state.calls[method as usize];
        *nth += 1;
        let call = Call { method, nth: *nth, id };
        (state.plan)(call)
    }

    fn call<T: Garble>(&self, method: Method, id: Option<RecordId>, work: Work<T>) -> StoreFuture<'_, T> {
        Box::pin(async move {
            let reason = |what: &str| format!("{what}, as the test asked");
            let ambiguous = || Err(StoreError::Ambiguous { reason: reason("the answer is lost") });
            match self.meet(method, id) {
                Fault::None => work.await,
                Fault::Unavailable => Err(StoreError::Unavailable { reason: reason("it is down") }),
                Fault::Overloaded => Err(StoreError::Overloaded { waiting: 0 }),
                Fault::Refused => Err(StoreError::Refused { reason: reason("it is too large") }),
                Fault::AnswerLost => work.await.and_then(|_| ambiguous()),
                Fault::CallLost => ambiguous(),
                Fault::LandsWhenTold => {
                    self.state().held_back.push(Box::pin(async move { drop(work.await) }));
                    ambiguous()
                }
                Fault::Stalls => {
                    let (answer, answered) = oneshot::channel();
                    // A caller that has gone away no longer wants its answer.
                    self.state().held_back.push(Box::pin(async move { drop(answer.send(work.await)) }));
                    answered.await.unwrap_or_else(|_| ambiguous())
                }
                Fault::LandsAfter(delay) => {
                    tokio::spawn(async move {
                        time::sleep(delay).await;
                        drop(work.await);
                    });
                    ambiguous()
                }
                Fault::Slow { before, after } => {
                    time::sleep(before).await;
                    let answer = work.await;
                    time::sleep(after).await;
                    answer
                }
                Fault::Unreadable => work.await.and_then(|answer| answer.garble(id)),
            }
        })
    }
}

impl Store for FaultyStore {
    fn load(&self, id: RecordId) -> StoreFuture<'_, Seen> {
        let inner = Arc::clone(&self.inner);
        self.call(Method::Load, Some(id), Box::pin(async move { inner.load(id).await }))
    }

    fn swap(&self, id: RecordId, expect: Option<Version>, next: Record) -> StoreFuture<'_, Swapped> {
        let inner = Arc::clone(&self.inner);
        self.call(Method::Swap, Some(id), Box::pin(async move { inner.swap(id, expect, next).await }))
    }

    fn scan(&self, scan: Scan) -> StoreFuture<'_, Page> {
        let inner = Arc::clone(&self.inner);
        self.call(Method::Scan, None, Box::pin(async move { inner.scan(scan).await }))
    }

    fn forget(&self, records: Vec<(RecordId, Version)>) -> StoreFuture<'_, usize> {
        let inner = Arc::clone(&self.inner);
        self.call(Method::Forget, None, Box::pin(async move { inner.forget(records).await }))
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").field("calls", &self.state().calls).finish_non_exhaustive()
    }
}

const DAMAGED: Unreadable = Unreadable::Damaged { how: "as the test asked" };

/// What each answer looks like when its records cannot be read.
trait Garble: Sized + Send + 'static {
    fn garble(self, id: Option<RecordId>) -> Result<Self, StoreError>;
}

impl Garble for Seen {
    fn garble(self, id: Option<RecordId>) -> Result<Self, StoreError> {
        match (&self.record, id) {
            (Some(stamped), Some(id)) => {
                Err(StoreError::Unreadable { id, version: stamped.version, why: DAMAGED })
            }
            (None, _) | (_, None) => Ok(self),
        }
    }
}

impl Garble for Swapped {
    fn garble(self, id: Option<RecordId>) -> Result<Self, StoreError> {
        match self {
            Self::Conflict(seen) => seen.garble(id).map(Self::Conflict),
            applied @ Self::Applied { .. } => Ok(applied),
        }
    }
}

impl Garble for Page {
    fn garble(mut self, _: Option<RecordId>) -> Result<Self, StoreError> {
        self.entries.iter_mut().for_each(|entry| entry.record = Err(DAMAGED));
        Ok(self)
    }
}

impl Garble for usize {
    fn garble(self, _: Option<RecordId>) -> Result<Self, StoreError> {
        Ok(self)
    }
}
