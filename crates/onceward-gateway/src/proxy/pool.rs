//! Lines that no request uses, the last used first.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use onceward::time::{Instant, instant, sleep};

use super::Sendable;
use super::line::Line;

/// The lines that no request uses at the moment.
pub(super) struct Pool<B: Sendable> {
    idle: Mutex<VecDeque<Idle<B>>>,
    most: usize,
    longest: Duration,
}

struct Idle<B: Sendable> {
    line: Line<B>,
    since: Instant,
}

impl<B: Sendable> Pool<B> {
    /// `most` lines are kept, each for `longest`. Must be called within a runtime, where old lines are then closed.
    pub(super) fn new(most: usize, longest: Duration) -> Arc<Self> {
        let pool = Arc::new(Self { idle: Mutex::default(), most, longest });
        tokio::spawn(close_old_ones(Arc::downgrade(&pool), longest));
        pool
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle<B>>> {
        // A panic while the lock is held cannot leave half a line.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line that was used last, if it is still open. Those that are not are dropped on the way.
    pub(super) async fn take(&self) -> Option<Line<B>> {
        poll_fn(|context| {
            loop {
                let Some(Idle { mut line, since }) = self.idle().pop_back() else { return Poll::Ready(None) };
                if instant().duration_since(since) < self.longest && line.is_usable(context) {
                    return Poll::Ready(Some(line));
                }
            }
        })
        .await
    }

    /// Takes a line back whose answer was read to its end.
    pub(super) fn give_back(&self, line: Line<B>) {
        if !line.is_idle() {
            return;
        }
        let line = Idle { line, since: instant() };
        let mut idle = self.idle();
        idle.push_back(line);
        let surplus = if idle.len() > self.most { idle.pop_front() } else { None };
        drop(idle);
        drop(surplus);
    }

    /// Closes the oldest idle lines where they and those in use would be too many together.
    pub(super) fn make_room(&self, in_use: usize) {
        let mut idle = self.idle();
        let surplus = idle.len().saturating_sub(self.most.saturating_sub(in_use));
        let surplus: Vec<Idle<B>> = idle.drain(..surplus).collect();
        drop(idle);
        drop(surplus);
    }

    fn close_old(&self) {
        let now = instant();
        let mut idle = self.idle();
        let young = idle.iter().position(|line| now.duration_since(line.since) < self.longest);
        let old: Vec<Idle<B>> = match young {
            Some(young) => idle.drain(..young).collect(),
            None => idle.drain(..).collect(),
        };
        drop(idle);
        drop(old);
    }
}

async fn close_old_ones<B: Sendable>(pool: Weak<Pool<B>>, every: Duration) {
    loop {
        sleep(every).await;
        match pool.upgrade() {
            Some(pool) => pool.close_old(),
            None => return,
        }
    }
}
