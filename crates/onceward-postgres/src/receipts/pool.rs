//! A few connections, made when they are needed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward::plumbing::time::sleep;
use onceward::receipts::TableError;
use tokio::sync::Semaphore;
use tokio_postgres::SimpleQueryRow;

use super::error::{Circumstances, unavailable};
use crate::connection::{BatchError, Connection, Dialer};

pub(super) struct Pool {
    dialer: Dialer,
    /// A connection that is busy belongs to its call. If the call is dropped, so is the connection: the server still carries
    /// out or undoes all of the batch.
    idle: Mutex<Vec<Connection>>,
    places: Semaphore,
    circumstances: Circumstances,
}

impl Pool {
    pub(super) fn new(dialer: Dialer, connections: usize, circumstances: Circumstances) -> Self {
        Self { dialer, idle: Mutex::default(), places: Semaphore::new(connections), circumstances }
    }

    /// Sends statements as one transaction, and waits until it is committed. They must do no harm if they are sent twice.
    pub(super) async fn batch(&self, sql: &str) -> Result<Vec<Vec<SimpleQueryRow>>, TableError> {
        let wait = self.circumstances.answer_timeout;
        let _place = tokio::select! {
            biased;
            place = self.places.acquire() => place.map_err(|_| unavailable("the receipt table was closed"))?,
            () = sleep(wait) => {
                return Err(unavailable(format!(
                    "every connection of the receipt table was busy for {wait:?}: handlers keep transactions open"
                )));
            }
        };
        let idle = self.take_idle();
        let reused = idle.is_some();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let mut answer = connection.batch(sql).await;
        if reused && matches!(answer, Err(BatchError::Server(_))) && !connection.is_usable() {
            // A server that was restarted has closed all of them, which may be noticed only by the first call.
            self.idle().clear();
            connection = self.connect().await?;
            answer = connection.batch(sql).await;
        }
        if connection.is_usable() {
            self.idle().push(connection);
        }
        answer.map_err(|failed| self.circumstances.explain(&failed))
    }

    async fn connect(&self) -> Result<Connection, TableError> {
        self.dialer.connect().await.map_err(|failed| unavailable(failed.reason))
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle();
        idle.retain(Connection::is_usable);
        idle.pop()
    }

    // A panic while the lock is held cannot leave a partial connection.
    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
