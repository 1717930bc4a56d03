//! One protected request, from its body to its answer.

use std::future::Future;
use std::sync::Arc;

use ::http::header::{CONNECTION, EXPECT};
use ::http::{HeaderMap, HeaderValue, Request, Response, Version, request};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::admit::Ticket;
use super::body::{Body, Read, Whole, read};
use super::classify::OnError;
use super::encoding::Accepted;
use super::execute::FirstAnswer;
use super::handled::{Handled, How};
use super::header::STORE;
use super::held::Drawn;
use super::layer::Shared;
use super::policy::InProgress;
use super::problem::{Answerless, Problem};
use super::unprotected::{Envelope, pass};
use super::{operation_headers, reply};
use crate::claim::RequestLine;
use crate::engine::WorkValue;
use crate::fingerprint::{Headers, Parts};
use crate::time::sleep;
use crate::{Claim, Ran, RecordId, engine::Observation};

/// Everything that one protected request needs besides itself.
pub(super) struct Exchange<C> {
    pub shared: Arc<Shared>,
    pub on_error: Arc<C>,
    pub ticket: Arc<Ticket>,
}

impl<C> Clone for Exchange<C> {
    fn clone(&self) -> Self {
        let Self { shared, on_error, ticket } = self;
        Self { shared: shared.clone(), on_error: on_error.clone(), ticket: ticket.clone() }
    }
}

/// No registered content coding has a longer name; the rest is cut off.
const CODING_CHARS: usize = 32;

impl<C> Exchange<C> {
    /// Answers the client. May be dropped at any time: what has begun goes on.
    pub(super) async fn answer<S, B, R>(
        self,
        mut inner: S,
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
        let ticket = &self.ticket;
        let id = self.shared.engine.id_of(&ticket.scope, &ticket.key);
        let (response, how) = self.respond(id, &mut inner, parts, body).await?;
        Ok(Handled { route: ticket.route.clone(), how, operation: Some(id) }.mark(response))
    }

    async fn respond<S, B, R>(
        &self,
        id: RecordId,
        inner: &mut S,
        parts: request::Parts,
        body: B,
    ) -> Result<(Response<Body<R>>, How), S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        C: OnError<S::Error>,
        B: HttpBody + Send + 'static,
        R: HttpBody + Send + 'static,
    {
        let method = parts.method.clone();
        let whole = |(response, how)| Ok((reply::to(&method, response).map(Body::whole), how));
        let mut drawn = self.shared.room.open();
        let body = match self.read(body, &mut drawn).await {
            Ok(mut body) => {
                body.trailers.iter_mut().for_each(operation_headers::remove);
                body
            }
            Err(problem) => return whole(self.unread(parts.version, problem)),
        };
        let Some(claim) = self.claim(&parts, &body) else {
            return whole(self.refused(&Problem::StoreUnavailable));
        };
        let entry = match self.enter(id) {
            Ok(entry) => entry,
            Err(problem) => return whole(self.refused(&problem)),
        };
        let accepted = Accepted::by(&parts.headers);
        let mut request = Request::from_parts(parts, Body::held(body, drawn));
        // It was met here, when the body was read.
        request.headers_mut().remove(EXPECT);
        let envelope = Envelope::new(request);
        let work = {
            let (exchange, inner) = (self.clone(), inner.clone());
            let (envelope, entry) = (envelope.clone(), entry.clone());
            move |operation| async move {
                let _under_way = entry;
                exchange.execute(inner, &operation, &envelope).await
            }
        };
        // Pinned before it is handed on, which would move it otherwise.
        let run = std::pin::pin!(self.shared.engine.run_with(id, claim, work));
        let Some(ran) = self.within(run).await else {
            return whole(self.unanswered(&Problem::StillWorking));
        };
        match ran {
            Ok((ran, first)) => whole(self.answer_for(ran, first, &accepted)),
            Err(error) => match envelope.take() {
                // The work has sent it, and then could not say what came of it.
                None => whole(self.unanswered(&Problem::NoWholeAnswer(Answerless::Broken))),
                Some(_) if !self.passes_on(id, &error, entry.as_deref()) => {
                    whole(self.refused(&Problem::StoreUnavailable))
                }
                Some(request) => {
                    let mut response = pass(inner.clone(), request, entry).await?;
                    response.headers_mut().insert(STORE, HeaderValue::from_static("unavailable"));
                    Ok((response, How::Unprotected))
                }
            },
        }
    }

    /// The request's body, in time and within limits. Nothing is reserved before it is there.
    async fn read<B: HttpBody>(&self, body: B, drawn: &mut Drawn) -> Result<Whole, Problem> {
        let (limit, patience) = (self.ticket.policy.max_request_body, self.shared.body_patience);
        let read = tokio::select! {
            biased;
            read = read(body, limit, drawn) => read,
            () = sleep(patience) => return Err(Problem::RequestSlow { patience }),
        };
        match read {
            Read::Whole(body) => Ok(body),
            Read::TooLarge => Err(Problem::RequestTooLarge { limit }),
            Read::Broken => Err(Problem::RequestBroken),
            Read::NoRoom => Err(Problem::NoRoom),
        }
    }

    pub(super) fn note(&self, id: RecordId, what: Observation) {
        self.shared.engine.note(&self.ticket.route, id, what);
    }

    pub(super) fn claim(&self, parts: &request::Parts, body: &Whole) -> Option<Claim> {
        let Ticket { policy, route, scope, key, attach } = &*self.ticket;
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
        // The same call was made with the same settings when the layer was made.
        let refused = |error: &crate::claim::ClaimError| {
            tracing::error!(
                cause = %error,
                "a route's policy was refused after it had been checked, which is a bug: please report it"
            );
        };
        claim.inspect_err(refused).ok()
    }

    /// Keeps the client no longer than the route allows. Nothing where it was kept that long.
    async fn within<T>(&self, run: impl Future<Output = T>) -> Option<T> {
        let policy = &self.ticket.policy;
        if policy.respond_within >= policy.timeout {
            return Some(run.await);
        }
        tokio::select! {
            biased;
            ran = run => Some(ran),
            () = sleep(policy.respond_within) => None,
        }
    }

    pub(super) fn problem_response(&self, problem: &Problem) -> Response<Whole> {
        problem.response(self.ticket.policy.flavor, &self.shared.links)
    }

    fn refused(&self, problem: &Problem) -> (Response<Whole>, How) {
        (self.problem_response(problem), How::Refused(problem.code()))
    }

    fn unanswered(&self, problem: &Problem) -> (Response<Whole>, How) {
        (self.problem_response(problem), How::Unanswered(problem.code()))
    }

    /// A refusal of a request of which something was left unread.
    fn unread(&self, version: Version, problem: Problem) -> (Response<Whole>, How) {
        let (mut response, how) = self.refused(&problem);
        if version <= Version::HTTP_11 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        (response, how)
    }

    /// The client's answer: from what is stored, and from what its own execution saw.
    fn answer_for(
        &self,
        ran: Ran,
        first: WorkValue<FirstAnswer>,
        accepted: &Accepted,
    ) -> (Response<Whole>, How) {
        let policy = &self.ticket.policy;
        match (ran, first) {
            (Ran::Executed { expires_at, .. }, WorkValue::Returned(Ok(first))) => {
                (reply::executed(*first, expires_at), How::Executed)
            }
            (Ran::Executed { reply, expires_at }, _) => {
                (reply::executed(reply::restore(&reply), expires_at), How::Executed)
            }
            (Ran::Replayed { reply, expires_at }, _) => match accepted.refuses(&reply) {
                None => (reply::replayed(&reply, policy.flavor, expires_at), How::Replayed),
                Some(coding) => {
                    let coding = coding.chars().take(CODING_CHARS).collect();
                    self.refused(&Problem::EncodingNotAccepted { coding })
                }
            },
            (Ran::Refused(refusal), first) => {
                let problem = match (Problem::of(refusal), policy.in_progress) {
                    (Problem::InProgress { retry_after }, InProgress::Accepted) => {
                        let location = self.shared.links.status_of(&self.ticket.key);
                        Problem::Accepted { retry_after, location }
                    }
                    (problem, _) => problem,
                };
                match first {
                    WorkValue::NotRun | WorkValue::Returned(Err(Problem::UpstreamUnreachable)) => {
                        self.refused(&problem)
                    }
                    // The service was called, but its answer is not the operation's: the tenure was over, or an earlier attempt
                    // is in doubt.
                    WorkValue::Returned(_) | WorkValue::Panicked | WorkValue::Unfinished => {
                        self.unanswered(&problem)
                    }
                }
            }
            (Ran::Retryable(_), WorkValue::Returned(Ok(response))) => (*response, How::Released),
            (Ran::Retryable(_), _) => self.unanswered(&Problem::UpstreamUnreachable),
            (Ran::Unknown(_), WorkValue::Returned(Ok(_))) => self.unanswered(&Problem::AnswerNotStored),
            (
                Ran::Unknown(_),
                WorkValue::Returned(Err(
                    problem @ (Problem::UpstreamUnsure { .. } | Problem::NoWholeAnswer(_)),
                )),
            ) => self.unanswered(&problem),
            (Ran::Unknown(_), WorkValue::Panicked) => {
                self.unanswered(&Problem::NoWholeAnswer(Answerless::Broken))
            }
            (Ran::Unknown(_), WorkValue::Returned(Err(_)) | WorkValue::NotRun | WorkValue::Unfinished) => {
                self.unanswered(&Problem::NoWholeAnswer(Answerless::TimedOut))
            }
        }
    }
}

impl Headers for HeaderMap {
    fn each<'a>(&'a self, name: &str, value: &mut dyn FnMut(&'a [u8])) {
        self.get_all(name).iter().for_each(|found| value(found.as_bytes()));
    }
}
