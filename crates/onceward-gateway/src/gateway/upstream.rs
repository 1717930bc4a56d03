//! Between the layer and the proxy: turns what is known of a request (its operation, its key, its span, its client) into the
//! proxy's own terms.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use onceward::Operation;
use onceward::http::header::IDEMPOTENCY_KEY;
use onceward::plumbing::time::instant;
use tower_service::Service;

use super::RequestBody;
use crate::client_address::ClientAddress;
use crate::proxy::{BeginLimit, Proxy, ProxyError, Reuse, SendTerms, UpstreamBody};
use crate::telemetry::traces::RequestSpan;

/// How long the upstream took to begin its answer. It is among the extensions of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UpstreamLatency(pub Duration);

/// The service inside the layer.
#[derive(Debug, Clone)]
pub(super) struct Upstream(pub Proxy<RequestBody>);

/// Work must begin within half of its lease, which every renewal extends.
impl BeginLimit for Operation {
    fn begin_within(&self) -> Duration {
        Operation::begin_within(self)
    }
}

impl Service<Request<RequestBody>> for Upstream {
    type Response = Response<UpstreamBody<RequestBody>>;
    type Error = ProxyError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ProxyError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ProxyError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<RequestBody>) -> Self::Future {
        let proxy = self.0.clone();
        let operation = request.extensions().get::<Operation>().cloned();
        // Also where a keyed request is passed on unprotected: on a used connection it could lose its answer just the same.
        let keyed = request.headers().contains_key(IDEMPOTENCY_KEY);
        let client = request.extensions_mut().remove::<ClientAddress>();
        let span = request.extensions().get::<RequestSpan>().map(RequestSpan::upstream);
        if let Some(span) = &span {
            span.inject(request.headers_mut());
        }
        // A request is large, and would be stored again in each of the futures that it goes through.
        let request = Box::new(request);
        Box::pin(async move {
            let sent = instant();
            let terms = SendTerms {
                client,
                reuse: if keyed { Reuse::Forbidden } else { Reuse::Allowed },
                begin_limit: operation.as_ref().map(|operation| operation as &dyn BeginLimit),
            };
            let mut answered = proxy.send(request, terms).await;
            if let Ok(response) = &mut answered {
                response.extensions_mut().insert(UpstreamLatency(instant().duration_since(sent)));
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
