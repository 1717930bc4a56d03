//! One protected request, from its body to its answer.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::http::header::{ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT};
use ::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, request, response,
};
use http_body::Body as HttpBody;
use tower_service::Service;
use tracing::{Instrument as _, Span};

use super::admit::Ticket;
use super::body::{Body, Read, Whole, read};
use super::classify::{Class, Failure, OnError};
use super::close_delimited::{CloseDelimited, EndsWithConnection};
use super::encoding::{Accepted, IDENTITY};
use super::handled::{Handled, How};
use super::header::{ATTEMPT, FENCE, OPERATION, OPERATION_HEADERS, RECOVERY_POINT, STORE};
use super::held::Drawn;
use super::layer::Shared;
use super::policy::{InProgress, KeyRule, Policy, StoreDown};
use super::problem::{Answerless, Problem};
use super::reply;
use super::suspicion::is_suspicious;
use super::text::percent_encode;
use crate::engine::PassThroughEntry;
use crate::fingerprint::{Headers, Parts};
use crate::store::StoreError;
use crate::time::sleep;
use crate::{Claim, EngineError, Observation, Operation, OperationId, Outcome, Ran, RecordId, Reply};

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

/// How soon a request is worth repeating while another one goes through unprotected: most end within a second.
const PASSING_RETRY: Duration = Duration::from_secs(1);

/// No registered content coding has a longer name; more of one is not told to clients.
const CODING_CHARS: usize = 32;
/// Why nothing was sent where it took too long until the service could take it.
const NOT_READY: &str = "the service was not ready in time, and was not called";

/// An answer, and what it says about the request.
type Answered = (Response<Whole>, How);

/// The request, until it is sent. Whoever takes it out is the only one who can send it.
struct Envelope<B>(Mutex<Option<Request<Body<B>>>>);

/// What the work saw, for whoever answers the client. Empty where it has seen nothing yet.
#[derive(Default)]
struct Sight(Mutex<Option<Seen>>);

enum Seen {
    /// A whole answer, as the first caller gets it.
    Completed(Box<Response<Whole>>),
    /// A whole answer that proves that nothing was done.
    Released(Box<Response<Whole>>),
    /// An answer that leaves it open.
    Unsure(StatusCode),
    /// No whole answer.
    Answerless(Answerless),
}

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
        let whole = |(response, how): Answered| Ok((reply::to(&method, response).map(Body::whole), how));
        let mut drawn = self.shared.room.open();
        let body = match self.read(body, &mut drawn).await {
            Ok(mut body) => {
                body.trailers.iter_mut().for_each(disown);
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
        let envelope = Arc::new(Envelope(Mutex::new(Some(request))));
        let sight = Arc::new(Sight::default());
        let work = {
            let (envelope, sight, inner) = (envelope.clone(), sight.clone(), inner.clone());
            let (exchange, entry) = (self.clone(), entry.clone());
            move |operation| async move {
                let _under_way = entry;
                let panics = Panics(sight.clone());
                let outcome = exchange.execute(inner, &operation, &envelope, &sight).await;
                drop(panics);
                outcome
            }
        };
        // Pinned before it is handed on, which would move it otherwise.
        let run = std::pin::pin!(self.shared.engine.run_as(id, claim, work));
        let Some(ran) = self.within(run).await else {
            return whole(self.unanswered(&Problem::StillWorking));
        };
        match ran {
            Ok(ran) => whole(self.say(ran, sight.take(), &accepted)),
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
        let claim = claim.map(|claim| claim.request_line(parts.method.as_str(), parts.uri.path()));
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

    /// Whether the route lets requests through while the store is away.
    fn is_passable(&self) -> bool {
        let policy = &self.ticket.policy;
        (policy.store_down, policy.key) == (StoreDown::Pass, KeyRule::Optional)
    }

    /// Enters a request that may go through unprotected, before its claim is sent. The claim's work keeps the entry, too: it
    /// goes on when the client goes away.
    fn enter(&self, id: RecordId) -> Result<Option<Arc<PassThroughEntry>>, Problem> {
        if !self.is_passable() {
            return Ok(None);
        }
        let entry = self.shared.engine.enter(id).ok_or(Problem::InProgress { retry_after: PASSING_RETRY })?;
        Ok(Some(Arc::new(entry)))
    }

    /// Whether a request may go through unprotected: only where nothing of its claim can be in the store, and no other request
    /// under its key is under way in this process.
    fn passes_on(&self, id: RecordId, error: &EngineError, entry: Option<&PassThroughEntry>) -> bool {
        let away = match error {
            EngineError::Store(StoreError::Unavailable { .. } | StoreError::Overloaded { .. }) => true,
            EngineError::Store(
                StoreError::Ambiguous { .. } | StoreError::Unreadable { .. } | StoreError::Refused { .. },
            )
            | EngineError::Overloaded { .. }
            | EngineError::ReplyTooLarge { .. }
            | EngineError::Stopping
            | EngineError::Contended { .. } => false,
        };
        away && !self.shared.engine.has(id) && entry.is_some_and(PassThroughEntry::may_pass)
    }

    fn told(&self, problem: &Problem) -> Response<Whole> {
        problem.response(self.ticket.policy.flavor, &self.shared.links)
    }

    fn refused(&self, problem: &Problem) -> Answered {
        (self.told(problem), How::Refused(problem.code()))
    }

    fn unanswered(&self, problem: &Problem) -> Answered {
        (self.told(problem), How::Unanswered(problem.code()))
    }

    /// A refusal of a request of which something was left unread.
    fn unread(&self, version: Version, problem: Problem) -> Answered {
        let (mut response, how) = self.refused(&problem);
        if version <= Version::HTTP_11 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        (response, how)
    }

    /// What came of it, as the client is told.
    fn say(&self, ran: Ran, seen: Option<Seen>, accepted: &Accepted) -> Answered {
        let policy = &self.ticket.policy;
        match (ran, seen) {
            (Ran::Executed { reply, expires_at }, Some(Seen::Completed(first))) => {
                (reply::executed(&reply, Some(*first), expires_at), How::Executed)
            }
            (Ran::Executed { reply, expires_at }, _) => {
                (reply::executed(&reply, None, expires_at), How::Executed)
            }
            (Ran::Replayed { reply, expires_at }, _) => match accepted.refuses(&reply) {
                None => (reply::replayed(&reply, policy.flavor, expires_at), How::Replayed),
                Some(coding) => {
                    let coding = coding.chars().take(CODING_CHARS).collect();
                    self.refused(&Problem::EncodingNotAccepted { coding })
                }
            },
            // The service was called and did nothing, but an earlier attempt may have done it.
            (Ran::Refused(refusal), Some(Seen::Released(_))) => self.unanswered(&Problem::of(refusal)),
            (Ran::Refused(refusal), _) => self.refused(&match (Problem::of(refusal), policy.in_progress) {
                (Problem::InProgress { retry_after }, InProgress::Accepted) => {
                    let location = self.shared.links.status_of(&self.ticket.key);
                    Problem::Accepted { retry_after, location }
                }
                (problem, _) => problem,
            }),
            (Ran::Retryable(_), Some(Seen::Released(response))) => (*response, How::Released),
            (Ran::Retryable(_), _) => self.unanswered(&Problem::UpstreamUnreachable),
            (Ran::Unknown(_), Some(Seen::Unsure(upstream_status))) => {
                self.unanswered(&Problem::UpstreamUnsure { upstream_status })
            }
            (Ran::Unknown(_), Some(Seen::Answerless(how))) => self.unanswered(&Problem::NoWholeAnswer(how)),
            (Ran::Unknown(_), Some(Seen::Completed(_) | Seen::Released(_))) => {
                self.unanswered(&Problem::AnswerNotStored)
            }
            (Ran::Unknown(_), None) => self.unanswered(&Problem::NoWholeAnswer(Answerless::TimedOut)),
        }
    }

    /// Calls the inner service, once.
    async fn execute<S, B, R>(
        &self,
        mut inner: S,
        operation: &Operation,
        envelope: &Envelope<B>,
        sight: &Sight,
    ) -> Outcome
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        C: OnError<S::Error>,
        R: HttpBody,
    {
        if is_suspicious(&self.ticket.key) {
            self.note(operation.id(), Observation::SuspiciousKey);
        }
        // Half a lease after the claim nothing is sent any more: somebody may soon think that this one is dead.
        let ready = tokio::select! {
            biased;
            ready = std::future::poll_fn(|context| inner.poll_ready(context)) => ready.map_err(|error| {
                format!("the service was not called, because it failed to get ready: {}", self.on_error.words(&error))
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
            return Outcome::lost("the request had been sent already");
        };
        let method = request.method().clone();
        introduce(&mut request, operation);
        let told = |error: S::Error| (self.on_error.failure(&error), self.on_error.words(&error));
        match inner.call(request).await.map_err(told) {
            Ok(response) => {
                self.hear(response.headers(), Some(operation.operation_id()));
                self.settle(&method, response, sight).await
            }
            Err((Failure::NotExecuted, cause)) => not_executed(operation, cause),
            Err((Failure::TimedOut, cause)) => sight.answerless(Answerless::TimedOut, &cause),
            Err((Failure::Broken, cause)) => sight.answerless(Answerless::Broken, &cause),
        }
    }

    /// Tells of a word that counts as none. The word itself is not logged, because it is the service's text.
    pub(super) fn hear(&self, headers: &HeaderMap, operation: Option<OperationId>) {
        if Class::is_misspoken(headers) {
            tracing::warn!(
                route = &*self.ticket.route,
                operation = operation.map(tracing::field::display),
                "an answer has an Onceward-Outcome other than completed, retryable or unknown: its status decides"
            );
        }
    }

    /// Reads the answer and says what it means.
    async fn settle<R: HttpBody>(&self, method: &Method, response: Response<R>, sight: &Sight) -> Outcome {
        let policy = &self.ticket.policy;
        let (parts, body) = response.into_parts();
        let class = Class::of(policy, parts.status, &parts.headers);
        if class == Class::Unknown {
            let why = format!(
                "the service answered {}, which leaves open whether the request was executed",
                parts.status.as_u16()
            );
            sight.put(Seen::Unsure(parts.status));
            return Outcome::said_unknown(why);
        }
        if class == Class::Completed
            && policy.close_delimited == CloseDelimited::Proven
            && parts.extensions.get::<EndsWithConnection>().is_some()
        {
            self.shared.advice.close_delimited(&self.ticket.route);
        }
        match (read(body, policy.max_response_body, &mut Drawn::default()).await, class) {
            (Read::Broken | Read::NoRoom, _) => {
                sight.answerless(Answerless::Broken, "the service's answer broke off before it was whole")
            }
            (Read::Whole(body), _) if is_cut_short(method, &parts, &body) => {
                sight.answerless(Answerless::Broken, "the answer is shorter or longer than it said")
            }
            (Read::Whole(body), Class::Completed | Class::Unknown)
                if !is_proven_whole(policy, &parts, &body) =>
            {
                sight.answerless(
                    Answerless::Broken,
                    "the answer ended with its connection, and nothing proves that it is whole",
                )
            }
            (Read::Whole(body), Class::Completed | Class::Unknown) => {
                let status = parts.status;
                let (reply, first) = reply::divide(policy, parts, body);
                if reply.bytes() > self.shared.engine.limits().reply_bytes {
                    return Outcome::completed(self.too_large(status));
                }
                sight.put(Seen::Completed(Box::new(first)));
                Outcome::completed(reply)
            }
            (Read::TooLarge, Class::Completed | Class::Unknown) => {
                Outcome::completed(self.too_large(parts.status))
            }
            (Read::Whole(body), Class::Retryable) => sight.released(parts, body),
            // Nothing was done and nothing is kept, so its status and headers are enough.
            (Read::TooLarge, Class::Retryable) => sight.released(parts, Whole::default()),
        }
    }

    /// The work was done: every caller is told that its answer could not be kept.
    fn too_large(&self, upstream_status: StatusCode) -> Reply {
        reply::stored(&self.ticket.policy, self.told(&Problem::ResponseTooLarge { upstream_status }))
    }
}

/// Sends a request unprotected, in a task of its own: it goes on when its client goes away, and until its answer has been read no
/// other request under its key goes through.
async fn pass<S, B, R>(
    mut inner: S,
    request: Request<Body<B>>,
    entry: Option<Arc<PassThroughEntry>>,
) -> Result<Response<Body<R>>, S::Error>
where
    S: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    let passing = async move {
        std::future::poll_fn(|context| inner.poll_ready(context)).await?;
        let response = inner.call(request).await?;
        Ok(response.map(|body| Body::entered(body, entry)))
    };
    match tokio::spawn(passing.instrument(Span::current())).await {
        Ok(answered) => answered,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and drops this future, too.
            Err(_) => std::future::pending().await,
        },
    }
}

/// The service was not reached. One line of the log says so: the answer that the client gets has no cause.
fn not_executed(operation: &Operation, cause: String) -> Outcome {
    operation.tell_not_executed(&cause);
    Outcome::Retryable(cause)
}

/// Removes what only this layer may say about an operation. Services that read headers as CGI does take `_` for `-`.
pub(super) fn disown(headers: &mut HeaderMap) {
    let own = |name: &&HeaderName| {
        let like = |own: &HeaderName| {
            let (name, own) = (name.as_str().as_bytes(), own.as_str().as_bytes());
            name.len() == own.len()
                && name.iter().zip(own).all(|(byte, own)| byte == own || (*byte == b'_' && *own == b'-'))
        };
        name.as_str().starts_with("onceward") && OPERATION_HEADERS.iter().any(like)
    };
    while let Some(name) = headers.keys().find(own).cloned() {
        headers.remove(name);
    }
}

/// Tells the inner service which operation it works on, and asks for an answer that every later client can read.
fn introduce<B>(request: &mut Request<B>, operation: &Operation) {
    let point = match operation.recovery_point() {
        None => Ok(HeaderValue::from_static("started")),
        Some(point) => HeaderValue::try_from(percent_encode(point.name())),
    };
    let headers = request.headers_mut();
    headers.insert(ACCEPT_ENCODING, IDENTITY);
    for (name, value) in [
        (OPERATION, operation.operation_id().with_text(HeaderValue::from_bytes).ok()),
        (FENCE, Some(operation.fence().as_number().into())),
        (ATTEMPT, Some(operation.attempt().into())),
        (RECOVERY_POINT, point.ok()),
    ] {
        // Digits, letters and escapes are always a header value.
        if let Some(value) = value {
            headers.append(name, value);
        }
    }
    request.extensions_mut().insert(operation.clone());
}

/// A server that crashed may have sent only a part, and a connection that was closed looks like the end.
fn is_cut_short(method: &Method, parts: &response::Parts, body: &Whole) -> bool {
    let bodiless =
        *method == Method::HEAD || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let said =
        parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    !bodiless && said.is_some_and(|said| said != body.data.len())
}

/// An answer without a length may have been cut off where its connection ended.
fn is_proven_whole(policy: &Policy, parts: &response::Parts, body: &Whole) -> bool {
    let ends_with_connection = parts.extensions.get::<EndsWithConnection>().is_some();
    !ends_with_connection || policy.close_delimited.accepts(&parts.headers, &body.data)
}

impl<B> Envelope<B> {
    fn take(&self) -> Option<Request<Body<B>>> {
        // A panic while the lock is held cannot leave half a request.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Sight {
    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        // A panic while the lock is held cannot leave half a sight.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Seen> {
        self.seen().take()
    }

    fn put(&self, seen: Seen) {
        *self.seen() = Some(seen);
    }

    fn answerless(&self, how: Answerless, why: &str) -> Outcome {
        self.put(Seen::Answerless(how));
        Outcome::lost(why)
    }

    fn released(&self, parts: response::Parts, body: Whole) -> Outcome {
        let why = format!("the service answered {}: nothing was done", parts.status.as_u16());
        self.put(Seen::Released(Box::new(reply::released(parts, body))));
        Outcome::Retryable(why)
    }
}

/// Notes that the work panicked, which is no timeout.
struct Panics(Arc<Sight>);

impl Drop for Panics {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.put(Seen::Answerless(Answerless::Broken));
        }
    }
}

impl Headers for HeaderMap {
    fn each<'a>(&'a self, name: &str, value: &mut dyn FnMut(&'a [u8])) {
        self.get_all(name).iter().for_each(|found| value(found.as_bytes()));
    }
}
