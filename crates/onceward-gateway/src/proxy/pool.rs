//! Connections that no request uses: reusable ones, the last used first, and those of ended requests, which only stay open for a
//! while.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use onceward::plumbing::time::{Instant, instant, sleep};

use super::Sendable;
use super::connection::Connection;
use super::wire::Wire;

/// How long the connection of an ended request stays open. A handler may still work after its answer, and servers such as uvicorn
/// cancel it when the client goes away. Servers keep idle connections for longer by default, so they do not close first.
const KEEP_ENDED: Duration = Duration::from_secs(1);

/// The connections that no request uses at the moment.
pub(super) struct Pool<B: Sendable> {
    idle: Mutex<VecDeque<Idle<B>>>,
    /// Connections that were made for one request, the oldest first. They are not used again.
    ended: Mutex<VecDeque<Ended>>,
    most: usize,
    longest: Duration,
}

struct Idle<B: Sendable> {
    connection: Connection<B>,
    since: Instant,
}

struct Ended {
    wire: Wire,
    since: Instant,
}

impl<B: Sendable> Pool<B> {
    /// A pool of at most `most` connections, each kept for `longest`. Must be called within a runtime, where a task closes old ones.
    pub(super) fn new(most: usize, longest: Duration) -> Arc<Self> {
        let pool = Arc::new(Self { idle: Mutex::default(), ended: Mutex::default(), most, longest });
        tokio::spawn(close_old_periodically(Arc::downgrade(&pool), longest.min(KEEP_ENDED)));
        pool
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle<B>>> {
        // A panic while the lock is held cannot leave half a connection.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last and is still open. Closed ones are dropped on the way.
    pub(super) async fn take(&self) -> Option<Connection<B>> {
        poll_fn(|context| {
            loop {
                let Some(Idle { mut connection, since }) = self.idle().pop_back() else {
                    return Poll::Ready(None);
                };
                if instant().duration_since(since) < self.longest && connection.is_usable(context) {
                    return Poll::Ready(Some(connection));
                }
            }
        })
        .await
    }

    /// Takes back a connection whose answer was read to its end.
    pub(super) fn give_back(&self, connection: Connection<B>) {
        if !connection.is_idle() {
            return;
        }
        let connection = Idle { connection, since: instant() };
        let mut idle = self.idle();
        idle.push_back(connection);
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

    /// Closes the oldest connections, those of ended requests first, if they and `in_use` are more than the limit. `in_use` includes
    /// the connection that is about to be opened.
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
        let young = idle.iter().position(|connection| now.duration_since(connection.since) < self.longest);
        let old: Vec<Idle<B>> = match young {
            Some(young) => idle.drain(..young).collect(),
            None => idle.drain(..).collect(),
        };
        drop(idle);
        drop(old);
        let mut ended = self.ended();
        let count = ended.partition_point(|ended| now.duration_since(ended.since) >= KEEP_ENDED);
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

async fn close_old_periodically<B: Sendable>(pool: Weak<Pool<B>>, every: Duration) {
    loop {
        sleep(every).await;
        match pool.upgrade() {
            Some(pool) => pool.close_old(),
            None => return,
        }
    }
}
