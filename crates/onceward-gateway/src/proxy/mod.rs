//! The proxy: sends a request to the upstream, once, and hands its answer on as it arrives.
//!
//! What happens to a request, in order:
//!
//! 1. What speaks of the client's connection is taken out of its head, and the upstream is told where it came from.
//! 2. It waits until fewer than the limit of requests are with the upstream.
//! 3. A request without a key takes a line from the pool, after a look at it, or a new one. A keyed request gets a new one,
//!    because the upstream may be about to close a used one. What fails up to here has sent nothing.
//! 4. A request that works under a claim is not sent any more when half of its lease has passed.
//! 5. It is sent. A line that turns out to be closed before it took a byte is replaced; after the first byte, whatever
//!    goes wrong is told as it is, and nothing is sent again.
//! 6. The answer's body is passed on as it arrives. When it has been read to its end, the line goes back to the pool, unless
//!    it was a keyed request's or the answer was a 5xx: then it is closed.

mod alarms;
mod body;
mod connect;
mod error;
mod examine;
mod forwarding;
mod headers;
mod line;
mod opening;
mod pool;
mod upgrade;
mod wire;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::TRANSFER_ENCODING;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use onceward::Operation;
use onceward::http::EndsWithConnection;
use onceward::http::header::IDEMPOTENCY_KEY;
use onceward::plumbing::time::{Instant, deadline, instant, sleep};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use self::alarms::Alarms;
pub use self::body::UpstreamBody;
use self::body::{Lent, Then};
use self::connect::Connector;
pub use self::connect::UpstreamError;
pub use self::error::ProxyError;
pub use self::examine::{ExamineError, examine};
use self::forwarding::{Forwarder, Origin};
use self::line::{Line, Sent};
pub use self::opening::OtherProtocol;
use self::pool::Pool;
use crate::settings::{Forwarding, Keepalive, Limits, Upstream};
use crate::telemetry::traces::RequestSpan;

/// A request body that can be sent to the upstream.
pub trait Sendable:
    Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

impl<B> Sendable for B where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

/// How long the upstream took to begin its answer. It is among the extensions of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Took(pub Duration);

/// Sends requests to the upstream.
pub struct Proxy<B: Sendable> {
    shared: Arc<Shared<B>>,
}

struct Shared<B: Sendable> {
    connector: Connector,
    pool: Arc<Pool<B>>,
    /// How many requests may be with the upstream at once.
    active: Arc<Semaphore>,
    /// Connections at once, idle ones included.
    connections_max: usize,
    alarms: Alarms,
    forwarder: Forwarder,
    base_path: Option<PathAndQuery>,
    keepalive: Keepalive,
    limits: Limits,
}

/// Where the line that a request is sent on comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The pool, where it has one, to which it goes back.
    Pool,
    /// Made for this request, and closed after it.
    New,
}

impl<B: Sendable> Proxy<B> {
    /// A proxy to one upstream. Must be called within a runtime.
    pub fn new(upstream: &Upstream, forwarding: &Forwarding, limits: &Limits) -> Result<Self, UpstreamError> {
        let connector = Connector::new(upstream, limits)?;
        let most = limits.upstream_connections.min(Semaphore::MAX_PERMITS);
        let shared = Shared {
            connector,
            pool: Pool::new(most, limits.upstream_idle),
            active: Arc::new(Semaphore::new(most)),
            connections_max: most,
            alarms: Alarms::new(most),
            forwarder: Forwarder::new(upstream, forwarding),
            base_path: upstream.base_path.clone(),
            keepalive: upstream.keepalive,
            limits: limits.clone(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl<B: Sendable> Clone for Proxy<B> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<B: Sendable> std::fmt::Debug for Proxy<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("forwarder", &self.shared.forwarder).finish_non_exhaustive()
    }
}

impl<B: Sendable> Service<Request<B>> for Proxy<B> {
    type Response = Response<UpstreamBody<B>>;
    type Error = ProxyError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ProxyError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ProxyError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let shared = self.shared.clone();
        let operation = request.extensions().get::<Operation>().cloned();
        let span = request.extensions().get::<RequestSpan>().map(RequestSpan::upstream);
        if let Some(span) = &span {
            span.inject(request.headers_mut());
        }
        // A request is large, and would be stored again in each of the futures that it goes through.
        let request = Box::new(request);
        Box::pin(async move {
            let sent = instant();
            let mut answered = shared.in_time(request, operation.as_ref(), sent).await;
            if let Ok(response) = &mut answered {
                response.extensions_mut().insert(Took(instant().duration_since(sent)));
            }
            match (span, &answered) {
                (Some(span), Ok(response)) => span.answered(response.status()),
                (Some(span), Err(error)) => span.failed(&error.to_string()),
                (None, _) => {}
            }
            answered
        })
    }
}

impl<B: Sendable> Shared<B> {
    async fn in_time(
        &self,
        request: Box<Request<B>>,
        operation: Option<&Operation>,
        came: Instant,
    ) -> Result<Response<UpstreamBody<B>>, ProxyError> {
        if operation.is_some() {
            // The engine limits how long work under a claim may take.
            return self.exchange(request, operation).await;
        }
        let patience = self.limits.response_timeout;
        let deadline = deadline(came, patience);
        let mut alarm = self.alarms.take(deadline);
        tokio::select! {
            biased;
            answered = self.exchange(request, None) => {
                self.alarms.give_back(alarm);
                answered
            }
            () = poll_fn(|context| alarm.poll_until(deadline, context)) => {
                Err(ProxyError::TimedOut { patience })
            }
        }
    }

    async fn exchange(
        &self,
        mut request: Box<Request<B>>,
        operation: Option<&Operation>,
    ) -> Result<Response<UpstreamBody<B>>, ProxyError> {
        let upgrade = self.prepare(&mut request, operation)?;
        let permit = self.permit(operation).await?;
        let method = request.method().clone();
        let source = self.source(&request, upgrade.as_ref());
        let (mut response, line) = self.send(request, source, operation).await?;
        let then = match source {
            Source::New => Then::End,
            Source::Pool if response.status().is_server_error() => Then::Close,
            Source::Pool => Then::Reuse,
        };
        let mut lent = Some(Lent { line, pool: self.pool.clone(), then, permit });
        EndsWithConnection::mark(&method, &mut response);
        let (mut head, body) = response.into_parts();
        // An old upstream's version is its own: to the client this side speaks.
        head.version = headers::VERSION;
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            upgrade::switch(upgrade, &mut head, lent.take())?;
        } else {
            headers::strip(&mut head.headers);
        }
        Ok(Response::from_parts(head, UpstreamBody::new(body, lent)))
    }

    fn source(&self, request: &Request<B>, upgrade: Option<&upgrade::Asked>) -> Source {
        // Also where a keyed request goes through unprotected: a used line could cost it its answer just the same.
        let keyed = request.headers().contains_key(IDEMPOTENCY_KEY);
        match self.keepalive {
            // A line for one request cannot change the protocol.
            Keepalive::Unkeyed if keyed && upgrade.is_none() => Source::New,
            Keepalive::Unkeyed | Keepalive::All => Source::Pool,
        }
    }

    /// Waits until fewer than the limit of requests are with the upstream.
    async fn permit(&self, operation: Option<&Operation>) -> Result<OwnedSemaphorePermit, ProxyError> {
        let free = self.active.clone().acquire_owned();
        // The semaphore is never closed.
        match operation {
            None => free.await.map_err(|_| ProxyError::TooLate),
            Some(operation) => tokio::select! {
                biased;
                permit = free => permit.map_err(|_| ProxyError::TooLate),
                () = sleep(operation.begin_within()) => Err(ProxyError::TooLate),
            },
        }
    }

    /// Turns the client's request into the upstream's.
    fn prepare(
        &self,
        request: &mut Request<B>,
        operation: Option<&Operation>,
    ) -> Result<Option<upgrade::Asked>, ProxyError> {
        // A tunnel to wherever the client likes is not what a gateway is for.
        if request.method() == Method::CONNECT {
            return Err(ProxyError::Target);
        }
        // An answer in another protocol could not be stored, so keyed requests stay with this one.
        let upgrade = if operation.is_none() { upgrade::Asked::by(request) } else { None };
        let origin = Origin::of(request);
        *request.uri_mut() = self.target(request.uri())?;
        *request.version_mut() = headers::VERSION;
        headers::strip(request.headers_mut());
        headers::prepare(request.headers_mut());
        self.forwarder.tell(request.headers_mut(), origin);
        // Without a word about it, hyper takes such a request for one without a body.
        let unusual = matches!(*request.method(), Method::GET | Method::HEAD);
        if unusual && !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        if let Some(upgrade) = &upgrade {
            upgrade.ask(request.headers_mut());
        }
        Ok(upgrade)
    }

    /// Only path and query are the client's to choose.
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

    async fn open(&self, source: Source) -> Result<Line<B>, ProxyError> {
        let wire = self.connector.connect().await?;
        match source {
            Source::Pool => Line::open(wire).await,
            Source::New => Line::open_once(wire).await,
        }
    }

    /// Sends the request on a line that takes it.
    async fn send(
        &self,
        mut request: Box<Request<B>>,
        source: Source,
        operation: Option<&Operation>,
    ) -> Result<(Response<hyper::body::Incoming>, Line<B>), ProxyError> {
        loop {
            let pooled = match source {
                Source::Pool => self.pool.take().await,
                Source::New => None,
            };
            let (mut line, pooled) = match pooled {
                Some(line) => (line, true),
                // In a box: what TLS takes to begin would make every request's future several times as large.
                None => {
                    self.pool.make_room(self.connections_max.saturating_sub(self.active.available_permits()));
                    (Box::pin(self.open(source)).await?, false)
                }
            };
            // Connecting takes time, and another owner may soon take this tenure for dead.
            if operation.is_some_and(|operation| operation.begin_within().is_zero()) {
                return Err(ProxyError::TooLate);
            }
            match line.send(request).await {
                Sent::Answered(response) => return Ok((response, line)),
                // The pool runs out of such lines, and a new one is tried once.
                Sent::Returned(returned, _) if pooled => request = returned,
                Sent::Returned(_, error) => return Err(ProxyError::NothingSent { error: error.into() }),
                Sent::Failed(error) => return Err(error),
            }
        }
    }
}
