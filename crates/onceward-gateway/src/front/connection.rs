//! One connection, from its first byte to its last.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{Request, Response};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use onceward::plumbing::time::{deadline, instant, sleep};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use super::guard::{Guard, Opened};
use super::head::HeadLimits;
use super::http1_state::Http1State;
use super::service::{Handler, Protocol};
use super::streams::Streams;
use super::timer::{FROM_NOW, HeadTimer};
use super::{Body, Front, tls};
use crate::client_address::ClientAddress;
use crate::settings::{Limits, Scheme};

/// Every HTTP/2 connection begins with this, and no HTTP/1.1 request can.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a TLS handshake may take: a few round trips.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Requests at once on one HTTP/2 connection. RFC 9113 recommends no fewer than 100.
const MAX_STREAMS: u32 = 256;
/// Bytes of one request's body that a client may send before any were read.
const STREAM_WINDOW: u32 = 256 << 10;
/// The same for a whole connection. It bounds the memory that one can hold.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of one answer that are buffered for a slow client.
const SEND_BUFFER: usize = 128 << 10;
/// How often an HTTP/2 client is pinged, and how long its answer may take.
const PING: Duration = Duration::from_secs(20);

/// The smallest buffer for reading, whatever the limit of a head.
const MIN_BUFFER: usize = 64 << 10;

/// Why a connection did not end as it should.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// TLS could not be agreed on.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    /// TLS, or a first byte, took too long to come.
    #[error("nothing came for {}, so the connection was closed", humantime::format_duration(*.0))]
    Silent(Duration),
    /// Reading failed.
    #[error("the connection broke: {0}")]
    Io(#[source] io::Error),
    /// HTTP broke off, or took too long.
    #[error("the connection ended early: {0}")]
    Http(#[source] hyper::Error),
}

/// A connection of which nothing was read yet.
pub(super) struct NewConnection<I, S> {
    pub io: I,
    pub address: SocketAddr,
    pub service: S,
    pub place: Option<OwnedSemaphorePermit>,
}

impl Front {
    /// Serves one connection, over whatever carries its bytes. It ends when the client ends it, or, after `stop`, when
    /// the requests in flight are answered.
    pub async fn serve_connection<I, S, B>(
        &self,
        io: I,
        address: SocketAddr,
        service: S,
        stop: impl Future<Output = ()>,
    ) -> Result<(), ConnectionError>
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.connection(NewConnection { io, address, service, place: None }, stop).await
    }

    pub(super) async fn connection<I, S, B>(
        &self,
        accepted: NewConnection<I, S>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), ConnectionError>
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        // Polled only when woken: polling it with every read would re-register it under a lock that all connections share.
        let stop = &mut FuturesUnordered::from_iter([stop]);
        let Some(certificate) = &self.tls else {
            return run(&self.limits, accepted, Scheme::Http, Speaks::Unknown, stop).await;
        };
        let handshake = TlsAcceptor::from(certificate.load().config()).accept(accepted.io);
        let limit = HANDSHAKE.min(self.limits.header_timeout);
        let io = tokio::select! {
            biased;
            io = handshake => io.map_err(ConnectionError::Handshake)?,
            () = sleep(limit) => return Err(ConnectionError::Silent(limit)),
            _ = stop.next() => return Ok(()),
        };
        let speaks = match io.get_ref().1.alpn_protocol() {
            Some(tls::H2) => Speaks::Http2,
            Some(_) => Speaks::Http1,
            None => Speaks::Unknown,
        };
        let accepted =
            NewConnection { io, address: accepted.address, service: accepted.service, place: accepted.place };
        run(&self.limits, accepted, Scheme::Https, speaks, stop).await
    }
}

/// The protocol of a connection, as far as it is known.
enum Speaks {
    Http1,
    Http2,
    Unknown,
}

async fn run<I, S, B>(
    limits: &Limits,
    accepted: NewConnection<I, S>,
    scheme: Scheme,
    speaks: Speaks,
    stop: &mut FuturesUnordered<impl Future<Output = ()>>,
) -> Result<(), ConnectionError>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + From<Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let NewConnection { mut io, address, service, place } = accepted;
    let client = ClientAddress::new(address, scheme);
    let mut read = BytesMut::new();
    let speaks = match speaks {
        Speaks::Http1 | Speaks::Http2 => speaks,
        Speaks::Unknown => tokio::select! {
            biased;
            speaks = detect(&mut io, &mut read) => match speaks.map_err(ConnectionError::Io)? {
                Some(speaks) => speaks,
                None => return Ok(()),
            },
            () = sleep(limits.header_timeout) => return Err(ConnectionError::Silent(limits.header_timeout)),
            // No request has begun.
            _ = stop.next() => return Ok(()),
        },
    };
    let opened = Opened { io, read, stall: limits.body_timeout, place };
    let handler = |protocol| Handler { service, client, protocol, body_timeout: limits.body_timeout };
    match speaks {
        Speaks::Http2 => {
            let streams = Arc::new(Streams::new(limits));
            let protocol = Protocol::Http2 {
                url_bytes: limits.url_bytes,
                idle_timeout: limits.idle_timeout,
                streams: Arc::clone(&streams),
            };
            let io = TokioIo::new(Guard::http2(opened));
            let mut connection = pin!(http2_builder(limits).serve_connection(io, handler(protocol)));
            loop {
                // Pings keep an unused connection open, so it is closed here. A connection in use is checked again after
                // `idle_timeout`: it cannot have been idle for that long before.
                let look = streams.idle_until().unwrap_or_else(|| deadline(instant(), limits.idle_timeout));
                let now = instant();
                if look <= now {
                    break;
                }
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => return ended.map_err(ConnectionError::Http),
                    _ = stop.next() => break,
                    () = sleep(look.duration_since(now)) => {}
                }
            }
            connection.as_mut().graceful_shutdown();
            connection.await.map_err(ConnectionError::Http)
        }
        Speaks::Http1 | Speaks::Unknown => {
            let state = Arc::new(Http1State::default());
            let head = HeadLimits { head: limits.header_bytes, target: limits.url_bytes };
            let io = TokioIo::new(Guard::http1(opened, head, Arc::clone(&state)));
            let connection = http1_builder(limits, Arc::clone(&state))
                .serve_connection(io, handler(Protocol::Http1(Arc::clone(&state))));
            let mut connection = pin!(connection.with_upgrades());
            tokio::select! {
                biased;
                ended = connection.as_mut() => return ended.map_err(ConnectionError::Http),
                _ = stop.next() => {
                    state.stop();
                    connection.as_mut().graceful_shutdown();
                }
            }
            connection.await.map_err(ConnectionError::Http)
        }
    }
}

/// Reads as much as it takes to tell HTTP/2 from HTTP/1.1. `None` where the client closed without sending anything.
async fn detect(io: &mut (impl AsyncRead + Unpin), read: &mut BytesMut) -> io::Result<Option<Speaks>> {
    loop {
        read.reserve(1024);
        if io.read_buf(read).await? == 0 {
            return Ok(None);
        }
        let compared = read.len().min(PREFACE.len());
        if read[..compared] != PREFACE[..compared] {
            return Ok(Some(Speaks::Http1));
        }
        if compared == PREFACE.len() {
            return Ok(Some(Speaks::Http2));
        }
    }
}

fn http1_builder(limits: &Limits, state: Arc<Http1State>) -> http1::Builder {
    // The guard enforces the limit of a head. hyper's is wider, so that the guard always refuses first.
    let wider = limits.header_bytes.saturating_mul(2).max(MIN_BUFFER);
    let mut builder = http1::Builder::new();
    builder
        .half_close(false)
        .timer(HeadTimer::new(limits, state))
        .header_read_timeout(FROM_NOW)
        .max_header_size(wider)
        .max_buf_size(wider);
    builder
}

fn http2_builder(limits: &Limits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    builder
}
