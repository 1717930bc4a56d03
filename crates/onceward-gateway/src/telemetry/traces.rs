//! Traces of requests and of the calls to the upstream.
//!
//! Without a configured collector there are no spans, and the trace headers of clients pass through unchanged. With one, every
//! request has a server span that continues the client's trace, and every call of the upstream a client span within it, whose
//! context is sent to the upstream. Execution is detached from the request and may outlive it: put the [`RequestSpan`] into the
//! request's extensions, which the layer passes on to its inner service.

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

/// The path of traces in OTLP over HTTP.
const TRACES: &str = "/v1/traces";
/// The header with the trace that a client's request belongs to.
const TRACEPARENT: &str = "traceparent";
/// How long sending the last spans may take when the process ends.
const FLUSH: Duration = Duration::from_secs(5);

/// The name of a request's span in the log.
pub(super) const LOG_SPAN: &str = "request";

/// The span in which lines about a request are logged: with the ids of its own trace, with the trace id that its client sent, or
/// with none.
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

/// Starts spans if a collector is configured. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tracer {
    exporting: Option<Arc<Exporting>>,
}

struct Exporting {
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
        Ok(Self { exporting: Some(Arc::new(Exporting { provider, tracer })) })
    }

    /// The span of an incoming request: it continues the client's trace, or begins one.
    pub fn request<B>(&self, request: &Request<B>) -> Option<RequestSpan> {
        let exporting = self.exporting.clone()?;
        let parent = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &HeaderExtractor(request.headers()));
        let span = exporting
            .tracer
            .span_builder(request.method().as_str().to_owned())
            .with_kind(SpanKind::Server)
            .with_attributes([KeyValue::new("http.request.method", request.method().as_str().to_owned())])
            .start_with_context(&exporting.tracer, &parent);
        Some(RequestSpan {
            context: parent.with_span(span),
            method: request.method().as_str().into(),
            exporting,
        })
    }

    /// Sends the remaining spans. Spans that begin later are lost.
    pub async fn shut_down(self) {
        let Some(exporting) = self.exporting else { return };
        // The exporter's thread waits for a task of this runtime, so a worker thread must not block on it.
        let ended =
            tokio::task::spawn_blocking(move || exporting.provider.shutdown_with_timeout(FLUSH)).await;
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(cause = %error, "stopping: the last traces could not be sent to the collector")
            }
            Err(error) => tracing::warn!(cause = %error, "stopping: the exporter of traces panicked"),
        }
    }
}

/// The attributes that a request's span gets at its end.
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
    exporting: Arc<Exporting>,
    context: Context,
    method: Box<str>,
}

impl RequestSpan {
    /// The trace that the request belongs to, in hexadecimal.
    pub fn trace_id(&self) -> String {
        self.context.span().span_context().trace_id().to_string()
    }

    /// A span for the log, whose lines have the ids. It has the highest level, so that no configured level leaves it out.
    fn log(&self) -> tracing::Span {
        let span = self.context.span();
        let context = span.span_context();
        tracing::error_span!(LOG_SPAN, trace_id = %context.trace_id(), span_id = %context.span_id())
    }

    /// Notes which operation the request is about.
    pub fn operation(&self, id: onceward::OperationId) {
        self.context.span().set_attribute(KeyValue::new("onceward.operation", id.to_string()));
    }

    /// The client span of a call of the upstream.
    pub fn upstream(&self) -> UpstreamSpan {
        let span = self
            .exporting
            .tracer
            .span_builder(self.method.to_string())
            .with_kind(SpanKind::Client)
            .with_attributes([KeyValue::new("http.request.method", self.method.to_string())])
            .start_with_context(&self.exporting.tracer, &self.context);
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
    /// Adds the span's context to the headers for the upstream.
    pub fn inject(&self, headers: &mut HeaderMap) {
        TraceContextPropagator::new().inject_context(&self.context, &mut HeaderInjector(headers));
        // An empty state becomes an empty header, which strict parsers refuse.
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

    /// The upstream gave no whole answer. `why` has no keys or bodies in it.
    pub fn failed(self, why: &str) {
        let span = self.context.span();
        span.set_status(Status::error(why.to_owned()));
        span.end();
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.exporting.is_some() { "Tracer(on)" } else { "Tracer(off)" })
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
