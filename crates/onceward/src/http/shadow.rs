//! A route that only observes: what would have been done with a request is counted, and the request goes through.
//!
//! Beside the request a claim is made in a domain of its own, where no protected operation can meet it. It begins when the
//! service has read the whole body, whose fingerprint it needs, and is settled with the class of the answer, without
//! anything of the answer. Nobody waits for it: not the service, not the client, and not an operator, because the machine
//! leaves no shadow unknown. What has no outcome, even if this process dies, expires like an answer.

use std::future::Future;

use ::http::{Request, Response, request};
use http_body::Body as HttpBody;
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span};

use super::body::{Body, Copied};
use super::classify::{Class, Failure, OnError};
use super::exchange::Exchange;
use super::policy::Policy;
use super::suspicion::is_suspicious;
use crate::{Outcome, Reply, engine::Observation};

/// Sees how a request ends, and tells its shadow.
pub(super) struct Shadow<C> {
    exchange: Exchange<C>,
    told: Option<oneshot::Sender<Outcome>>,
}

/// Begins to observe. The body must be sent in place of the one that was given.
pub(super) fn observe<B, C>(exchange: Exchange<C>, parts: &request::Parts, body: B) -> (Body<B>, Shadow<C>)
where
    B: HttpBody,
    C: Send + Sync + 'static,
{
    let ((whole, read), (told, ended)) = (oneshot::channel(), oneshot::channel());
    let shared = &exchange.shared;
    let body =
        Body::copied(body, Copied::new(exchange.ticket.policy.max_request_body, shared.room.open(), whole));
    let mut head = Request::new(());
    *head.method_mut() = parts.method.clone();
    *head.uri_mut() = parts.uri.clone();
    *head.headers_mut() = parts.headers.clone();
    let shadow = exchange.clone();
    let observing = async move {
        // A body that was not read to its end, or does not fit, has no fingerprint: nothing is counted.
        let Ok((data, drawn)) = read.await else { return };
        let Some(claim) = shadow.claim(&head.into_parts().0, &data) else { return };
        drop((data, drawn));
        let engine = shadow.shared.engine.clone();
        let ran = engine.run(claim, move |operation| async move {
            if is_suspicious(&shadow.ticket.key) {
                shadow.note(operation.id(), Observation::SuspiciousKey);
            }
            // The client went away, and the request with it. Protected work would have run on to its end.
            ended.await.unwrap_or_else(|_| completed(&shadow.ticket.policy, 200))
        });
        // A store that is away, or an engine that has no room, changes nothing for the request either.
        if let Err(error) = ran.await {
            tracing::debug!(%error, "a request was not observed");
        }
    };
    tokio::spawn(observing.instrument(Span::current()));
    (body, Shadow { exchange, told: Some(told) })
}

impl<C> Shadow<C> {
    /// Passes the answer on as it is.
    pub(super) async fn watch<R, E>(
        mut self,
        answer: impl Future<Output = Result<Response<R>, E>>,
    ) -> Result<Response<R>, E>
    where
        C: OnError<E>,
    {
        let answer = answer.await;
        let outcome = match &answer {
            Ok(response) => {
                let policy = &self.exchange.ticket.policy;
                let status = response.status();
                self.exchange.warn_of_invalid_outcome(response.headers(), None);
                match Class::of(policy, status, response.headers()) {
                    Class::Completed => completed(policy, status.as_u16()),
                    Class::Retryable => {
                        Outcome::Retryable("the answer proves that nothing was done".to_owned())
                    }
                    Class::Unknown => Outcome::said_unknown("the answer's class is unknown"),
                }
            }
            Err(error) => match self.exchange.on_error.failure(error) {
                Failure::NotExecuted => Outcome::Retryable(self.exchange.on_error.words(error)),
                Failure::TimedOut | Failure::Broken => Outcome::lost(self.exchange.on_error.words(error)),
            },
        };
        self.tell(outcome);
        answer
    }

    fn tell(&mut self, outcome: Outcome) {
        if let Some(told) = self.told.take() {
            // Nobody listens where the request was not counted.
            drop(told.send(outcome));
        }
    }
}

impl<C> Drop for Shadow<C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell(Outcome::lost("the service panicked"));
        }
    }
}

/// Nothing of an answer is kept but its status.
fn completed(policy: &Policy, status: u16) -> Outcome {
    Outcome::completed(Reply { version: policy.response_version, ..Reply::new("").with_status(status) })
}
