//! A route that only observes: a request goes through, and what protection would have done is counted.
//!
//! 1. The request goes to the service, and its body is copied on the way.
//! 2. When the service has read the whole body, its fingerprint is known: a claim is made in a domain of its own, which no
//!    protected operation uses. Its record is the shadow.
//! 3. When the service answers, the shadow is settled with the class of the answer. Nothing of the answer but its status is
//!    stored.
//!
//! The request never waits for its shadow. The machine leaves no shadow unknown, so none waits for an operator. A shadow
//! without an outcome, because this process died, expires like an answer.

use std::future::Future;

use ::http::{Request, Response, request};
use http_body::Body as HttpBody;
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span};

use super::body::{Body, BodyCopy};
use super::classify::{Class, Failure, OnError};
use super::exchange::Exchange;
use super::policy::Policy;
use super::suspicion::is_suspicious;
use crate::{Outcome, Reply, engine::Observation};

/// Sends the outcome of an observed request to the task that settles its shadow.
pub(super) struct Shadow<C> {
    exchange: Exchange<C>,
    outcome: Option<oneshot::Sender<Outcome>>,
}

/// Begins to observe a request. The service must be sent the returned body in place of the given one.
pub(super) fn observe<B, C>(exchange: Exchange<C>, parts: &request::Parts, body: B) -> (Body<B>, Shadow<C>)
where
    B: HttpBody,
    C: Send + Sync + 'static,
{
    let ((copy, copied), (outcome, ended)) = (oneshot::channel(), oneshot::channel());
    let share = exchange.layer.body_budget.empty_share();
    let body = Body::copied(body, BodyCopy::new(exchange.keyed.policy.max_request_body, share, copy));
    let mut head = Request::new(());
    *head.method_mut() = parts.method.clone();
    *head.uri_mut() = parts.uri.clone();
    *head.headers_mut() = parts.headers.clone();
    let shadow = exchange.clone();
    let observing = async move {
        // A body that was not read to its end, or does not fit, has no fingerprint: nothing is counted.
        let Ok((data, share)) = copied.await else { return };
        let Some(claim) = shadow.claim(&head.into_parts().0, &data) else { return };
        drop((data, share));
        let engine = shadow.layer.engine.clone();
        let ran = engine.run(claim, move |operation| async move {
            if is_suspicious(&shadow.keyed.key) {
                shadow.note(operation.id(), Observation::SuspiciousKey);
            }
            // The request was dropped, because its client went away. Protected work would have run to its end.
            ended.await.unwrap_or_else(|_| completed(&shadow.keyed.policy, 200))
        });
        // The request is not affected by a store that is away, or an engine at its limits.
        if let Err(error) = ran.await {
            tracing::debug!(%error, "a request was not observed");
        }
    };
    tokio::spawn(observing.instrument(Span::current()));
    (body, Shadow { exchange, outcome: Some(outcome) })
}

impl<C> Shadow<C> {
    /// Sends the outcome that the answer means, and returns the answer unchanged.
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
                let policy = &self.exchange.keyed.policy;
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
        self.send(outcome);
        answer
    }

    fn send(&mut self, outcome: Outcome) {
        if let Some(sender) = self.outcome.take() {
            // The receiver is gone where the request was not counted.
            drop(sender.send(outcome));
        }
    }
}

impl<C> Drop for Shadow<C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.send(Outcome::lost("the service panicked"));
        }
    }
}

/// A completed outcome that has only the answer's status.
fn completed(policy: &Policy, status: u16) -> Outcome {
    Outcome::completed(Reply { version: policy.response_version, ..Reply::new("").with_status(status) })
}
