//! The future that a call of the service returns.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::http::Response;

use super::body::Body;
use super::handled::Handled;

pub(super) type Boxed<R, E> = Pin<Box<dyn Future<Output = Result<Response<Body<R>>, E>> + Send>>;

pin_project_lite::pin_project! {
    /// The response to a request. Dropping it does not stop work that has begun under a key.
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        kind: Kind<F, R, E>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindProjected]
    enum Kind<F, R, E> {
        Passed { #[pin] future: F, handled: Option<Handled> },
        Handled { future: Boxed<R, E> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    /// The inner service makes the response, as if the layer were not there.
    pub(super) fn passed(future: F, handled: Handled) -> Self {
        Self { kind: Kind::Passed { future, handled: Some(handled) } }
    }

    /// The layer makes the response.
    pub(super) fn handled(future: Boxed<R, E>) -> Self {
        Self { kind: Kind::Handled { future } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjected::Passed { future, handled } => future.poll(context).map_ok(|response| {
                let response = response.map(Body::passed);
                match handled.take() {
                    Some(handled) => handled.mark(response),
                    None => response,
                }
            }),
            KindProjected::Handled { future } => future.as_mut().poll(context),
        }
    }
}

impl<F, R, E> std::fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
