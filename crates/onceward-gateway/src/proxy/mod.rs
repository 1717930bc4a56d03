//! The proxy: sends a request to the upstream, once, and passes its answer on as it arrives.
//!
//! What happens to a request, in order:
//!
//! 1. Hop-by-hop headers are removed from its head, and headers are added that name the client.
//! 2. It waits until fewer requests than the limit are with the upstream.
//! 3. Where its terms allow reuse, it takes a connection from the pool that is still open; otherwise it gets a new one, because
//!    the upstream may be about to close a used one. What fails up to here has sent nothing.
//! 4. It is refused if its terms say that sending should have begun by now.
//! 5. It is sent. A pooled connection that took no byte before it closed is replaced. After the first byte nothing is sent again:
//!    every failure is reported as it is.
//! 6. The answer's body is passed on as it arrives. At its end the connection goes back to the pool, unless it was made for this
//!    request, or the answer was a 5xx.

mod alarm_pool;
mod body;
mod connect;
mod connection;
mod error;
mod examine;
mod forwarding;
mod headers;
mod opening;
mod pool;
mod upgrade;
mod wire;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::header::TRANSFER_ENCODING;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use onceward::http::EndsWithConnection;
use onceward::plumbing::time::{deadline, instant, sleep};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::alarm_pool::AlarmPool;
pub use self::body::UpstreamBody;
use self::body::{AfterAnswer, AnswerConnection};
use self::connect::Connector;
pub use self::connect::UpstreamError;
use self::connection::{Connection, SendResult};
pub use self::error::ProxyError;
pub use self::examine::{ExamineError, examine};
use self::forwarding::{Forwarder, Origin};
pub use self::opening::OtherProtocol;
use self::pool::Pool;
use self::upgrade::UpgradeRequest;
use crate::client_address::ClientAddress;
use crate::settings::{Forwarding, Keepalive, Limits, Upstream};

/// A request body that can be sent to the upstream.
pub trait Sendable:
    Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

impl<B> Sendable for B where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

/// How a request is to be sent.
pub struct SendTerms<'a> {
    /// Where the request came from, as far as that is known.
    pub client: Option<ClientAddress>,
    /// Whether it may be sent on a connection that other requests use.
    pub reuse: Reuse,
    /// Until when the request may begin to be sent. A caller that sets it also limits how long the request may take, so
    /// `response_timeout` does not apply. It stores the answer, so the request cannot be upgraded.
    pub begin_limit: Option<&'a dyn BeginLimit>,
}

/// Whether a request may share its connection with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// It may be sent on a connection from the pool.
    Allowed,
    /// It gets a connection of its own unless it asks for an upgrade, or `keepalive` is `all`.
    Forbidden,
}

/// Until when a request may begin to be sent. The limit can move while the request waits, so it is read again at each step.
pub trait BeginLimit: Sync {
    /// How much longer the first byte may be delayed; zero if it is too late.
    fn begin_within(&self) -> Duration;
}

/// Sends requests to the upstream.
pub struct Proxy<B: Sendable> {
    inner: Arc<Inner<B>>,
}

struct Inner<B: Sendable> {
    connector: Connector,
    pool: Arc<Pool<B>>,
    /// How many requests may be with the upstream at once.
    active: Arc<Semaphore>,
    /// Connections at once, idle ones included.
    connections_max: usize,
    alarms: AlarmPool,
    forwarder: Forwarder,
    base_path: Option<PathAndQuery>,
    keepalive: Keepalive,
    limits: Limits,
}

/// Which connection a request is sent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// One from the pool, or a new one if the pool is empty. It goes back to the pool.
    Pool,
    /// One that is made for this request, and closed after it.
    New,
}

impl<B: Sendable> Proxy<B> {
    /// A proxy to one upstream. Must be called within a runtime.
    pub fn new(upstream: &Upstream, forwarding: &Forwarding, limits: &Limits) -> Result<Self, UpstreamError> {
        let connector = Connector::new(upstream, limits)?;
        let most = limits.upstream_connections.min(Semaphore::MAX_PERMITS);
        let inner = Inner {
            connector,
            pool: Pool::new(most, limits.upstream_idle),
            active: Arc::new(Semaphore::new(most)),
            connections_max: most,
            alarms: AlarmPool::new(most),
            forwarder: Forwarder::new(upstream, forwarding),
            base_path: upstream.base_path.clone(),
            keepalive: upstream.keepalive,
            limits: limits.clone(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Sends a request once, and returns when its answer begins.
    pub async fn send(
        &self,
        request: Box<Request<B>>,
        terms: SendTerms<'_>,
    ) -> Result<Response<UpstreamBody<B>>, ProxyError> {
        if terms.begin_limit.is_some() {
            return self.inner.exchange(request, terms).await;
        }
        let patience = self.inner.limits.response_timeout;
        let deadline = deadline(instant(), patience);
        let mut alarm = self.inner.alarms.take(deadline);
        tokio::select! {
            biased;
            answered = self.inner.exchange(request, terms) => {
                self.inner.alarms.give_back(alarm);
                answered
            }
            () = poll_fn(|context| alarm.poll_until(deadline, context)) => {
                Err(ProxyError::TimedOut { patience })
            }
        }
    }
}

impl<B: Sendable> Clone for Proxy<B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<B: Sendable> std::fmt::Debug for Proxy<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("forwarder", &self.inner.forwarder).finish_non_exhaustive()
    }
}

impl<B: Sendable> Inner<B> {
    async fn exchange(
        &self,
        mut request: Box<Request<B>>,
        terms: SendTerms<'_>,
    ) -> Result<Response<UpstreamBody<B>>, ProxyError> {
        let SendTerms { client, reuse, begin_limit } = terms;
        // An answer in another protocol could not be stored.
        let upgrade = if begin_limit.is_none() { UpgradeRequest::of(&mut request) } else { None };
        self.prepare(&mut request, client, upgrade.as_ref())?;
        let permit = self.permit(begin_limit).await?;
        let method = request.method().clone();
        let source = self.source(reuse, upgrade.as_ref());
        let (mut response, connection) = self.transmit(request, source, begin_limit).await?;
        let after_answer = match source {
            Source::New => AfterAnswer::End,
            Source::Pool if response.status().is_server_error() => AfterAnswer::Close,
            Source::Pool => AfterAnswer::Reuse,
        };
        let mut arrives_on =
            Some(AnswerConnection { connection, pool: self.pool.clone(), after_answer, permit });
        EndsWithConnection::mark(&method, &mut response);
        let (mut head, body) = response.into_parts();
        // The version is this side's, whatever an old upstream speaks.
        head.version = headers::VERSION;
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            upgrade::switch(upgrade, &mut head, arrives_on.take())?;
        } else {
            headers::strip(&mut head.headers);
        }
        Ok(Response::from_parts(head, UpstreamBody::new(body, arrives_on)))
    }

    fn source(&self, reuse: Reuse, upgrade: Option<&UpgradeRequest>) -> Source {
        match (self.keepalive, reuse, upgrade) {
            // A connection for one request cannot change the protocol.
            (Keepalive::Unkeyed, Reuse::Forbidden, None) => Source::New,
            (Keepalive::Unkeyed | Keepalive::All, _, _) => Source::Pool,
        }
    }

    /// Waits until fewer than the limit of requests are with the upstream.
    async fn permit(&self, begin_limit: Option<&dyn BeginLimit>) -> Result<OwnedSemaphorePermit, ProxyError> {
        let free = self.active.clone().acquire_owned();
        // The semaphore is never closed.
        match begin_limit {
            None => free.await.map_err(|_| ProxyError::TooLate),
            Some(limit) => tokio::select! {
                biased;
                permit = free => permit.map_err(|_| ProxyError::TooLate),
                () = sleep(limit.begin_within()) => Err(ProxyError::TooLate),
            },
        }
    }

    /// Turns the client's request into the upstream's.
    fn prepare(
        &self,
        request: &mut Request<B>,
        client: Option<ClientAddress>,
        upgrade: Option<&UpgradeRequest>,
    ) -> Result<(), ProxyError> {
        // A tunnel to an address of the client's choice would pass by the gateway.
        if request.method() == Method::CONNECT {
            return Err(ProxyError::Target);
        }
        let origin = Origin::new(client, request);
        *request.uri_mut() = self.target(request.uri())?;
        *request.version_mut() = headers::VERSION;
        headers::strip(request.headers_mut());
        headers::prepare(request.headers_mut());
        self.forwarder.set_headers(request.headers_mut(), origin);
        // Without this header hyper sends such a request without its body.
        let unusual = matches!(*request.method(), Method::GET | Method::HEAD);
        if unusual && !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        if let Some(upgrade) = upgrade {
            upgrade.add_headers(request.headers_mut());
        }
        Ok(())
    }

    /// A client chooses path and query, and nothing else of the target.
    fn target(&self, uri: &Uri) -> Result<Uri, ProxyError> {
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let target = match &self.base_path {
            None => uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
            Some(base) => {
                let joined = format!("{}{path}", base.path().trim_end_matches('/'));
                PathAndQuery::try_from(joined).map_err(|_| ProxyError::Target)?
            }
        };
        Ok(Uri::from(target))
    }

    async fn open(&self, source: Source) -> Result<Connection<B>, ProxyError> {
        let wire = self.connector.connect().await?;
        match source {
            Source::Pool => Connection::open(wire).await,
            Source::New => Connection::open_single_use(wire).await,
        }
    }

    /// Sends the request on a pooled connection that is still open, or on a new one.
    async fn transmit(
        &self,
        mut request: Box<Request<B>>,
        source: Source,
        begin_limit: Option<&dyn BeginLimit>,
    ) -> Result<(Response<hyper::body::Incoming>, Connection<B>), ProxyError> {
        loop {
            let pooled = match source {
                Source::Pool => self.pool.take().await,
                Source::New => None,
            };
            let (mut connection, pooled) = match pooled {
                Some(connection) => (connection, true),
                // Boxed, because a TLS handshake's state would make every request's future several times as large.
                None => {
                    self.pool.make_room(self.connections_max.saturating_sub(self.active.available_permits()));
                    (Box::pin(self.open(source)).await?, false)
                }
            };
            // Connecting takes time.
            if begin_limit.is_some_and(|limit| limit.begin_within().is_zero()) {
                return Err(ProxyError::TooLate);
            }
            match connection.send(request).await {
                SendResult::Answered(response) => return Ok((response, connection)),
                // The loop ends: the pool runs out of connections, and a new one is tried once.
                SendResult::Returned(returned, _) if pooled => request = returned,
                SendResult::Returned(_, error) => {
                    return Err(ProxyError::NothingSent { error: error.into() });
                }
                SendResult::Failed(error) => return Err(error),
            }
        }
    }
}
