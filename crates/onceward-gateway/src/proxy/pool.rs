//! Connections that no request uses: lines that may be used again, the last used first, and connections of ended requests.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use onceward::plumbing::time::{Instant, instant, sleep};

use super::Sendable;
use super::line::Line;
use super::wire::Wire;

/// How long the connection of an ended request stays open. A handler may still work after its answer, and servers such as uvicorn
/// cancel it when the client goes away. Servers keep idle connections for longer by default, so they do not close first.
const AFTER_ANSWER: Duration = Duration::from_secs(1);

/// The connections that no request uses at the moment.
pub(super) struct Pool<B: Sendable> {
    idle: Mutex<VecDeque<Idle<B>>>,
    /// Connections of requests that had one of their own, the oldest first. They are not used again.
    ended: Mutex<VecDeque<Ended>>,
    most: usize,
    longest: Duration,
}

struct Idle<B: Sendable> {
    line: Line<B>,
    since: Instant,
}

struct Ended {
    wire: Wire,
    since: Instant,
}

impl<B: Sendable> Pool<B> {
    /// `most` lines are kept, each for `longest`. Must be called within a runtime, where old lines are then closed.
    pub(super) fn new(most: usize, longest: Duration) -> Arc<Self> {
        let pool = Arc::new(Self { idle: Mutex::default(), ended: Mutex::default(), most, longest });
        tokio::spawn(close_old_ones(Arc::downgrade(&pool), longest.min(AFTER_ANSWER)));
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

    /// Keeps the connection of an ended request open for a while, and then resets it. The side that closes a connection first keeps
    /// its port for a minute (TIME-WAIT), and a gateway that connects for each keyed request would run out of ports. After a
    /// reset neither side keeps anything.
    pub(super) fn keep_ended(&self, wire: Wire) {
        let mut ended = self.ended();
        ended.push_back(Ended { wire, since: instant() });
        let surplus = if ended.len() > self.most { ended.pop_front() } else { None };
        drop(ended);
        surplus.into_iter().for_each(Ended::reset);
    }

    fn ended(&self) -> MutexGuard<'_, VecDeque<Ended>> {
        // A panic while the lock is held cannot leave half a connection.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the oldest connections where they and those in use, which count the one to be opened, would be too many: first those
    /// of ended requests.
    pub(super) fn make_room(&self, in_use: usize) {
        let room = self.most.saturating_sub(in_use);
        let mut idle = self.idle();
        let mut ended = self.ended();
        let surplus = (idle.len() + ended.len()).saturating_sub(room);
        let from_ended = surplus.min(ended.len());
        let surplus_ended: Vec<Ended> = ended.drain(..from_ended).collect();
        drop(ended);
        let surplus_idle: Vec<Idle<B>> = idle.drain(..surplus - from_ended).collect();
        drop(idle);
        surplus_ended.into_iter().for_each(Ended::reset);
        drop(surplus_idle);
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
        let mut ended = self.ended();
        let count = ended.partition_point(|ended| now.duration_since(ended.since) >= AFTER_ANSWER);
        let over: Vec<Ended> = ended.drain(..count).collect();
        drop(ended);
        over.into_iter().for_each(Ended::reset);
    }
}

impl Ended {
    fn reset(self) {
        self.wire.reset();
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
