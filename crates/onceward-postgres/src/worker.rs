//! A worker: a task that owns one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onceward::plumbing::time::sleep;
use onceward::store::Clock;

use crate::connection::{Connection, Dialer};
use crate::error::StatementError;
use crate::queue::Queue;
use crate::statements::Statements;
use crate::statistics::Counters;
use crate::swept_minutes::SweptMinutes;
use crate::unconfirmed::UnconfirmedWrites;
use crate::values::At;

/// The pause before another attempt to connect, while other workers are connected: the server may have no connection left.
const PAUSE: Duration = Duration::from_millis(500);

/// What all workers of a store share.
pub(crate) struct WorkerContext {
    pub dialer: Dialer,
    pub statements: Statements,
    pub queue: Queue,
    pub counters: Arc<Counters>,
    pub clock: Option<Arc<dyn Clock>>,
    pub swept: SweptMinutes,
    pub unconfirmed: UnconfirmedWrites,
    /// The number of connected workers that take batches.
    pub connected: AtomicUsize,
    /// The number of workers that take batches.
    pub workers: AtomicUsize,
}

/// What a worker does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It takes batches from the queue.
    Batches,
    /// It serves scans.
    Lists,
}

/// A worker and its connection, if it has one.
pub(crate) struct Worker {
    context: Arc<WorkerContext>,
    role: Role,
    connection: Option<CountedConnection>,
}

/// A connection that counts in [`WorkerContext::connected`] while it exists.
struct CountedConnection {
    connection: Connection,
    role: Role,
    context: Arc<WorkerContext>,
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        if self.role == Role::Batches {
            self.context.connected.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Worker {
    pub(crate) fn new(context: Arc<WorkerContext>, role: Role) -> Self {
        Self { context, role, connection: None }
    }

    pub(crate) fn context(&self) -> Arc<WorkerContext> {
        self.context.clone()
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.context.queue
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.context.counters
    }

    /// The time of the test's clock, if there is one.
    pub(crate) fn now(&self) -> Option<At> {
        self.context.clock.as_ref().map(|clock| At(clock.now()))
    }

    /// The connection, which is made again if it was lost.
    pub(crate) async fn connection(&mut self) -> Result<&mut Connection, StatementError> {
        self.connection.take_if(|connected| !connected.connection.is_usable());
        let connected = match self.connection.take() {
            Some(connected) => connected,
            None => {
                let connection = self.context.dialer.connect().await?;
                if self.role == Role::Batches {
                    self.context.connected.fetch_add(1, Ordering::Relaxed);
                }
                CountedConnection { connection, role: self.role, context: self.context.clone() }
            }
        };
        Ok(&mut self.connection.insert(connected).connection)
    }

    /// Carries out batches until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        let _ended = OnWorkerEnd(self.context.clone());
        while let Some(work) = self.context.clone().queue.take().await {
            let connected = self.connection().await.map(drop);
            match connected {
                Ok(()) => self.carry_out(work).await,
                // Nothing was sent. A worker that is connected takes the batch instead.
                Err(_) if self.context.connected.load(Ordering::Relaxed) > 0 => {
                    self.context.queue.give_back(work);
                    sleep(PAUSE).await;
                }
                Err(failed) => work.fail(&failed.of_read()),
            }
        }
    }
}

/// Abandons the queue when the last worker has ended, also by a panic, so that no caller waits for ever.
pub(crate) struct OnWorkerEnd(pub Arc<WorkerContext>);

impl Drop for OnWorkerEnd {
    fn drop(&mut self) {
        if self.0.workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.queue.abandon();
        }
    }
}
