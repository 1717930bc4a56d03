//! Between hyper and the service behind: refusals are answered here, everything else is handed on.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, UPGRADE};
use http::{Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use onceward::http::is_miscased;
use tower_service::Service;

use super::Peer;
use super::body::Body;
use super::raw::{Raw, Shared};
use super::refusal::{self, Refusal, Then};
use crate::telemetry::access;

/// An answer of the service, or a refusal.
pub(super) type Answer<B> = Either<Full<Bytes>, B>;

/// The service of one connection, as hyper wants it.
#[derive(Clone)]
pub(super) struct Handler<S> {
    pub service: S,
    pub peer: Peer,
    pub protocol: Protocol,
    pub body_timeout: Duration,
}

/// What a connection speaks, and what its requests must be looked at for.
#[derive(Clone)]
pub(super) enum Protocol {
    /// The guard looked at everything, and tells here what it refused.
    Http1(Arc<Shared>),
    /// There is no guard. The requests are counted, so that it can be told that none come.
    Http2 {
        /// Bytes of path and query.
        url_bytes: usize,
        begun: Arc<AtomicU64>,
    },
}

impl<S> Handler<S> {
    /// What is wrong with a request, and gives it the extensions that the service relies on.
    fn admit(&self, request: &mut Request<Incoming>) -> Option<(Refusal, Then)> {
        match &self.protocol {
            Protocol::Http1(shared) => {
                if request.method().as_str() == refusal::METHOD {
                    return Some((shared.refusal().unwrap_or(Refusal::RequestLine), Then::Close));
                }
                if request.headers().contains_key(UPGRADE) {
                    request.extensions_mut().insert(Raw(Arc::clone(shared)));
                }
            }
            Protocol::Http2 { url_bytes, begun } => {
                begun.fetch_add(1, Ordering::Relaxed);
                if let Some(refusal) = http2_refusal(request, *url_bytes) {
                    return Some((refusal, Then::GoOn));
                }
            }
        }
        request.extensions_mut().insert(self.peer.clone());
        None
    }
}

/// What h2 lets through although it can mean two things.
fn http2_refusal(request: &Request<Incoming>, url_bytes: usize) -> Option<Refusal> {
    if is_miscased(request.method().as_str().as_bytes()) {
        return Some(Refusal::MethodCase);
    }
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > url_bytes {
        return Some(Refusal::TargetTooLong { limit: url_bytes });
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (request.uri().authority(), hosts.next()) {
        (None, None) => return Some(Refusal::HostMissing),
        (Some(authority), Some(host))
            if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) =>
        {
            return Some(Refusal::HostDiffers);
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
{
    type Response = Response<Answer<B>>;
    type Error = Infallible;
    type Future = Handling<S, S::Future>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        if let Some((refusal, then)) = self.admit(&mut request) {
            access::refused(self.peer.address, refusal);
            return Handling::Refused { answer: Some(refusal.response(then)) };
        }
        let request = request.map(|incoming| Body::new(incoming, self.body_timeout));
        let mut service = self.service.clone();
        let ready = match self.protocol {
            // Nearly every service is always ready. One that is not is asked again, by somebody whom it can wake.
            Protocol::Http1(_) => service.poll_ready(&mut Context::from_waker(Waker::noop())),
            // Each request gets a task of its own, with what is returned here. Only there it is called, so that neither
            // its panic nor its time is that of all others on the connection.
            Protocol::Http2 { .. } => Poll::Pending,
        };
        match ready {
            Poll::Ready(Ok(())) => Handling::Called { future: service.call(request) },
            Poll::Pending => Handling::Waiting { waiting: Some(Box::new((service, request))) },
        }
    }
}

pin_project_lite::pin_project! {
    /// One request on its way.
    #[project = HandlingProjected]
    pub(super) enum Handling<S, F> {
        Refused { answer: Option<Response<Full<Bytes>>> },
        Waiting { waiting: Option<Box<(S, Request<Body>)>> },
        Called { #[pin] future: F },
    }
}

impl<S, B> Future for Handling<S, S::Future>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    type Output = Result<Response<Answer<B>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let future = match self.as_mut().project() {
                HandlingProjected::Refused { answer } => match answer.take() {
                    Some(answer) => return Poll::Ready(Ok(answer.map(Either::Left))),
                    // Only a future that is polled after its end comes here.
                    None => return Poll::Pending,
                },
                HandlingProjected::Waiting { waiting } => {
                    if let Some(waiting) = waiting {
                        ready!(waiting.0.poll_ready(context))?;
                    }
                    match waiting.take().map(|waiting| *waiting) {
                        Some((mut service, request)) => service.call(request),
                        None => return Poll::Pending,
                    }
                }
                HandlingProjected::Called { future } => {
                    let answer = ready!(future.poll(context))?;
                    return Poll::Ready(Ok(answer.map(Either::Right)));
                }
            };
            self.set(Self::Called { future });
        }
    }
}
