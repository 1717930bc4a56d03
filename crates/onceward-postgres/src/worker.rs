//! One connection and the task that works with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onceward::Clock;
use onceward::time::sleep;

use crate::doubts::Doubts;
use crate::error::Failed;
use crate::link::{Dialer, Link};
use crate::queue::Queue;
use crate::quiet::Quiet;
use crate::statements::Statements;
use crate::statistics::Counters;
use crate::values::At;

/// A server that has no connection left for us is not asked for one more often than this while others work.
const PAUSE: Duration = Duration::from_millis(500);

/// What all tasks of a store have in common.
pub(crate) struct Shared {
    pub dialer: Dialer,
    pub statements: Statements,
    pub queue: Queue,
    pub counters: Arc<Counters>,
    pub clock: Option<Arc<dyn Clock>>,
    pub quiet: Quiet,
    pub doubts: Doubts,
    /// How many of the tasks that take from the queue have a connection.
    pub connected: AtomicUsize,
    /// How many tasks take from the queue.
    pub lanes: AtomicUsize,
}

/// What a task is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It takes from the queue.
    Batches,
    /// It lists.
    Lists,
}

/// A task's connection, if it has one.
pub(crate) struct Lane {
    shared: Arc<Shared>,
    role: Role,
    link: Option<Connected>,
}

struct Connected {
    link: Link,
    role: Role,
    shared: Arc<Shared>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        if self.role == Role::Batches {
            self.shared.connected.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Lane {
    pub(crate) fn new(shared: Arc<Shared>, role: Role) -> Self {
        Self { shared, role, link: None }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.shared.queue
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The time that statements are given, where a test gives it.
    pub(crate) fn now(&self) -> Option<At> {
        self.shared.clock.as_ref().map(|clock| At(clock.now()))
    }

    /// The connection, made anew if it was lost.
    pub(crate) async fn link(&mut self) -> Result<&mut Link, Failed> {
        self.link.take_if(|connected| !connected.link.is_usable());
        let connected = match self.link.take() {
            Some(connected) => connected,
            None => {
                let link = self.shared.dialer.connect().await?;
                if self.role == Role::Batches {
                    self.shared.connected.fetch_add(1, Ordering::Relaxed);
                }
                Connected { link, role: self.role, shared: self.shared.clone() }
            }
        };
        Ok(&mut self.link.insert(connected).link)
    }

    /// Takes batches until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        let _ended = Ended(self.shared.clone());
        while let Some(work) = self.shared.clone().queue.take().await {
            let connected = self.link().await.map(drop);
            match connected {
                Ok(()) => self.carry_out(work).await,
                // Nothing was sent. Where another task has a connection, it does this too.
                Err(_) if self.shared.connected.load(Ordering::Relaxed) > 0 => {
                    self.shared.queue.give_back(work);
                    sleep(PAUSE).await;
                }
                Err(failed) => work.fail(&failed.of_read()),
            }
        }
    }
}

/// Tells those who wait when the last task has ended, by a panic too: nobody may wait for a task that is gone.
pub(crate) struct Ended(pub Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        if self.0.lanes.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.queue.abandon();
        }
    }
}
