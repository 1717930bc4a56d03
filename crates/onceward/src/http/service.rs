//! The service: decides what is to be done with a request, and matches on it.

use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::header::{CONNECTION, EXPECT};
use ::http::{HeaderValue, Request, Response, Version};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::admit::{Admission, Ticket, admit};
use super::body::{Body, Drained, Whole, drain};
use super::classify::{OnError, Unsure};
use super::exchange::Exchange;
use super::future::ResponseFuture;
use super::handled::{Handled, How};
use super::layer::Shared;
use super::policy::Flavor;
use super::problem::Problem;
use super::{operation_headers, reply, shadow, wellknown};
use crate::{Key, Scope};

/// A service whose retried writes happen once. Made by [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Debug)]
pub struct Idempotency<S, C = Unsure> {
    inner: S,
    shared: Arc<Shared>,
    on_error: Arc<C>,
}

impl<S, C> Idempotency<S, C> {
    pub(super) fn new(inner: S, shared: Arc<Shared>, on_error: Arc<C>) -> Self {
        Self { inner, shared, on_error }
    }

    fn exchange(&self, ticket: Ticket) -> Exchange<C> {
        Exchange { shared: self.shared.clone(), on_error: self.on_error.clone(), ticket: Arc::new(ticket) }
    }
}

impl<S: Clone, C> Clone for Idempotency<S, C> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.shared.clone(), self.on_error.clone())
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
        // The one that was made ready goes with this request; its clone waits to be made ready for the next.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        let (parts, body) = request.into_parts();
        match admit(&self.shared, &parts) {
            Admission::Pass(route, how) => {
                let request = Request::from_parts(parts, Body::passed(body));
                ResponseFuture::passed(ready.call(request), Handled { route, how, operation: None })
            }
            Admission::Observe(ticket) => {
                let handled = Handled::new(&ticket.route, How::Observed);
                let exchange = self.exchange(ticket);
                let (body, shadow) = shadow::observe(exchange, &parts, body);
                let answer = shadow.watch(ready.call(Request::from_parts(parts, body)));
                ResponseFuture::handled(Box::pin(
                    async move { Ok(handled.mark(answer.await?.map(Body::passed))) },
                ))
            }
            Admission::Page => {
                let page = wellknown::page(&self.shared.routes, &self.shared.links, &parts.headers);
                let page = reply::to(&parts.method, page).map(Body::whole);
                let page = published(&self.shared).mark(page);
                ResponseFuture::handled(Box::pin(async move { Ok(page) }))
            }
            Admission::Status(scope, key) => {
                let shared = self.shared.clone();
                ResponseFuture::handled(Box::pin(async move {
                    let response = status(&shared, &scope, &key).await;
                    Ok(reply::to(&parts.method, response).map(Body::whole))
                }))
            }
            Admission::Refuse(problem, flavor, route) => {
                let response = problem.response(flavor, &self.shared.links);
                let response = reply::to(&parts.method, response);
                let handled = Handled { route, how: How::Refused(problem.code()), operation: None };
                ResponseFuture::handled(Box::pin(async move {
                    let response = refused(response, &Request::from_parts(parts, ()), body).await;
                    Ok(handled.mark(response.map(Body::whole)))
                }))
            }
            Admission::Protect(ticket) => {
                let exchange = self.exchange(ticket);
                // A request that may have to wait for another must not hold the capacity that the other needs: the
                // clone is made ready when it is about to be called.
                let unready = ready.clone();
                drop(ready);
                ResponseFuture::handled(Box::pin(exchange.answer(unready, parts, body)))
            }
        }
    }
}

fn published(shared: &Shared) -> Handled {
    Handled::new(shared.routes.no_name(), How::Published)
}

async fn status(shared: &Shared, scope: &Scope, key: &Key) -> Response<Whole> {
    let problem = match shared.engine.look_up(scope, key).await {
        Ok(Some(record)) => return published(shared).mark(wellknown::status(&record)),
        Ok(None) => Problem::KeyNotFound,
        Err(_) => Problem::StoreUnavailable,
    };
    let how = How::Refused(problem.code());
    Handled::new(shared.routes.no_name(), how).mark(problem.response(Flavor::Ietf, &shared.links))
}

/// A refusal of a request whose body nobody has read. What is left of it must not be taken for the next request.
async fn refused<B: HttpBody>(
    mut response: Response<Whole>,
    request: &Request<()>,
    body: B,
) -> Response<Whole> {
    // HTTP/2 and later keep requests apart by themselves.
    if request.version() > Version::HTTP_11 {
        return response;
    }
    // A client that waits for `100 Continue` has sent nothing, and reading would ask it to.
    let drained = if request.headers().contains_key(EXPECT) { Drained::Rest } else { drain(body).await };
    if drained == Drained::Rest {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
