//! What every request goes through: the layer around the proxy, what is counted and traced of it, and an answer for
//! whatever fails without a key.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use onceward::http::{
    Body, Failure, Handled, How, Idempotency, IdempotencyLayer, OnError, ResponseFuture, header,
};
use onceward::plumbing::time::{Instant, instant};
use serde_json::json;
use tower_layer::Layer as _;
use tower_service::Service;

use crate::front;
use crate::proxy::{Proxy, ProxyError, Took, UpstreamBody};
use crate::telemetry::access::Asked;
use crate::telemetry::metrics::{InFlight, Metrics};
use crate::telemetry::traces::{Ended, RequestSpan, Tracer, log_span};

/// What the proxy is sent.
pub type Sent = Body<front::Body>;
/// What a client is sent: an answer that passes through, or one that is there whole.
pub type Answer = Body<UpstreamBody<Sent>>;

/// What a failure on the way to the upstream proves.
#[derive(Debug, Clone, Copy)]
pub struct Proven;

impl OnError<ProxyError> for Proven {
    fn failure(&self, error: &ProxyError) -> Failure {
        error.failure()
    }

    fn words(&self, error: &ProxyError) -> String {
        words(error)
    }
}

/// An error and what caused it, as far as its own words leave that out.
fn words(error: &ProxyError) -> String {
    let mut words = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) {
            words = format!("{words}: {cause_words}");
        }
        next = cause.source();
    }
    words
}

/// The service behind the listener. Its layer can be replaced while it runs. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

struct Shared {
    protected: ArcSwap<Idempotency<Proxy<Sent>, Proven>>,
    proxy: Proxy<Sent>,
    metrics: Metrics,
    tracer: Tracer,
}

impl Gateway {
    /// A gateway to an upstream.
    pub fn new(layer: IdempotencyLayer, proxy: Proxy<Sent>, metrics: Metrics, tracer: Tracer) -> Self {
        let protected = ArcSwap::from_pointee(layer.on_error(Proven).layer(proxy.clone()));
        Self { shared: Arc::new(Shared { protected, proxy, metrics, tracer }) }
    }

    /// Takes another layer. Requests that have begun go on under the old one.
    pub fn replace(&self, layer: IdempotencyLayer) {
        self.shared.protected.store(Arc::new(layer.on_error(Proven).layer(self.shared.proxy.clone())));
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("proxy", &self.shared.proxy).finish_non_exhaustive()
    }
}

impl Service<Request<front::Body>> for Gateway {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<front::Body>) -> Answering {
        let span = self.shared.tracer.request(&request);
        if let Some(span) = &span {
            // It travels with the request, because work under a key outlives this future.
            request.extensions_mut().insert(span.clone());
        }
        let log = log_span(&request, span.as_ref());
        let asked = Asked::by(&request);
        let told = Told { in_flight: self.shared.metrics.in_flight(), span, asked, came: instant() };
        let mut protected = Idempotency::clone(&self.shared.protected.load());
        Answering { answer: log.in_scope(|| protected.call(request)), log, told: Some(told) }
    }
}

pin_project_lite::pin_project! {
    /// A request that is being answered.
    pub struct Answering {
        #[pin]
        answer: ResponseFuture<<Proxy<Sent> as Service<Request<Sent>>>::Future, UpstreamBody<Sent>, ProxyError>,
        // Lines about the request are logged in it.
        log: tracing::Span,
        // Nothing once it was told.
        told: Option<Told>,
    }
}

impl Future for Answering {
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let _log = this.log.enter();
        let answer = match ready!(this.answer.poll(context)) {
            Ok(response) => response,
            Err(error) => failed(&error, this.told.as_ref().map(|told| &told.asked)),
        };
        if let Some(told) = this.told.take() {
            told.answered(&answer);
        }
        Poll::Ready(Ok(answer))
    }
}

impl std::fmt::Debug for Answering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answering").finish_non_exhaustive()
    }
}

/// What is to be told about a request when it is answered.
struct Told {
    in_flight: InFlight,
    span: Option<RequestSpan>,
    asked: Asked,
    came: Instant,
}

impl Told {
    fn answered<B: http_body::Body>(self, answer: &Response<B>) {
        // Only an answer of the gateway's own, to a request without a key, says nothing.
        let (route, how, operation) = match answer.extensions().get::<Handled>() {
            Some(handled) => (&*handled.route, handled.how, handled.operation),
            None => ("", How::Passed, None),
        };
        let (metrics, took) = (self.in_flight.metrics(), instant().duration_since(self.came));
        metrics.request(route, how.into(), took.as_secs_f64());
        if let Some(Took(took)) = answer.extensions().get() {
            metrics.upstream(route, took.as_secs_f64());
        }
        if let Some(span) = self.span {
            if let Some(operation) = operation {
                span.operation(operation);
            }
            span.end(Ended { route, status: answer.status(), decision: how.name() });
        }
        self.asked.answered(answer, took);
    }
}

/// Why the client's own body could not be sent on, if that is what failed.
fn broken_off(error: &ProxyError) -> Option<&front::BodyError> {
    let mut next = std::error::Error::source(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The answer to a request that got none from the upstream and is not protected: it has no key, or the store is away and its
/// route lets it pass.
fn failed(error: &ProxyError, asked: Option<&Asked>) -> Response<Answer> {
    let failure = error.failure();
    let body = broken_off(error);
    let (method, path) = (asked.map(Asked::method), asked.map(Asked::path));
    match (body, failure) {
        // Nothing is wrong with the upstream.
        (Some(body), _) => {
            tracing::debug!(method, path, cause = %body, "a client did not send its request whole");
        }
        (None, Failure::NotExecuted) => tracing::warn!(
            method,
            path,
            cause = words(error),
            next = "look at the upstream, and at the address that is configured for it",
            "an unprotected request was not sent: the upstream was not reached"
        ),
        (None, Failure::TimedOut | Failure::Broken) => tracing::warn!(
            method,
            path,
            cause = words(error),
            next = "look at the log of the upstream: nothing is remembered here of a request that is not protected",
            "an unprotected request got no whole answer from the upstream: it may have been executed"
        ),
    }
    let (status, code, title) = match (failure, error, body) {
        (_, ProxyError::Target, _) => {
            (StatusCode::BAD_REQUEST, "request_target_invalid", "The request's target cannot be passed on")
        }
        (_, _, Some(front::BodyError::Paused(_))) => {
            (StatusCode::REQUEST_TIMEOUT, "request_paused", "The request's body paused for too long")
        }
        (_, _, Some(front::BodyError::Broken(_))) => {
            (StatusCode::BAD_REQUEST, "request_broken", "The request's body broke off")
        }
        (Failure::NotExecuted, _, None) => {
            (StatusCode::BAD_GATEWAY, "upstream_unreachable", "The service was not reached")
        }
        (Failure::TimedOut, _, None) => {
            (StatusCode::GATEWAY_TIMEOUT, "upstream_timed_out", "The service did not answer in time")
        }
        (Failure::Broken, _, None) => {
            (StatusCode::BAD_GATEWAY, "upstream_broken", "The service gave no whole answer")
        }
    };
    let detail = match failure {
        Failure::NotExecuted => "Nothing was sent to the service.",
        Failure::TimedOut | Failure::Broken => {
            "The service may have acted on it, and nothing is remembered of it here: find out before it is sent again."
        }
    };
    let body = json!({
        "type": "about:blank",
        "title": title,
        "status": status.as_u16(),
        "detail": detail,
        "code": code,
    });
    let mut response = Response::new(Answer::from(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if failure == Failure::NotExecuted {
        // For an outer Onceward whose client did send a key.
        headers.insert(header::OUTCOME, HeaderValue::from_static("retryable"));
    }
    if status == StatusCode::BAD_GATEWAY && failure == Failure::NotExecuted {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
