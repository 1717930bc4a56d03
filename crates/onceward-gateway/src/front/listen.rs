//! Accepting connections, as many as there are places for.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use onceward::plumbing::time::sleep;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tower_service::Service;

use super::connection::Accepted;
use super::{Body, Front};

/// Where accepting fails, it fails again at once (no file descriptors, no memory), until a connection ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

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

impl Front {
    /// Serves a listener until `stop`. Then it takes no new connections, lets the requests in flight end until `cut`, which
    /// is asked only from then on, and returns. Connections that were upgraded count as in flight until they are closed.
    pub async fn serve<S, B>(
        self,
        listener: TcpListener,
        service: S,
        stop: impl Future<Output = ()>,
        cut: impl Future<Output = ()>,
    ) -> Ended
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let front = Arc::new(self);
        let all = u32::try_from(front.limits.connections).unwrap_or(u32::MAX);
        let places = Arc::new(Semaphore::new(all as usize));
        let (stopping, stopped) = watch::channel(Phase::Open);
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
                accepted = accept(&listener, &places) => accepted,
            };
            let (place, (stream, address)) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    pace(&error).await;
                    continue;
                }
            };
            if let Err(error) = stream.set_nodelay(true) {
                // The client is gone already, or will only be slower.
                tracing::debug!(%error, "a connection could not be told to send at once");
            }
            let (front, service, mut stopped) = (Arc::clone(&front), service.clone(), stopped.clone());
            connections.spawn(async move {
                let stop = async move {
                    // An error means that the listener is gone, which ends it as well.
                    drop(stopped.wait_for(|phase| *phase == Phase::Stopping).await);
                };
                let accepted = Accepted { io: stream, address, service, place: Some(place) };
                if let Err(error) = front.connection(accepted, stop).await {
                    tracing::debug!(%error, "a connection ended early");
                }
            });
        }
        // Closed, so that clients are sent elsewhere while the last requests end.
        drop(listener);
        stopping.send_replace(Phase::Stopping);
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Stopping,
}

type Arrived = (tokio::sync::OwnedSemaphorePermit, (tokio::net::TcpStream, std::net::SocketAddr));

/// A place first, then a connection for it: whoever has no place waits in the kernel's queue.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> io::Result<Arrived> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    Ok((place, listener.accept().await?))
}

/// Waits before the next try, unless it was only the one connection that failed.
async fn pace(error: &io::Error) {
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
    tracing::error!(
        cause = %error,
        next = "raise the limit on open files, or lower limits.connections",
        "no connection can be accepted: it is tried again twice a second"
    );
    sleep(ACCEPT_PAUSE).await;
}

/// A panic ends its own connection and nothing else.
fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::debug!("a connection ended in a panic, which was logged");
    }
}
