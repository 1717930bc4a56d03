//! Traces: where a request came from, what became of it, and how long the upstream took.
//!
//! Where no collector is configured there is no span, and the trace headers of clients pass through untouched. Where one
//! is, every request has a server span that continues the client's trace, and every call of the upstream a client span
//! within it, whose place in the trace the upstream is told. Execution is detached from the request and may outlive it:
//! put the [`RequestSpan`] into the request's extensions, which the layer hands on to its inner service.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode, Uri};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_otlp::{ExporterBuildError, Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;

use super::otlp::OtlpClient;
use crate::settings::Telemetry;

/// Where OTLP over HTTP takes traces.
const TRACES: &str = "/v1/traces";
/// Where a client names the trace that its request belongs to.
const TRACEPARENT: &str = "traceparent";
/// What the last spans may take to be sent when the process ends.
const FLUSH: Duration = Duration::from_secs(5);

/// The name of a request's span in the log.
pub(super) const LOG_SPAN: &str = "request";

/// The span that lines about a request are logged in: with the ids of its own trace, with the trace that its client names, or
/// with nothing.
pub fn log_span<B>(request: &Request<B>, traced: Option<&RequestSpan>) -> tracing::Span {
    if let Some(traced) = traced {
        return traced.log();
    }
    if !request.headers().contains_key(TRACEPARENT) {
        return tracing::Span::none();
    }
    let named = TraceContextPropagator::new()
        .extract_with_context(&Context::new(), &HeaderExtractor(request.headers()));
    let span = named.span();
    match span.span_context() {
        context if context.is_valid() => {
            tracing::error_span!(LOG_SPAN, trace_id = %context.trace_id())
        }
        _ => tracing::Span::none(),
    }
}

/// Starts spans, or does nothing at all. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tracer {
    on: Option<Arc<On>>,
}

struct On {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// Traces that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The collector's address cannot be used.
    #[error(
        "traces cannot be sent to {endpoint:?}: give the address of an OTLP collector, such as \"http://127.0.0.1:4318\""
    )]
    Endpoint {
        /// As given.
        endpoint: String,
    },
    /// TLS cannot be spoken.
    #[error("traces cannot be sent over TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The exporter was refused.
    #[error("the exporter of traces could not be made: {0}")]
    Exporter(#[from] ExporterBuildError),
}

impl Tracer {
    /// Traces nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Traces, if a collector is configured. Must be called within a tokio runtime, on which spans are sent.
    pub fn start(telemetry: &Telemetry) -> Result<Self, TracesError> {
        let Some(collector) = telemetry.otlp.as_deref() else { return Ok(Self::off()) };
        let refused = || TracesError::Endpoint { endpoint: collector.chars().take(255).collect() };
        let endpoint = match collector.trim_end_matches('/') {
            whole if whole.ends_with(TRACES) => whole.to_owned(),
            base => format!("{base}{TRACES}"),
        };
        let uri: Uri = endpoint.parse().map_err(|_| refused())?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
            return Err(refused());
        }
        let runtime = Handle::try_current().map_err(|_| refused())?;
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(OtlpClient::new(runtime, &uri)?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .build()?;
        let provider = SdkTracerProvider::builder()
            .with_resource(Resource::builder().with_service_name("onceward").build())
            .with_batch_exporter(exporter)
            .build();
        let tracer = provider.tracer("onceward");
        Ok(Self { on: Some(Arc::new(On { provider, tracer })) })
    }

    /// The span of a request that has come in: it continues the client's trace, or begins one.
    pub fn request<B>(&self, request: &Request<B>) -> Option<RequestSpan> {
        let on = self.on.clone()?;
        let parent = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &HeaderExtractor(request.headers()));
        let span = on
            .tracer
            .span_builder(request.method().as_str().to_owned())
            .with_kind(SpanKind::Server)
            .with_attributes([KeyValue::new("http.request.method", request.method().as_str().to_owned())])
            .start_with_context(&on.tracer, &parent);
        Some(RequestSpan { context: parent.with_span(span), method: request.method().as_str().into(), on })
    }

    /// Sends what was not sent yet. Spans that are begun later are lost.
    pub async fn shut_down(self) {
        let Some(on) = self.on else { return };
        // The exporter's thread waits for a task of this runtime, so nothing may wait for it here.
        let ended = tokio::task::spawn_blocking(move || on.provider.shutdown_with_timeout(FLUSH)).await;
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(cause = %error, "stopping: the last traces could not be sent to the collector")
            }
            Err(error) => tracing::warn!(cause = %error, "stopping: the exporter of traces panicked"),
        }
    }
}

/// What became of a request, for its span.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// The route that it matched.
    pub route: &'a str,
    /// The status of its answer.
    pub status: StatusCode,
    /// How it was handled, as [`Handled::name`](super::metrics::Handled::name) has it.
    pub decision: &'a str,
}

/// The server span of one request. Clones are the same span: the work may add to it after its request has gone.
#[derive(Clone)]
pub struct RequestSpan {
    on: Arc<On>,
    context: Context,
    method: Box<str>,
}

impl RequestSpan {
    /// The trace that the request belongs to, in hexadecimal.
    pub fn trace_id(&self) -> String {
        self.context.span().span_context().trace_id().to_string()
    }

    /// A span for the log: every line that is written within it has the ids. At the highest level, so that no level that is
    /// configured leaves it out of the lines that are logged.
    fn log(&self) -> tracing::Span {
        let span = self.context.span();
        let context = span.span_context();
        tracing::error_span!(LOG_SPAN, trace_id = %context.trace_id(), span_id = %context.span_id())
    }

    /// Notes which operation the request is about.
    pub fn operation(&self, id: onceward::RecordId) {
        self.context.span().set_attribute(KeyValue::new("onceward.operation", id.to_string()));
    }

    /// The client span of a call of the upstream.
    pub fn upstream(&self) -> UpstreamSpan {
        let span = self
            .on
            .tracer
            .span_builder(self.method.to_string())
            .with_kind(SpanKind::Client)
            .with_attributes([KeyValue::new("http.request.method", self.method.to_string())])
            .start_with_context(&self.on.tracer, &self.context);
        UpstreamSpan { context: self.context.with_span(span) }
    }

    /// The request was answered.
    pub fn end(self, ended: Ended<'_>) {
        let span = self.context.span();
        span.update_name(format!("{} {}", self.method, ended.route));
        span.set_attribute(KeyValue::new("http.route", ended.route.to_owned()));
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(ended.status.as_u16())));
        span.set_attribute(KeyValue::new("onceward.decision", ended.decision.to_owned()));
        if ended.status.is_server_error() {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// The client span of a call of the upstream. It ends when it is dropped, at the latest.
pub struct UpstreamSpan {
    context: Context,
}

impl UpstreamSpan {
    /// Tells the upstream its place in the trace.
    pub fn inject(&self, headers: &mut HeaderMap) {
        TraceContextPropagator::new().inject_context(&self.context, &mut HeaderInjector(headers));
        // An empty state is written as an empty header, which says nothing and upsets strict readers.
        if headers.get("tracestate").is_some_and(|state| state.is_empty()) {
            headers.remove("tracestate");
        }
    }

    /// The upstream answered.
    pub fn answered(self, status: StatusCode) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_client_error() || status.is_server_error() {
            span.set_status(Status::error(""));
        }
        span.end();
    }

    /// The upstream gave no whole answer. The words say why, without keys or bodies.
    pub fn failed(self, why: &str) {
        let span = self.context.span();
        span.set_status(Status::error(why.to_owned()));
        span.end();
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.on.is_some() { "Tracer(on)" } else { "Tracer(off)" })
    }
}

impl fmt::Debug for RequestSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestSpan").field("trace_id", &self.trace_id()).finish_non_exhaustive()
    }
}

impl fmt::Debug for UpstreamSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamSpan")
    }
}
