//! One protected request, from its body to its answer.

use std::future::Future;
use std::sync::Arc;

use ::http::header::{CONNECTION, EXPECT};
use ::http::{HeaderMap, HeaderValue, Request, Response, Version, request};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::admit::KeyedRequest;
use super::body::{Body, ReadResult, WholeBody, read};
use super::body_budget::BudgetShare;
use super::classify::OnError;
use super::encoding::AcceptedEncodings;
use super::execute::FirstAnswer;
use super::handled::{Disposition, Handled};
use super::header::STORE;
use super::layer::LayerState;
use super::policy::InProgress;
use super::problem::{AnswerFault, Problem};
use super::unprotected::{Envelope, send_unprotected};
use super::{operation_headers, reply};
use crate::claim::RequestLine;
use crate::engine::{SeenOperation, WorkValue};
use crate::fingerprint::{Headers, Parts};
use crate::time::sleep;
use crate::{Claim, OperationId, Ran, RecordId, engine::Observation};

/// What handling one keyed request needs besides the request's head and body.
pub(super) struct Exchange<C> {
    pub layer: Arc<LayerState>,
    pub on_error: Arc<C>,
    pub keyed: Arc<KeyedRequest>,
}

impl<C> Clone for Exchange<C> {
    fn clone(&self) -> Self {
        let Self { layer, on_error, keyed } = self;
        Self { layer: layer.clone(), on_error: on_error.clone(), keyed: keyed.clone() }
    }
}

/// No registered content coding has a longer name. A longer one is cut off in a problem's detail.
const CODING_CHARS: usize = 32;

impl<C> Exchange<C> {
    /// Answers the client. The future may be dropped at any time: work that has begun goes on.
    pub(super) async fn answer<S, B, R>(
        self,
        inner: S,
        parts: request::Parts,
        body: B,
    ) -> Result<Response<Body<R>>, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        C: OnError<S::Error>,
        B: HttpBody + Send + 'static,
        R: HttpBody + Send + 'static,
    {
        let id = self.layer.engine.id_of(&self.keyed.scope, &self.keyed.key);
        let handled = |disposition, operation| {
            let operation = Some(operation);
            Handled { route: self.keyed.route.clone(), disposition, operation }
        };
        let method = parts.method.clone();
        let whole = |(response, disposition), operation| {
            let response = reply::for_method(&method, response);
            Ok(handled(disposition, operation).mark(response.map(Body::whole)))
        };
        // The window is not known before the record was read.
        let unread = |answer| whole(answer, OperationId::bare(id));
        let mut share = self.layer.body_budget.empty_share();
        let body = match self.read(body, &mut share).await {
            Ok(mut body) => {
                body.trailers.iter_mut().for_each(operation_headers::remove);
                body
            }
            Err(problem) => return unread(self.refused_unread(parts.version, problem)),
        };
        let Some(claim) = self.claim(&parts, &body) else {
            return unread(self.refused(&Problem::StoreUnavailable, None));
        };
        let entry = match self.enter(id) {
            Ok(entry) => entry,
            Err(problem) => return unread(self.refused(&problem, None)),
        };
        let accepted = AcceptedEncodings::of(&parts.headers);
        let mut request = Request::from_parts(parts, Body::with_share(body, share));
        // `100-continue` was answered when the body was read.
        request.headers_mut().remove(EXPECT);
        let envelope = Envelope::new(request);
        let work = {
            let (exchange, inner) = (self.clone(), inner.clone());
            let (envelope, entry) = (envelope.clone(), entry.clone());
            move |operation| async move {
                let _entry = entry;
                exchange.execute(inner, &operation, &envelope).await
            }
        };
        // Pinned here, because passing it on unpinned would move some kilobytes.
        let seen = SeenOperation::default();
        let run = std::pin::pin!(self.layer.engine.run_with(id, claim, &seen, work));
        let ran = self.within_response_time(run).await;
        let operation = seen.get();
        let named = |mut answer: (Response<WholeBody>, Disposition)| match operation {
            Some(operation) => {
                operation_headers::name(answer.0.headers_mut(), operation);
                whole(answer, operation)
            }
            None => unread(answer),
        };
        match ran {
            None => named(self.unanswered(&Problem::StillWorking, operation)),
            Some(Ok((ran, first))) => named(self.answer_for(ran, first, &accepted, operation)),
            Some(Err(error)) => match envelope.take() {
                // The work has sent the request, and its outcome was lost.
                None => named(self.unanswered(&Problem::NoWholeAnswer(AnswerFault::Broken), operation)),
                Some(_) if !self.may_go_unprotected(id, &error, entry.as_deref()) => {
                    named(self.refused(&Problem::StoreUnavailable, operation))
                }
                Some(request) => {
                    let mut response = send_unprotected(inner, request, entry).await?;
                    response.headers_mut().insert(STORE, HeaderValue::from_static("unavailable"));
                    Ok(handled(Disposition::Unprotected, OperationId::bare(id)).mark(response))
                }
            },
        }
    }

    /// Reads the request's body, within the limits of time, size and memory. Nothing is claimed before it is whole.
    async fn read<B: HttpBody>(&self, body: B, share: &mut BudgetShare) -> Result<WholeBody, Problem> {
        let (limit, patience) = (self.keyed.policy.max_request_body, self.layer.body_patience);
        let read = tokio::select! {
            biased;
            read = read(body, limit, share) => read,
            () = sleep(patience) => return Err(Problem::RequestSlow { patience }),
        };
        match read {
            ReadResult::Whole(body) => Ok(body),
            ReadResult::TooLarge => Err(Problem::RequestTooLarge { limit }),
            ReadResult::Broken => Err(Problem::RequestBroken),
            ReadResult::BudgetExhausted => Err(Problem::BodyBudgetExhausted),
        }
    }

    pub(super) fn note(&self, id: RecordId, what: Observation) {
        self.layer.engine.note(&self.keyed.route, id, what);
    }

    pub(super) fn claim(&self, parts: &request::Parts, body: &WholeBody) -> Option<Claim> {
        let KeyedRequest { policy, route, scope, key, attach } = &*self.keyed;
        let fingerprint = policy.fingerprint.fingerprint(&Parts {
            method: parts.method.as_str(),
            path: parts.uri.path(),
            query: parts.uri.query(),
            headers: &parts.headers,
            body: &body.data,
        });
        let claim = policy.claim((scope.clone(), key.clone()), fingerprint, route, *attach);
        let claim = claim.map(|claim| {
            claim.request_line(RequestLine { method: parts.method.as_str(), path: parts.uri.path() })
        });
        // `Routes` made a claim with the same settings when it checked the policy.
        let refused = |error: &crate::claim::ClaimError| {
            tracing::error!(
                cause = %error,
                "a route's policy was refused after it had been checked, which is a bug: please report it"
            );
        };
        claim.inspect_err(refused).ok()
    }

    /// Awaits `run` for as long as the route keeps its clients waiting. `None` where that time is over first.
    async fn within_response_time<T>(&self, run: impl Future<Output = T>) -> Option<T> {
        let policy = &self.keyed.policy;
        if policy.respond_within >= policy.timeout {
            return Some(run.await);
        }
        tokio::select! {
            biased;
            ran = run => Some(ran),
            () = sleep(policy.respond_within) => None,
        }
    }

    pub(super) fn problem_response(
        &self,
        problem: &Problem,
        operation: Option<OperationId>,
    ) -> Response<WholeBody> {
        problem.response(self.keyed.policy.flavor, &self.layer.links, operation)
    }

    fn refused(
        &self,
        problem: &Problem,
        operation: Option<OperationId>,
    ) -> (Response<WholeBody>, Disposition) {
        (self.problem_response(problem, operation), Disposition::Refused(problem.code()))
    }

    fn unanswered(
        &self,
        problem: &Problem,
        operation: Option<OperationId>,
    ) -> (Response<WholeBody>, Disposition) {
        (self.problem_response(problem, operation), Disposition::Unanswered(problem.code()))
    }

    /// Refuses a request whose body was not read to its end. Over HTTP/1 its connection cannot be used again.
    fn refused_unread(&self, version: Version, problem: Problem) -> (Response<WholeBody>, Disposition) {
        let (mut response, disposition) = self.refused(&problem, None);
        if version <= Version::HTTP_11 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        (response, disposition)
    }

    /// Chooses the client's answer: the one of its own execution, the stored one, or a problem.
    fn answer_for(
        &self,
        ran: Ran,
        first: WorkValue<FirstAnswer>,
        accepted: &AcceptedEncodings,
        operation: Option<OperationId>,
    ) -> (Response<WholeBody>, Disposition) {
        let policy = &self.keyed.policy;
        let refused = |problem| self.refused(problem, operation);
        let unanswered = |problem| self.unanswered(problem, operation);
        match (ran, first) {
            (Ran::Executed { expires_at, .. }, WorkValue::Returned(Ok(first))) => {
                (reply::executed(*first, expires_at), Disposition::Executed)
            }
            (Ran::Executed { reply, expires_at }, _) => {
                (reply::executed(reply::restore(policy, &reply), expires_at), Disposition::Executed)
            }
            (Ran::Replayed { reply, expires_at }, _) => match accepted.first_refused(&reply) {
                None => (reply::replayed(policy, &reply, expires_at), Disposition::Replayed),
                Some(coding) => {
                    let coding = coding.chars().take(CODING_CHARS).collect();
                    refused(&Problem::EncodingNotAccepted { coding })
                }
            },
            (Ran::Refused(refusal), first) => {
                let problem = match (Problem::of(refusal), policy.in_progress) {
                    (Problem::InProgress { retry_after }, InProgress::Accepted) => {
                        let location = self.layer.links.status_of(&self.keyed.key);
                        Problem::Accepted { retry_after, location }
                    }
                    (problem, _) => problem,
                };
                match first {
                    WorkValue::NotRun | WorkValue::Returned(Err(Problem::UpstreamUnreachable)) => {
                        refused(&problem)
                    }
                    // The service was called, but its answer is not the operation's: the tenure was over, or an earlier
                    // attempt is in doubt.
                    WorkValue::Returned(_) | WorkValue::Panicked | WorkValue::Unfinished => {
                        unanswered(&problem)
                    }
                }
            }
            (Ran::Retryable(_), WorkValue::Returned(Ok(response))) => (*response, Disposition::Released),
            (Ran::Retryable(_), WorkValue::Returned(Err(problem @ Problem::NotCommitted { .. }))) => {
                unanswered(&problem)
            }
            (Ran::Retryable(_), _) => unanswered(&Problem::UpstreamUnreachable),
            (Ran::Unknown(_), WorkValue::Returned(Ok(_))) => unanswered(&Problem::AnswerNotStored),
            (
                Ran::Unknown(_),
                WorkValue::Returned(Err(
                    problem @ (Problem::UpstreamUnsure { .. } | Problem::NoWholeAnswer(_)),
                )),
            ) => unanswered(&problem),
            (Ran::Unknown(_), WorkValue::Panicked) => {
                unanswered(&Problem::NoWholeAnswer(AnswerFault::Broken))
            }
            (Ran::Unknown(_), WorkValue::Returned(Err(_)) | WorkValue::NotRun | WorkValue::Unfinished) => {
                unanswered(&Problem::NoWholeAnswer(AnswerFault::TimedOut))
            }
        }
    }
}

impl Headers for HeaderMap {
    fn each<'a>(&'a self, name: &str, value: &mut dyn FnMut(&'a [u8])) {
        self.get_all(name).iter().for_each(|found| value(found.as_bytes()));
    }
}
