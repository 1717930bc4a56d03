//! Accepting connections, as many as there are places for, until the gateway stops. Both the clients' and the operators'
//! listener are served by this.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use onceward::plumbing::time::sleep;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinSet};

/// The pause after a failed accept. Where file descriptors or memory have run out, accepting fails again until a connection
/// ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Where connections come in.
#[derive(Debug)]
pub struct Listener {
    /// The socket that listens.
    pub socket: TcpListener,
    /// Connections at once. Beyond, they wait in the kernel's queue.
    pub connections_max: usize,
    /// Logs that no connection can be accepted. It is tried again after a pause.
    pub log_failure: fn(&io::Error),
}

/// A connection that was accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: TcpStream,
    /// Its client.
    pub address: SocketAddr,
    /// Its place among the connections, which is free again when this is dropped.
    pub place: OwnedSemaphorePermit,
    /// Resolves when the listener stops.
    pub stopping: Stopping,
}

/// Waits for the listener's stop.
#[derive(Debug)]
pub struct Stopping(watch::Receiver<Phase>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Stopping,
}

/// How a listener ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Everything in flight was answered.
    Drained,
    /// The time was over, and connections were cut off.
    CutOff {
        /// How many.
        connections: usize,
    },
}

impl Listener {
    /// Serves each connection in a task of its own until `stop`. Then it takes no new ones, waits until every place is free or
    /// `cut` ends, which is polled only from then on, and returns.
    pub async fn serve<F>(
        self,
        connection: impl Fn(Accepted) -> F,
        stop: impl Future<Output = ()>,
        cut: impl Future<Output = ()>,
    ) -> Ended
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let all = u32::try_from(self.connections_max).unwrap_or(u32::MAX);
        let places = Arc::new(Semaphore::new(all as usize));
        let (phase, stopping) = watch::channel(Phase::Open);
        let mut connections = JoinSet::new();
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.as_mut() => break,
                Some(ended) = connections.join_next() => {
                    log_panic(ended);
                    continue;
                }
                accepted = self.accept(&places) => accepted,
            };
            let (place, (stream, address)) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.pause_after(&error).await;
                    continue;
                }
            };
            if let Err(error) = stream.set_nodelay(true) {
                // The client is gone already, or will only be slower.
                tracing::debug!(%error, "TCP_NODELAY could not be set on a connection");
            }
            let stopping = Stopping(stopping.clone());
            connections.spawn(connection(Accepted { stream, address, place, stopping }));
        }
        // Closed, so that clients are sent elsewhere while the last requests end.
        drop(self.socket);
        phase.send_replace(Phase::Stopping);
        let ended = tokio::select! {
            biased;
            _ = places.acquire_many(all) => Ended::Drained,
            () = cut => {
                Ended::CutOff { connections: (all as usize).saturating_sub(places.available_permits()) }
            }
        };
        connections.abort_all();
        while let Some(ended) = connections.join_next().await {
            log_panic(ended);
        }
        ended
    }

    /// A place first, then a connection for it: without a place, connections wait in the kernel's queue.
    async fn accept(
        &self,
        places: &Arc<Semaphore>,
    ) -> io::Result<(OwnedSemaphorePermit, (TcpStream, SocketAddr))> {
        let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
        Ok((place, self.socket.accept().await?))
    }

    /// Waits before the next try, unless it was only the one connection that failed.
    async fn pause_after(&self, error: &io::Error) {
        let only_this_one = matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::Interrupted
        );
        if only_this_one {
            tracing::debug!(%error, "a connection was gone before it was accepted");
            return;
        }
        (self.log_failure)(error);
        sleep(ACCEPT_PAUSE).await;
    }
}

impl Stopping {
    /// Returns when the listener stops.
    pub async fn wait(mut self) {
        // An error means that the listener is gone, which is an end as well.
        drop(self.0.wait_for(|phase| *phase == Phase::Stopping).await);
    }
}

/// A panic ends its own connection and nothing else.
fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::debug!("a connection ended in a panic, which was logged");
    }
}
