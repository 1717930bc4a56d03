//! One call of the inner service, and what its answer means.

use ::http::header::CONTENT_LENGTH;
use ::http::{HeaderMap, Method, Request, Response, StatusCode, response};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::body::{Body, ReadResult, WholeBody, read};
use super::body_budget::BudgetShare;
use super::classify::{Class, Failure, OnError};
use super::close_delimited::{CloseDelimited, EndsWithConnection};
use super::exchange::Exchange;
use super::policy::Policy;
use super::problem::{AnswerFault, Problem};
use super::suspicion::is_suspicious;
use super::unprotected::Envelope;
use super::{operation_headers, reply};
use crate::outcome::Unsure;
use crate::record::{Cause, Receipts};
use crate::time::sleep;
use crate::{Operation, OperationId, Outcome, engine::Observation};

/// Why nothing was sent where the service did not become ready in time.
const NOT_READY: &str = "the service was not ready in time, and was not called";

/// What the client whose request was executed gets once the outcome is stored: the answer as it came, or why there is none.
pub(super) type FirstAnswer = Result<Box<Response<WholeBody>>, Problem>;

impl<C> Exchange<C> {
    /// Calls the inner service, once.
    pub(super) async fn execute<S, B, R>(
        &self,
        mut inner: S,
        operation: &Operation,
        envelope: &Envelope<B>,
    ) -> (Outcome, FirstAnswer)
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        C: OnError<S::Error>,
        R: HttpBody,
    {
        if is_suspicious(&self.keyed.key) {
            self.note(operation.id(), Observation::SuspiciousKey);
        }
        let ready = tokio::select! {
            biased;
            ready = std::future::poll_fn(|context| inner.poll_ready(context)) => ready.map_err(|error| {
                format!("the service was not called, because it failed to become ready: {}", self.on_error.words(&error))
            }),
            () = async { sleep(operation.begin_within()).await } => Err(NOT_READY.to_owned()),
        };
        match ready {
            Err(why) => return not_executed(operation, why),
            Ok(()) if operation.begin_within().is_zero() => {
                return not_executed(operation, NOT_READY.to_owned());
            }
            Ok(()) => {}
        }
        let Some(mut request) = envelope.take() else {
            return no_whole_answer(AnswerFault::Broken, "the request had already been sent");
        };
        let method = request.method().clone();
        operation_headers::add(&mut request, operation);
        let classified = |error: S::Error| (self.on_error.failure(&error), self.on_error.words(&error));
        let ended = match inner.call(request).await.map_err(classified) {
            Ok(response) => {
                self.warn_of_invalid_outcome(response.headers(), Some(operation.operation_id()));
                self.judge(operation, &method, response).await
            }
            Err((Failure::NotExecuted, cause)) => return not_executed(operation, cause),
            Err((Failure::TimedOut, cause)) => Ended::silently(self.timed_out(&cause)),
            Err((Failure::Broken, cause)) => Ended::silently(no_whole_answer(AnswerFault::Broken, &cause)),
        };
        self.decided_by_receipt(operation, ended).await
    }

    /// The inner service gave up waiting. The work may go on, so its outcome is not found out at once.
    fn timed_out(&self, cause: &str) -> (Outcome, FirstAnswer) {
        let mut unsure = Unsure::new(Cause::Lost, cause);
        if self.keyed.policy.kept_receipts() == Receipts::Kept {
            unsure.find_after = self.keyed.policy.pause_before_find();
        }
        (Outcome::Unknown(unsure), Err(Problem::NoWholeAnswer(AnswerFault::TimedOut)))
    }

    /// Warns of an invalid `Onceward-Outcome`, which is ignored. Its value is not logged, because it is the service's text.
    pub(super) fn warn_of_invalid_outcome(&self, headers: &HeaderMap, operation: Option<OperationId>) {
        if Class::has_invalid_header(headers) {
            tracing::warn!(
                route = &*self.keyed.route,
                operation = operation.map(tracing::field::display),
                "an answer has an Onceward-Outcome other than completed, retryable or unknown: its status decides"
            );
        }
    }

    /// Reads the answer and decides what it means for the operation.
    async fn judge<R: HttpBody>(
        &self,
        operation: &Operation,
        method: &Method,
        response: Response<R>,
    ) -> Ended {
        let (parts, body) = response.into_parts();
        let class = Class::of(&self.keyed.policy, parts.status, &parts.headers);
        let done = class == Class::Completed && (parts.status.is_success() || Class::is_said(&parts.headers));
        let upstream_status = parts.status;
        let (outcome, first) = self.judge_whole(operation, method, (parts, body), class).await;
        let says = match &outcome {
            _ if !done => Says::Nothing,
            // A problem stands in the place of an answer that is too large.
            Outcome::Completed(reply) if reply.status == upstream_status.as_u16() => Says::Done,
            Outcome::Completed(_) | Outcome::Unknown(_) | Outcome::Retryable(_) | Outcome::Voided { .. } => {
                Says::DoneButNotWhole
            }
        };
        Ended { outcome, first, says }
    }

    async fn judge_whole<R: HttpBody>(
        &self,
        operation: &Operation,
        method: &Method,
        (parts, body): (response::Parts, R),
        class: Class,
    ) -> (Outcome, FirstAnswer) {
        let policy = &self.keyed.policy;
        if class == Class::Unknown {
            let upstream_status = parts.status;
            let why = format!(
                "the service answered {}, which leaves open whether the request was executed",
                upstream_status.as_u16()
            );
            return (Outcome::said_unknown(why), Err(Problem::UpstreamUnsure { upstream_status }));
        }
        if class == Class::Completed
            && policy.close_delimited == CloseDelimited::Proven
            && parts.extensions.get::<EndsWithConnection>().is_some()
        {
            self.layer.advice.close_delimited(&self.keyed.route);
        }
        match (read(body, policy.max_response_body, &mut BudgetShare::default()).await, class) {
            (ReadResult::Broken | ReadResult::BudgetExhausted, _) => {
                no_whole_answer(AnswerFault::Broken, "the service's answer broke off before it was whole")
            }
            (ReadResult::Whole(body), _) if is_cut_short(method, &parts, &body) => no_whole_answer(
                AnswerFault::Broken,
                "the answer is shorter or longer than its Content-Length",
            ),
            (ReadResult::Whole(body), Class::Completed | Class::Unknown)
                if !is_proven_whole(policy, &parts, &body) =>
            {
                no_whole_answer(
                    AnswerFault::Broken,
                    "the answer ended with its connection, and nothing proves that it is whole",
                )
            }
            (ReadResult::Whole(body), Class::Completed | Class::Unknown) => {
                let upstream_status = parts.status;
                let (reply, first) = reply::divide(policy, parts, body);
                if reply.bytes() > self.layer.engine.limits().reply_bytes {
                    return self.too_large(operation, upstream_status);
                }
                (Outcome::completed(reply), Ok(Box::new(first)))
            }
            (ReadResult::TooLarge, Class::Completed | Class::Unknown) => {
                self.too_large(operation, parts.status)
            }
            (ReadResult::Whole(body), Class::Retryable) => released(parts, body),
            // Nothing was done and nothing is kept, so its status and headers are enough.
            (ReadResult::TooLarge, Class::Retryable) => released(parts, WholeBody::default()),
        }
    }

    /// The work was done and its answer cannot be stored: a problem that says so is stored in its place.
    fn too_large(&self, operation: &Operation, upstream_status: StatusCode) -> (Outcome, FirstAnswer) {
        let problem = Problem::ResponseTooLarge { upstream_status };
        let reply = reply::stored(
            &self.keyed.policy,
            self.problem_response(&problem, Some(operation.operation_id())),
        );
        let first = reply::restore(&self.keyed.policy, &reply);
        (Outcome::completed(reply), Ok(Box::new(first)))
    }
}

/// How an execution ended.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) first: FirstAnswer,
    pub(super) says: Says,
}

/// What the service itself said of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// Nothing that counts as success.
    Nothing,
    /// With a whole answer, that it is done: 2xx, or `Onceward-Outcome: completed`.
    Done,
    /// The same, with an answer that is not whole, or too large to be kept.
    DoneButNotWhole,
}

impl Ended {
    fn silently((outcome, first): (Outcome, FirstAnswer)) -> Self {
        Self { outcome, first, says: Says::Nothing }
    }
}

/// The service was not reached. The cause is logged, and not sent to the client.
fn not_executed(operation: &Operation, cause: String) -> (Outcome, FirstAnswer) {
    operation.log_not_executed(&cause);
    (Outcome::Retryable(cause), Err(Problem::UpstreamUnreachable))
}

fn no_whole_answer(fault: AnswerFault, why: &str) -> (Outcome, FirstAnswer) {
    (Outcome::lost(why), Err(Problem::NoWholeAnswer(fault)))
}

/// A whole answer that proves that nothing was done.
fn released(parts: response::Parts, body: WholeBody) -> (Outcome, FirstAnswer) {
    let why = format!("the service answered {}: nothing was done", parts.status.as_u16());
    (Outcome::Retryable(why), Ok(Box::new(reply::released(parts, body))))
}

/// Whether the body has another length than its header says. A server that crashes closes its connection after a part.
fn is_cut_short(method: &Method, parts: &response::Parts, body: &WholeBody) -> bool {
    let bodiless =
        *method == Method::HEAD || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let announced =
        parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    !bodiless && announced.is_some_and(|announced| announced != body.data.len())
}

/// Whether the body is known to be whole. An answer that ends with its connection may have been cut off.
fn is_proven_whole(policy: &Policy, parts: &response::Parts, body: &WholeBody) -> bool {
    let ends_with_connection = parts.extensions.get::<EndsWithConnection>().is_some();
    !ends_with_connection || policy.close_delimited.accepts(&parts.headers, &body.data)
}
