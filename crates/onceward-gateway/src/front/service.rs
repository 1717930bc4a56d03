//! Between hyper and the service: answers refused requests, and passes all others on.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use onceward::http::is_miscased;
use tower_service::Service;

use super::body::Body;
use super::fields::is_host;
use super::http1_state::Http1State;
use super::refusal::{self, AfterRefusal, Refusal};
use super::streams::{Stream, Streams};
use crate::client_address::ClientAddress;
use crate::telemetry::access;

pin_project_lite::pin_project! {
    /// The body of an answer, of the service or of a refusal.
    pub(super) struct AnswerBody<B> {
        #[pin]
        body: B,
        // Counts as open until the body is sent or dropped.
        stream: Option<Stream>,
    }
}

impl<B> HttpBody for AnswerBody<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.project().body.poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The service of one connection, as hyper wants it.
#[derive(Clone)]
pub(super) struct Handler<S> {
    pub service: S,
    pub client: ClientAddress,
    pub protocol: Protocol,
    pub body_timeout: Duration,
}

/// The protocol of a connection, with what its requests are checked against.
#[derive(Clone)]
pub(super) enum Protocol {
    /// The guard checked every byte, and records here what it refused.
    Http1(Arc<Http1State>),
    /// There is no guard. Requests are counted, so that an idle connection is recognised.
    Http2 {
        /// Bytes of path and query.
        url_bytes: usize,
        idle_timeout: Duration,
        streams: Arc<Streams>,
    },
}

impl<S> Handler<S> {
    /// Returns why a request is refused, or gives it the extensions that the service relies on.
    fn admit(&self, request: &mut Request<Incoming>) -> Option<(Refusal, AfterRefusal)> {
        match &self.protocol {
            Protocol::Http1(state) => {
                if request.method().as_str() == refusal::METHOD {
                    return Some((state.refusal().unwrap_or(Refusal::RequestLine), AfterRefusal::Close));
                }
                if names_no_host(request) {
                    return Some((Refusal::HostMalformed, AfterRefusal::Close));
                }
            }
            Protocol::Http2 { url_bytes, .. } => {
                if let Some(refusal) = http2_refusal(request, *url_bytes) {
                    return Some((refusal, AfterRefusal::KeepOpen));
                }
            }
        }
        request.extensions_mut().insert(self.client.clone());
        None
    }
}

/// Whether the request's target names an invalid host, such as one with a user. The target's host overrides `Host`, so the same
/// characters are allowed.
fn names_no_host(request: &Request<Incoming>) -> bool {
    request.uri().authority().is_some_and(|authority| !authority.as_str().bytes().all(is_host))
}

/// Refuses what h2 accepts although it can mean two things.
fn http2_refusal(request: &Request<Incoming>, url_bytes: usize) -> Option<Refusal> {
    if is_miscased(request.method().as_str().as_bytes()) {
        return Some(Refusal::MethodCase);
    }
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > url_bytes {
        return Some(Refusal::TargetTooLong { limit: url_bytes });
    }
    if names_no_host(request) {
        return Some(Refusal::HostMalformed);
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (request.uri().authority(), hosts.next()) {
        (None, None) => return Some(Refusal::HostMissing),
        (Some(authority), Some(host))
            if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) =>
        {
            return Some(Refusal::HostDiffers);
        }
        (None, Some(host)) if !host.as_bytes().iter().all(|byte| is_host(*byte)) => {
            return Some(Refusal::HostMalformed);
        }
        (Some(_), _) | (None, Some(_)) => {}
    }
    if hosts.next().is_some() {
        return Some(Refusal::HostRepeated);
    }
    let lengths = request.headers().get_all(CONTENT_LENGTH).iter();
    (lengths.count() > 1).then_some(Refusal::LengthRepeated)
}

impl<S, B> hyper::service::Service<Request<Incoming>> for Handler<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
    B: From<Bytes>,
{
    type Response = Response<AnswerBody<B>>;
    type Error = Infallible;
    type Future = Handling<S, S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (upgradable, stream) = match &self.protocol {
            Protocol::Http1(state) if request.headers().contains_key(UPGRADE) => {
                (Some(Arc::clone(state)), None)
            }
            Protocol::Http1(_) => (None, None),
            Protocol::Http2 { streams, idle_timeout, .. } => (None, Some(streams.begin(*idle_timeout))),
        };
        Handling { step: self.step(request), upgradable, stream }
    }
}

impl<S> Handler<S> {
    fn step<B>(&self, mut request: Request<Incoming>) -> Step<S, S::Future>
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
    {
        if let Some((refusal, after)) = self.admit(&mut request) {
            access::refused(self.client.address, refusal);
            return Step::Refused { answer: Some(refusal.response(after)) };
        }
        let request = request.map(|incoming| Body::new(incoming, self.body_timeout));
        let mut service = self.service.clone();
        let ready = match self.protocol {
            // Nearly every service is always ready. One that is not is polled again by the future, which it can wake.
            Protocol::Http1(_) => service.poll_ready(&mut Context::from_waker(Waker::noop())),
            // hyper runs the future that is returned here in a task of its own. The service is called only there, so that its
            // panic or its work does not affect other requests of the connection.
            Protocol::Http2 { .. } => Poll::Pending,
        };
        match ready {
            Poll::Ready(Ok(())) => Step::Called { future: service.call(request) },
            Poll::Pending => Step::Waiting { waiting: Some(Box::new((service, request))) },
        }
    }
}

pin_project_lite::pin_project! {
    /// One request on its way.
    pub(super) struct Handling<S, F> {
        #[pin]
        step: Step<S, F>,
        // The connection, where this request may end HTTP on it.
        upgradable: Option<Arc<Http1State>>,
        stream: Option<Stream>,
    }
}

pin_project_lite::pin_project! {
    #[project = StepProjected]
    enum Step<S, F> {
        Refused { answer: Option<Response<Bytes>> },
        Waiting { waiting: Option<Box<(S, Request<Body>)>> },
        Called { #[pin] future: F },
    }
}

impl<S, B> Future for Handling<S, S::Future>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    B: From<Bytes>,
{
    type Output = Result<Response<AnswerBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.step.poll(context))?;
        if let Some(connection) = this.upgradable
            && answer.status() == StatusCode::SWITCHING_PROTOCOLS
        {
            connection.upgrade();
        }
        Poll::Ready(Ok(answer.map(|body| AnswerBody { body, stream: this.stream.take() })))
    }
}

impl<S, B> Future for Step<S, S::Future>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    B: From<Bytes>,
{
    type Output = Result<Response<B>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let future = match self.as_mut().project() {
                StepProjected::Refused { answer } => match answer.take() {
                    Some(answer) => return Poll::Ready(Ok(answer.map(B::from))),
                    // Only reached if the future is polled after its end.
                    None => return Poll::Pending,
                },
                StepProjected::Waiting { waiting } => {
                    if let Some(waiting) = waiting {
                        ready!(waiting.0.poll_ready(context))?;
                    }
                    match waiting.take().map(|waiting| *waiting) {
                        Some((mut service, request)) => service.call(request),
                        None => return Poll::Pending,
                    }
                }
                StepProjected::Called { future } => {
                    return future.poll(context);
                }
            };
            self.set(Self::Called { future });
        }
    }
}
