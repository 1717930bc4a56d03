//! A bounded queue between async tasks and the store's threads, drained a batch at a time.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::store::StoreError;
use onceward::store::driver::Weight;

/// An item of a queue.
pub(crate) trait Weigh {
    fn weight(&self) -> Weight;
}

/// Why a waiting thread was woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// Items were moved into the batch.
    Work,
    /// No item arrived before the timeout.
    TimedOut,
    /// Another thread called [`Queue::nudge`].
    Nudged,
    /// The queue is closed and empty.
    Closed,
}

/// This many gathered items wake the thread without waiting for their [`WakeOnDrop`].
const GATHERED_MAX: usize = 64;

/// A queue that is limited in rows and in bytes.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    limit: Weight,
}

struct State<T> {
    waiting: VecDeque<T>,
    weight: Weight,
    /// Threads that wait on the condition variable. Notifying is a system call, so it is skipped where none waits.
    parked: usize,
    /// Items are queued and may be taken.
    ready: bool,
    /// A thread should return, even if nothing is queued.
    nudged: bool,
    /// Why new items are refused.
    closed: Option<String>,
    abandoned: bool,
}

impl<T: Weigh> Queue<T> {
    pub(crate) fn new(limit: Weight) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            weight: Weight::default(),
            parked: 0,
            ready: false,
            nudged: false,
            closed: None,
            abandoned: false,
        };
        Self { state: Mutex::new(state), filled: Condvar::new(), limit }
    }

    // No code in this file panics while the lock is held, so a poisoned lock guards a consistent state.
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an item, or refuses it where it exceeds the limit. An empty queue accepts an item of any weight: else a heavy
    /// item would be refused for ever.
    pub(crate) fn push(&self, item: T) -> Result<(), StoreError> {
        self.put(item).map(|state| self.wake(state))
    }

    /// Appends an item without waking the thread. The thread wakes when the returned [`WakeOnDrop`] is dropped, so that
    /// other tasks can append theirs first.
    pub(crate) fn gather(&self, item: T) -> Result<WakeOnDrop<'_, T>, StoreError> {
        let state = self.put(item)?;
        if state.waiting.len() >= GATHERED_MAX && !state.ready {
            self.wake(state);
        }
        Ok(WakeOnDrop(self))
    }

    fn put(&self, item: T) -> Result<MutexGuard<'_, State<T>>, StoreError> {
        let mut state = self.state();
        if let Some(reason) = &state.closed {
            return Err(StoreError::Unavailable { reason: reason.clone() });
        }
        let weight = state.weight.plus(item.weight());
        if !weight.fits(self.limit) && !state.waiting.is_empty() {
            return Err(StoreError::Overloaded { waiting: state.waiting.len() });
        }
        state.weight = weight;
        state.waiting.push_back(item);
        Ok(state)
    }

    fn wake(&self, mut state: MutexGuard<'_, State<T>>) {
        state.ready = true;
        let wake = state.parked > 0;
        drop(state);
        if wake {
            self.filled.notify_one();
        }
    }

    /// Waits for items and moves as many into the batch as fit `most`, at least one. Returns `false` once the queue is
    /// closed and empty.
    #[must_use]
    pub(crate) fn take(&self, most: Weight, into: &mut impl Extend<T>) -> bool {
        loop {
            match self.take_within(Duration::MAX, most, into) {
                Wakeup::Work => return true,
                Wakeup::Closed => return false,
                Wakeup::TimedOut | Wakeup::Nudged => {}
            }
        }
    }

    /// Like [`take`](Self::take), but also returns after the timeout or a [nudge](Self::nudge), without items.
    pub(crate) fn take_within(&self, timeout: Duration, most: Weight, into: &mut impl Extend<T>) -> Wakeup {
        let mut state = self.state();
        while !state.ready {
            if state.closed.is_some() {
                return Wakeup::Closed;
            }
            if std::mem::take(&mut state.nudged) {
                return Wakeup::Nudged;
            }
            state.parked += 1;
            let (next, waited) =
                self.filled.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.parked -= 1;
            if waited.timed_out() && !state.ready && state.closed.is_none() {
                return Wakeup::TimedOut;
            }
        }
        let mut taken = Weight::default();
        while let Some(first) = state.waiting.front() {
            let weight = taken.plus(first.weight());
            if !weight.fits(most) && taken.rows > 0 {
                break;
            }
            taken = weight;
            into.extend(state.waiting.pop_front());
        }
        state.weight = state.weight.minus(taken);
        state.ready = !state.waiting.is_empty();
        Wakeup::Work
    }

    /// The error for a new item, if the queue is closed.
    pub(crate) fn check_open(&self) -> Result<(), StoreError> {
        match &self.state().closed {
            Some(reason) => Err(StoreError::Unavailable { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Wakes a thread that waits, even if nothing is queued.
    pub(crate) fn nudge(&self) {
        self.state().nudged = true;
        self.filled.notify_all();
    }

    /// Refuses new items. Queued items are still taken.
    pub(crate) fn close(&self, reason: &str) {
        let mut state = self.state();
        state.closed.get_or_insert_with(|| reason.to_owned());
        state.ready = !state.waiting.is_empty();
        drop(state);
        self.filled.notify_all();
    }

    /// Refuses new items, and returns the queued ones, which no thread will take.
    pub(crate) fn abandon(&self, reason: &str) -> VecDeque<T> {
        let mut state = self.state();
        state.closed.get_or_insert_with(|| reason.to_owned());
        state.abandoned = true;
        state.ready = false;
        state.weight = Weight::default();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.filled.notify_all();
        waiting
    }

    /// Whether the queue was abandoned.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.state().abandoned
    }
}

/// Wakes the thread when it is dropped, also by a caller that is cancelled.
#[must_use]
pub(crate) struct WakeOnDrop<'q, T: Weigh>(&'q Queue<T>);

impl<T: Weigh> Drop for WakeOnDrop<'_, T> {
    fn drop(&mut self) {
        let state = self.0.state();
        if !state.ready && !state.waiting.is_empty() {
            self.0.wake(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Item(usize);

    impl Weigh for Item {
        fn weight(&self) -> Weight {
            Weight { rows: 1, bytes: self.0 }
        }
    }

    fn queue(rows: usize, bytes: usize) -> Queue<Item> {
        Queue::new(Weight { rows, bytes })
    }

    #[test]
    fn a_queue_takes_as_many_as_its_limit_and_sheds_the_next() {
        let queue = queue(2, 100);
        assert_eq!(queue.push(Item(1)), Ok(()));
        assert_eq!(queue.push(Item(1)), Ok(()));
        assert_eq!(queue.push(Item(1)), Err(StoreError::Overloaded { waiting: 2 }));
    }

    #[test]
    fn a_queue_is_bounded_in_bytes_but_takes_one_of_any_size() {
        let queue = queue(10, 100);
        assert_eq!(queue.push(Item(1000)), Ok(()));
        assert_eq!(queue.push(Item(1)), Err(StoreError::Overloaded { waiting: 1 }));
        let mut batch = Vec::new();
        assert!(queue.take(Weight { rows: 10, bytes: 10 }, &mut batch));
        assert_eq!(queue.push(Item(1)), Ok(()));
    }

    #[test]
    fn a_batch_is_bounded_by_rows_and_by_bytes() {
        let queue = queue(100, 10_000);
        for _ in 0..5 {
            queue.push(Item(10)).unwrap();
        }
        let mut batch = Vec::new();
        assert!(queue.take(Weight { rows: 2, bytes: 1000 }, &mut batch));
        assert_eq!(batch.len(), 2);
        batch.clear();
        assert!(queue.take(Weight { rows: 10, bytes: 25 }, &mut batch));
        assert_eq!(batch.len(), 2);
    }

    #[test]
    fn a_closed_queue_is_worked_off_and_takes_no_more() {
        let queue = queue(10, 100);
        queue.push(Item(1)).unwrap();
        queue.close("over");
        assert_eq!(queue.push(Item(1)), Err(StoreError::Unavailable { reason: "over".to_owned() }));
        let mut batch = Vec::new();
        assert!(queue.take(Weight { rows: 10, bytes: 10 }, &mut batch));
        assert!(!queue.take(Weight { rows: 10, bytes: 10 }, &mut batch));
        assert_eq!(batch.len(), 1);
    }

    /// What a thread gets that does not wait.
    fn taken(queue: &Queue<Item>) -> (Wakeup, usize) {
        let mut batch = Vec::new();
        let taken = queue.take_within(Duration::ZERO, Weight { rows: 1000, bytes: 1000 }, &mut batch);
        (taken, batch.len())
    }

    #[test]
    fn what_is_gathered_is_taken_together_when_the_first_bell_rings() {
        let queue = queue(10, 100);
        let bells = [queue.gather(Item(1)).unwrap(), queue.gather(Item(1)).unwrap()];
        assert_eq!(taken(&queue), (Wakeup::TimedOut, 0));
        let [first, second] = bells;
        drop(second);
        assert_eq!(taken(&queue), (Wakeup::Work, 2));
        drop(first);
        assert_eq!(taken(&queue), (Wakeup::TimedOut, 0));
    }

    #[test]
    fn what_is_gathered_does_not_wait_for_its_bell_when_something_else_is_urgent() {
        let queue = queue(10, 100);
        let _bell = queue.gather(Item(1)).unwrap();
        queue.push(Item(1)).unwrap();
        assert_eq!(taken(&queue), (Wakeup::Work, 2));
    }

    #[test]
    fn as_much_as_is_gathered_at_most_does_not_wait_for_its_bell() {
        let queue = queue(1000, 1000);
        let bells: Vec<_> = (1..GATHERED_MAX).map(|_| queue.gather(Item(1)).unwrap()).collect();
        assert_eq!(taken(&queue), (Wakeup::TimedOut, 0));
        let _last = queue.gather(Item(1)).unwrap();
        assert_eq!(taken(&queue), (Wakeup::Work, GATHERED_MAX));
        drop(bells);
    }

    #[test]
    fn what_is_gathered_when_the_queue_is_closed_is_worked_off() {
        let queue = queue(10, 100);
        let _bell = queue.gather(Item(1)).unwrap();
        queue.close("over");
        assert_eq!(taken(&queue), (Wakeup::Work, 1));
        assert_eq!(taken(&queue), (Wakeup::Closed, 0));
    }
}
