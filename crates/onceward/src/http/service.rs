//! The tower service: admits, refuses or protects each request.

use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::header::{CONNECTION, EXPECT};
use ::http::{HeaderValue, Request, Response, Version};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::admit::{Admission, KeyedRequest, admit};
use super::body::{Body, Drained, WholeBody, drain};
use super::classify::{EveryErrorUnknown, OnError};
use super::exchange::Exchange;
use super::future::ResponseFuture;
use super::handled::{Disposition, Handled};
use super::layer::LayerState;
use super::policy::Flavor;
use super::problem::Problem;
use super::{operation_headers, reply, shadow, wellknown};
use crate::{Key, Scope};

/// A service whose retried writes happen once. Made by [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Debug)]
pub struct Idempotency<S, C = EveryErrorUnknown> {
    inner: S,
    layer: Arc<LayerState>,
    on_error: Arc<C>,
}

impl<S, C> Idempotency<S, C> {
    pub(super) fn new(inner: S, layer: Arc<LayerState>, on_error: Arc<C>) -> Self {
        Self { inner, layer, on_error }
    }

    fn exchange(&self, request: KeyedRequest) -> Exchange<C> {
        Exchange { layer: self.layer.clone(), on_error: self.on_error.clone(), keyed: Arc::new(request) }
    }
}

impl<S: Clone, C> Clone for Idempotency<S, C> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.layer.clone(), self.on_error.clone())
    }
}

impl<S, C, B, R> Service<Request<B>> for Idempotency<S, C>
where
    S: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    C: OnError<S::Error>,
    B: HttpBody + Send + 'static,
    R: HttpBody + Send + 'static,
{
    type Response = Response<Body<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        operation_headers::remove(request.headers_mut());
        // This request gets the service that `poll_ready` made ready. Its clone is not ready yet, and stays for the next.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        let (parts, body) = request.into_parts();
        match admit(&self.layer, &parts) {
            Admission::Pass(route, disposition) => {
                let request = Request::from_parts(parts, Body::passed(body));
                ResponseFuture::passed(ready.call(request), Handled { route, disposition, operation: None })
            }
            Admission::Observe(keyed) => {
                let handled = Handled::without_operation(&keyed.route, Disposition::Observed);
                let exchange = self.exchange(keyed);
                let (body, shadow) = shadow::observe(exchange, &parts, body);
                let answer = shadow.watch(ready.call(Request::from_parts(parts, body)));
                ResponseFuture::handled(Box::pin(
                    async move { Ok(handled.mark(answer.await?.map(Body::passed))) },
                ))
            }
            Admission::Page => {
                let page = wellknown::page(&self.layer.routes, &self.layer.links, &parts.headers);
                let page = reply::for_method(&parts.method, page).map(Body::whole);
                let page = published(&self.layer).mark(page);
                ResponseFuture::handled(Box::pin(async move { Ok(page) }))
            }
            Admission::Status(scope, key) => {
                let layer = self.layer.clone();
                ResponseFuture::handled(Box::pin(async move {
                    let response = key_status(&layer, &scope, &key).await;
                    Ok(reply::for_method(&parts.method, response).map(Body::whole))
                }))
            }
            Admission::Refuse(problem, flavor, route) => {
                let response = problem.response(flavor, &self.layer.links, None);
                let response = reply::for_method(&parts.method, response);
                let disposition = Disposition::Refused(problem.code());
                let handled = Handled { route, disposition, operation: None };
                ResponseFuture::handled(Box::pin(async move {
                    let response = refuse_unread(response, &Request::from_parts(parts, ()), body).await;
                    Ok(handled.mark(response.map(Body::whole)))
                }))
            }
            Admission::Protect(keyed) => {
                let exchange = self.exchange(keyed);
                // A request that waits for another must not hold the capacity that the other one needs. So readiness is
                // given back, and the clone is made ready just before it is called.
                let unready = ready.clone();
                drop(ready);
                ResponseFuture::handled(Box::pin(exchange.answer(unready, parts, body)))
            }
        }
    }
}

fn published(layer: &LayerState) -> Handled {
    Handled::without_operation(layer.routes.no_name(), Disposition::Published)
}

async fn key_status(layer: &LayerState, scope: &Scope, key: &Key) -> Response<WholeBody> {
    let id = layer.engine.id_of(scope, key);
    let problem = match layer.engine.look_up_now(id).await {
        Ok(Some((record, now))) => {
            let operation = record.operation(id);
            let mut response = wellknown::status(&record, operation, now);
            operation_headers::name(response.headers_mut(), operation);
            return published(layer).mark(response);
        }
        Ok(None) => Problem::KeyNotFound,
        Err(_) => Problem::StoreUnavailable,
    };
    let refused = Disposition::Refused(problem.code());
    let handled = Handled::without_operation(layer.routes.no_name(), refused);
    handled.mark(problem.response(Flavor::Ietf, &layer.links, None))
}

/// Refuses a request whose body was not read. What is left of the body must not be taken for the next request.
async fn refuse_unread<B: HttpBody>(
    mut response: Response<WholeBody>,
    request: &Request<()>,
    body: B,
) -> Response<WholeBody> {
    // HTTP/2 and later frame each request, so nothing can be mistaken for another one.
    if request.version() > Version::HTTP_11 {
        return response;
    }
    // A client that waits for `100 Continue` has not sent its body, and reading would ask for it.
    let drained = if request.headers().contains_key(EXPECT) { Drained::Rest } else { drain(body).await };
    if drained == Drained::Rest {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
