//! The service behind the clients' listener: the layer around the proxy, with metrics, traces and the access log. It also
//! answers requests without a key that fail.

mod upstream;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arc_swap::ArcSwap;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, Response, StatusCode};
use onceward::http::{
    Body, Disposition, Failure, Handled, Idempotency, IdempotencyLayer, OnError, ProblemJson, ResponseFuture,
    header,
};
use onceward::plumbing::time::{Instant, instant};
use tower_layer::Layer as _;
use tower_service::Service;

use self::upstream::{Upstream, UpstreamLatency};
use crate::front;
use crate::proxy::{Proxy, ProxyError, UpstreamBody};
use crate::telemetry::access::Asked;
use crate::telemetry::metrics::{InFlight, Metrics};
use crate::telemetry::traces::{Ended, RequestSpan, Tracer, log_span};

/// The body of a request on its way to the upstream.
pub type RequestBody = Body<front::Body>;
/// The body of an answer: the upstream's as it arrives, or one that is there whole.
pub type ResponseBody = Body<UpstreamBody<RequestBody>>;

/// Classifies the proxy's failures for the layer, by what each proves.
#[derive(Debug, Clone, Copy)]
pub struct ProxyFailures;

impl OnError<ProxyError> for ProxyFailures {
    fn failure(&self, error: &ProxyError) -> Failure {
        error.failure()
    }

    fn words(&self, error: &ProxyError) -> String {
        with_causes(error)
    }
}

/// An error with its causes, without those that it quotes already.
fn with_causes(error: &ProxyError) -> String {
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

/// The service behind the listener. Its layer can be replaced while it runs. Cheap to clone: all clones share one state.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<Inner>,
}

struct Inner {
    protected: ArcSwap<Idempotency<Upstream, ProxyFailures>>,
    upstream: Upstream,
    metrics: Metrics,
    tracer: Tracer,
}

impl Gateway {
    /// A gateway to an upstream.
    pub fn new(layer: IdempotencyLayer, proxy: Proxy<RequestBody>, metrics: Metrics, tracer: Tracer) -> Self {
        let upstream = Upstream(proxy);
        let protected = ArcSwap::from_pointee(layer.on_error(ProxyFailures).layer(upstream.clone()));
        Self { inner: Arc::new(Inner { protected, upstream, metrics, tracer }) }
    }

    /// Takes another layer. Requests that have begun go on under the old one.
    pub fn replace(&self, layer: IdempotencyLayer) {
        self.inner
            .protected
            .store(Arc::new(layer.on_error(ProxyFailures).layer(self.inner.upstream.clone())));
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("upstream", &self.inner.upstream).finish_non_exhaustive()
    }
}

impl Service<Request<front::Body>> for Gateway {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<front::Body>) -> Answering {
        let span = self.inner.tracer.request(&request);
        if let Some(span) = &span {
            // It travels with the request, because work under a key outlives this future.
            request.extensions_mut().insert(span.clone());
        }
        let log = log_span(&request, span.as_ref());
        let asked = Asked::by(&request);
        let report =
            RequestReport { in_flight: self.inner.metrics.in_flight(), span, asked, came: instant() };
        let mut protected = Idempotency::clone(&self.inner.protected.load());
        Answering { answer: log.in_scope(|| protected.call(request)), log, report: Some(report) }
    }
}

pin_project_lite::pin_project! {
    /// A request that is being answered.
    pub struct Answering {
        #[pin]
        answer: ResponseFuture<<Upstream as Service<Request<RequestBody>>>::Future, UpstreamBody<RequestBody>, ProxyError>,
        // Lines about the request are logged in it.
        log: tracing::Span,
        // `None` once the request was answered.
        report: Option<RequestReport>,
    }
}

impl Future for Answering {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let _log = this.log.enter();
        let answer = match ready!(this.answer.poll(context)) {
            Ok(response) => response,
            Err(error) => failed(&error, this.report.as_ref().map(|report| &report.asked)),
        };
        if let Some(report) = this.report.take() {
            report.answered(&answer);
        }
        Poll::Ready(Ok(answer))
    }
}

impl std::fmt::Debug for Answering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answering").finish_non_exhaustive()
    }
}

/// What is reported of a request when it is answered.
struct RequestReport {
    in_flight: InFlight,
    span: Option<RequestSpan>,
    asked: Asked,
    came: Instant,
}

impl RequestReport {
    fn answered<B: http_body::Body>(self, answer: &Response<B>) {
        // Only the gateway's own answer to a request without a key lacks it.
        let (route, disposition, operation) = match answer.extensions().get::<Handled>() {
            Some(handled) => (&*handled.route, handled.disposition, handled.operation),
            None => ("", Disposition::Passed, None),
        };
        let (metrics, took) = (self.in_flight.metrics(), instant().duration_since(self.came));
        metrics.request(route, disposition.into(), took.as_secs_f64());
        if let Some(UpstreamLatency(took)) = answer.extensions().get() {
            metrics.upstream(route, took.as_secs_f64());
        }
        if let Some(span) = self.span {
            if let Some(operation) = operation {
                span.operation(operation);
            }
            span.end(Ended { route, status: answer.status(), decision: disposition.name() });
        }
        self.asked.answered(answer, took);
    }
}

/// The failure of the client's own body, if that is why the request failed.
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
fn failed(error: &ProxyError, asked: Option<&Asked>) -> Response<ResponseBody> {
    let failure = error.failure();
    let body = broken_off(error);
    let (method, path) = (asked.map(Asked::method), asked.map(Asked::path));
    match (body, failure) {
        // The upstream is not to blame.
        (Some(body), _) => {
            tracing::debug!(method, path, cause = %body, "a client did not send its request whole");
        }
        (None, Failure::NotExecuted) => tracing::warn!(
            method,
            path,
            cause = with_causes(error),
            next = "check the upstream, and the address that is configured for it",
            "an unprotected request was not sent: the upstream was not reached"
        ),
        (None, Failure::TimedOut | Failure::Broken) => tracing::warn!(
            method,
            path,
            cause = with_causes(error),
            next = "check the log of the upstream: nothing is remembered here of a request that is not protected",
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
    let members =
        [("type", "about:blank"), ("code", code)].map(|(name, value)| (name.to_owned(), value.into()));
    let problem =
        ProblemJson { status, title, detail: detail.to_owned(), members: members.into_iter().collect() };
    let mut response = problem.response().map(ResponseBody::from);
    let headers = response.headers_mut();
    if failure == Failure::NotExecuted {
        // For an outer Onceward whose client did send a key.
        headers.insert(header::OUTCOME, HeaderValue::from_static("retryable"));
    }
    if status == StatusCode::BAD_GATEWAY && failure == Failure::NotExecuted {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
