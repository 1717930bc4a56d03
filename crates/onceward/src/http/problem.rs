//! Every refusal and failure that a client can get, and the one place that gives each its status, code and next action.

use std::time::Duration;

use ::http::header::{LINK, LOCATION, RETRY_AFTER, VARY};
use ::http::{HeaderValue, Response, StatusCode};
use serde_json::{Map, Value};

use super::body::WholeBody;
use super::classify::Class;
use super::header::{OUTCOME, SHOULD_RETRY, STRIPE_SHOULD_RETRY};
use super::policy::Flavor;
use super::problem_json::ProblemJson;
use super::scope::ScopeMissing;
use super::wellknown::Links;
use crate::fingerprint::Difference;
use crate::record::Letter;
use crate::{OperationId, Refusal, key::KeyError};

/// Why a client does not get the answer to its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The method differs from a known one only in case.
    MethodMiscased,
    /// The route requires a key, and there is none.
    KeyMissing,
    /// There is a key, but it cannot be used.
    KeyInvalid(KeyFault),
    /// The request does not say whose key it is.
    ScopeMissing(ScopeMissing),
    /// The key was used for another request, which differs in this part.
    Mismatch(Difference),
    /// The work is being done, and the route does not wait for it any longer.
    InProgress {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The work is being done, and the client is given a URL that shows its state.
    Accepted {
        /// When to ask for it.
        retry_after: Duration,
        /// The URL.
        location: String,
    },
    /// The client has waited for as long as the route allows, and the work goes on.
    StillWorking,
    /// The work may have been done, and whether it was is not known yet.
    OutcomeUnknown {
        /// When to ask again.
        retry_after: Duration,
        /// Whether reconciliation still tries to resolve it, or it waits for an operator.
        letter: Letter,
    },
    /// The work was begun for a request that cannot be compared with this one, and only the same request may continue it.
    Incomparable,
    /// The store is unavailable or overloaded, or the record cannot be read. This try did nothing; an earlier one may have.
    StoreUnavailable,
    /// The service was not reached: proven not executed.
    UpstreamUnreachable,
    /// The service was reached, and its receipt row proves that it committed nothing and never will.
    NotCommitted {
        /// The status of its answer, if it gave one.
        upstream_status: Option<StatusCode>,
    },
    /// The service was reached, and did not give a whole answer.
    NoWholeAnswer(AnswerFault),
    /// The service answered, and its answer could not be stored in time, or not at all.
    AnswerNotStored,
    /// The service, or a proxy before it, gave an answer that leaves the outcome unknown.
    UpstreamUnsure {
        /// The status of that answer.
        upstream_status: StatusCode,
    },
    /// The work was done, and its answer is too large to be kept.
    ResponseTooLarge {
        /// The status of that answer.
        upstream_status: StatusCode,
    },
    /// The work was done, and its answer is stored in a content coding that this client does not accept.
    EncodingNotAccepted {
        /// The coding, or the beginning of its name.
        coding: String,
    },
    /// The request is too large to be compared with a retry. Nothing was done.
    RequestTooLarge {
        /// How many bytes it may have.
        limit: usize,
    },
    /// The request's body broke off. Nothing was done.
    RequestBroken,
    /// The request's body took too long. Nothing was done.
    RequestSlow {
        /// How long it may take.
        patience: Duration,
    },
    /// The bodies of keyed requests take all the memory that they may. Nothing was done.
    BodyBudgetExhausted,
    /// A caller asked for the state of a key that it never used, or whose window is over.
    KeyNotFound,
}

/// What is wrong with a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFault {
    /// It is malformed.
    #[error(transparent)]
    Malformed(#[from] KeyError),
    /// The client tells proxies to remove it, so it may be missing on a retry.
    #[error(
        "the Connection header names Idempotency-Key, which tells proxies to remove it: leave it out there"
    )]
    HopByHop,
}

/// Why there is no whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerFault {
    /// It did not come in time.
    TimedOut,
    /// It broke off.
    Broken,
}

/// What a client should do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NextAction {
    /// Send something else: this request can never succeed.
    FixRequest,
    /// Use a new key: this one belongs to another request.
    NewKey,
    /// Ask again later with the same key; nothing will be done twice.
    Wait,
    /// Send the same request with the same key: this try did nothing.
    RetrySameKey,
    /// Ask a person: the answer will not change by itself.
    Contact,
}

impl NextAction {
    /// The value in a problem's body.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixRequest => "fix_request",
            Self::NewKey => "new_key",
            Self::Wait => "wait",
            Self::RetrySameKey => "retry_same_key",
            Self::Contact => "contact",
        }
    }

    /// The value of `X-Should-Retry`: whether a client library should send the same request again by itself.
    pub const fn should_retry(self) -> &'static str {
        match self {
            Self::Wait | Self::RetrySameKey => "true",
            Self::FixRequest | Self::NewKey | Self::Contact => "false",
        }
    }
}

/// A problem as a client gets it. The members are those of RFC 9457, and our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProblemDetails {
    /// The status.
    pub status: StatusCode,
    /// What happened, for programs.
    pub code: &'static str,
    /// What to do next, for programs.
    pub next_action: NextAction,
    /// When to try again, where that helps.
    pub retry_after: Option<Duration>,
    /// What happened, for people.
    pub title: &'static str,
    /// More about this occurrence of the problem, for people.
    pub detail: String,
}

impl ProblemDetails {
    /// The members of the body that every problem of the layer has besides title, status and detail.
    #[doc(hidden)]
    pub fn members(&self, problem_type: String) -> Map<String, Value> {
        [
            ("type".to_owned(), problem_type.into()),
            ("code".to_owned(), self.code.into()),
            ("next_action".to_owned(), self.next_action.name().into()),
        ]
        .into_iter()
        .collect()
    }
}

/// A store that was away a moment ago, or a service that could not be reached, is worth asking again this soon.
const RETRY_SOON: Duration = Duration::from_secs(1);

const IN_PROGRESS: &str = "idempotency_key_in_progress";
const IN_PROGRESS_TITLE: &str = "The first request with this key is still being executed";
const UNKNOWN: &str = "idempotency_outcome_unknown";
const STORE_TITLE: &str = "The request could not be protected, so this try was not executed";
const UNKNOWN_TITLE: &str = "It is not known yet whether the request was executed";

impl ProblemDetails {
    fn with_retry_after(self, after: Duration) -> Self {
        Self { retry_after: Some(after), ..self }
    }
}

impl Problem {
    /// The one match that gives every problem its status, code and next action.
    pub fn details(&self, flavor: Flavor) -> ProblemDetails {
        use NextAction::{Contact, FixRequest, NewKey, RetrySameKey, Wait};
        let details = |status, code, next_action, title, detail: &str| ProblemDetails {
            status,
            code,
            next_action,
            retry_after: None,
            title,
            detail: detail.to_owned(),
        };
        match self {
            Self::MethodMiscased => details(
                StatusCode::BAD_REQUEST,
                "idempotency_method_invalid",
                FixRequest,
                "The request's method is in another case than the one that is known",
                "Methods are case-sensitive: write it in capital letters, such as POST. Nothing was executed.",
            ),
            Self::KeyMissing => details(
                StatusCode::BAD_REQUEST,
                "idempotency_key_missing",
                FixRequest,
                "This request needs an Idempotency-Key",
                "Send an Idempotency-Key header, such as a random UUID, and the same one with every retry.",
            ),
            Self::KeyInvalid(fault) => details(
                StatusCode::BAD_REQUEST,
                "idempotency_key_invalid",
                FixRequest,
                "The Idempotency-Key cannot be used",
                &sentence(&fault.to_string()),
            ),
            Self::ScopeMissing(missing) => details(
                StatusCode::UNAUTHORIZED,
                "idempotency_scope_missing",
                FixRequest,
                "It cannot be told whose Idempotency-Key this is",
                &sentence(&missing.to_string()),
            ),
            Self::Mismatch(differs) => details(
                match flavor {
                    Flavor::Ietf => StatusCode::UNPROCESSABLE_ENTITY,
                    Flavor::Stripe => StatusCode::BAD_REQUEST,
                },
                "idempotency_key_reused_with_different_payload",
                NewKey,
                "This Idempotency-Key was used for another request",
                match differs {
                    Difference::Target => {
                        "The method, the path or the query differs from the first request with this key. Send it under a new key."
                    }
                    Difference::Content => {
                        "The content type, the body or a header that is compared here differs from the first request with this key. Send it under a new key."
                    }
                    Difference::Any => {
                        "The method, path, query, content type, body or a header that is compared here differs from the first request with this key. Send it under a new key."
                    }
                },
            ),
            Self::InProgress { retry_after } => details(
                    StatusCode::CONFLICT,
                    IN_PROGRESS,
                    Wait,
                    IN_PROGRESS_TITLE,
                    "Ask again with the same key; the work is not done twice.",
                )
                .with_retry_after(*retry_after),
            Self::Accepted { retry_after, .. } => details(
                    StatusCode::ACCEPTED,
                    IN_PROGRESS,
                    Wait,
                    IN_PROGRESS_TITLE,
                    "Ask after it at Location, or again with the same key; the work is not done twice.",
                )
                .with_retry_after(*retry_after),
            Self::StillWorking => details(
                    StatusCode::GATEWAY_TIMEOUT,
                    IN_PROGRESS,
                    Wait,
                    IN_PROGRESS_TITLE,
                    "The work takes longer than a client is kept waiting here, and goes on. Ask again with the same key.",
                )
                .with_retry_after(RETRY_SOON),
            Self::OutcomeUnknown { retry_after, letter: Letter::Live } => details(
                    StatusCode::CONFLICT,
                    UNKNOWN,
                    Wait,
                    UNKNOWN_TITLE,
                    "It may have been done. Ask again later with the same key; the work is not done twice.",
                )
                .with_retry_after(*retry_after),
            // Asking again brings nothing until an operator has decided, which no time is known for.
            Self::OutcomeUnknown { letter: Letter::Dead, .. } => details(
                StatusCode::CONFLICT,
                UNKNOWN,
                Contact,
                UNKNOWN_TITLE,
                "It could not be found out and waits for an operator. Do not send it under a new key.",
            ),
            Self::Incomparable => details(
                StatusCode::CONFLICT,
                UNKNOWN,
                Contact,
                UNKNOWN_TITLE,
                "It was begun under other settings, so this request cannot be compared with the first one, and is not continued with it. Do not send it under a new key.",
            ),
            Self::StoreUnavailable => details(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "idempotency_store_unavailable",
                    RetrySameKey,
                    STORE_TITLE,
                    "An earlier try may have been. Send it again with the same key.",
                )
                .with_retry_after(RETRY_SOON),
            Self::UpstreamUnreachable => details(
                    StatusCode::BAD_GATEWAY,
                    "idempotency_upstream_unreachable",
                    RetrySameKey,
                    "The service was not reached, so the request was not executed",
                    "Send it again with the same key.",
                )
                .with_retry_after(RETRY_SOON),
            Self::NotCommitted { .. } => details(
                    StatusCode::BAD_GATEWAY,
                    "idempotency_not_executed",
                    RetrySameKey,
                    "The service failed before it had committed anything",
                    "Send it again with the same key.",
                )
                .with_retry_after(RETRY_SOON),
            Self::NoWholeAnswer(fault) => details(
                match fault {
                    AnswerFault::TimedOut => StatusCode::GATEWAY_TIMEOUT,
                    AnswerFault::Broken => StatusCode::BAD_GATEWAY,
                },
                UNKNOWN,
                Wait,
                UNKNOWN_TITLE,
                "The service gave no whole answer. Ask again with the same key; the work is not done twice.",
            ),
            Self::AnswerNotStored => details(
                StatusCode::GATEWAY_TIMEOUT,
                UNKNOWN,
                Wait,
                UNKNOWN_TITLE,
                "The service answered, but its answer could not be stored. Ask again with the same key; the work is not done twice.",
            ),
            Self::UpstreamUnsure { upstream_status } => details(
                // Only a 5xx is passed on: another status, such as a 2xx, would look like an answer.
                if upstream_status.is_server_error() { *upstream_status } else { StatusCode::BAD_GATEWAY },
                UNKNOWN,
                Wait,
                UNKNOWN_TITLE,
                "The service's answer leaves it open. Ask again with the same key; the work is not done twice.",
            ),
            Self::ResponseTooLarge { .. } => details(
                StatusCode::BAD_GATEWAY,
                "idempotency_response_too_large",
                Contact,
                "The request was executed, but its answer is too large to be kept",
                "Every retry gets this same answer. Do not send the request under a new key.",
            ),
            Self::EncodingNotAccepted { coding } => details(
                StatusCode::NOT_ACCEPTABLE,
                "idempotency_encoding_not_accepted",
                Contact,
                "The request was executed, and its answer is kept in a coding that was not asked for",
                &format!(
                    "Send the same request with the same key and an Accept-Encoding that accepts {coding:?}. Do not send it under a new key."
                ),
            ),
            Self::RequestTooLarge { limit } => details(
                StatusCode::PAYLOAD_TOO_LARGE,
                "idempotency_request_too_large",
                FixRequest,
                "The request is too large for an Idempotency-Key",
                &format!("Its body may have at most {limit} bytes here. Nothing was executed."),
            ),
            Self::RequestBroken => details(
                StatusCode::BAD_REQUEST,
                "idempotency_request_broken",
                RetrySameKey,
                "The request's body broke off, so it was not executed",
                "Send it again with the same key.",
            ),
            Self::RequestSlow { patience } => details(
                StatusCode::REQUEST_TIMEOUT,
                "idempotency_request_broken",
                RetrySameKey,
                "The request's body broke off, so it was not executed",
                &format!(
                    "It may take {patience:?} to arrive, and took longer. Send it again with the same key."
                ),
            ),
            Self::BodyBudgetExhausted => details(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "idempotency_store_unavailable",
                    RetrySameKey,
                    STORE_TITLE,
                    "Too many requests are being received at once. Send it again with the same key.",
                )
                .with_retry_after(RETRY_SOON),
            Self::KeyNotFound => details(
                StatusCode::NOT_FOUND,
                "idempotency_key_not_found",
                FixRequest,
                "Nothing is known of this key",
                "It was never used by this caller, or its time is over.",
            ),
        }
    }

    /// The problem's code, which is the same in every flavour.
    pub fn code(&self) -> &'static str {
        self.details(Flavor::Ietf).code
    }

    /// The problem that an engine's refusal means.
    pub(super) fn of(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Mismatch(differs) => Self::Mismatch(differs),
            Refusal::Incomparable => Self::Incomparable,
            Refusal::InProgress { retry_after } => Self::InProgress { retry_after },
            Refusal::Unknown { retry_after, letter } => Self::OutcomeUnknown { retry_after, letter },
        }
    }

    pub(super) fn upstream_status(&self) -> Option<StatusCode> {
        match self {
            Self::NotCommitted { upstream_status } => *upstream_status,
            Self::UpstreamUnsure { upstream_status } | Self::ResponseTooLarge { upstream_status } => {
                Some(*upstream_status)
            }
            Self::MethodMiscased
            | Self::KeyMissing
            | Self::KeyInvalid(_)
            | Self::ScopeMissing(_)
            | Self::Mismatch(_)
            | Self::InProgress { .. }
            | Self::Accepted { .. }
            | Self::StillWorking
            | Self::OutcomeUnknown { .. }
            | Self::Incomparable
            | Self::StoreUnavailable
            | Self::UpstreamUnreachable
            | Self::NoWholeAnswer(_)
            | Self::EncodingNotAccepted { .. }
            | Self::AnswerNotStored
            | Self::RequestTooLarge { .. }
            | Self::RequestBroken
            | Self::RequestSlow { .. }
            | Self::BodyBudgetExhausted
            | Self::KeyNotFound => None,
        }
    }

    /// The `Onceward-Outcome` of the problem. An outer Onceward releases its own key only where it is `retryable`.
    pub const fn outcome(&self) -> Class {
        match self {
            Self::ResponseTooLarge { .. } => Class::Completed,
            // It is being executed, or may have been. `EncodingNotAccepted` was executed, but the refusal must not be stored as
            // its answer.
            Self::StillWorking
            | Self::EncodingNotAccepted { .. }
            | Self::OutcomeUnknown { .. }
            | Self::Incomparable
            | Self::NoWholeAnswer(_)
            | Self::AnswerNotStored
            | Self::UpstreamUnsure { .. } => Class::Unknown,
            // Another request under this key may be under way, but this one did nothing.
            Self::InProgress { .. } | Self::Accepted { .. } | Self::Mismatch(_) => Class::Retryable,
            Self::MethodMiscased
            | Self::KeyMissing
            | Self::KeyInvalid(_)
            | Self::ScopeMissing(_)
            | Self::StoreUnavailable
            | Self::UpstreamUnreachable
            | Self::NotCommitted { .. }
            | Self::RequestTooLarge { .. }
            | Self::RequestBroken
            | Self::RequestSlow { .. }
            | Self::BodyBudgetExhausted
            | Self::KeyNotFound => Class::Retryable,
        }
    }

    /// The problem as RFC 9457 has it. Its body names the operation where the record is known.
    pub(super) fn response(
        &self,
        flavor: Flavor,
        links: &Links,
        operation: Option<OperationId>,
    ) -> Response<WholeBody> {
        let details = self.details(flavor);
        let mut members = details.members(links.problem_type(details.code));
        if let Some(operation) = operation {
            members.insert("operation".to_owned(), operation.to_string().into());
        }
        if let Some(status) = self.upstream_status() {
            members.insert("upstream_status".to_owned(), status.as_u16().into());
        }
        let problem =
            ProblemJson { status: details.status, title: details.title, detail: details.detail, members }
                .response();
        let mut response = problem.map(WholeBody::from);
        let headers = response.headers_mut();
        headers.insert(LINK, links.described_by());
        let should_retry = HeaderValue::from_static(details.next_action.should_retry());
        if flavor == Flavor::Stripe {
            headers.insert(STRIPE_SHOULD_RETRY, should_retry.clone());
        }
        headers.insert(SHOULD_RETRY, should_retry);
        if let Some(after) = details.retry_after {
            headers.insert(RETRY_AFTER, whole_seconds(after).into());
        }
        if let Self::Accepted { location, .. } = self
            && let Ok(location) = HeaderValue::from_str(location)
        {
            headers.insert(LOCATION, location);
        }
        if let Self::EncodingNotAccepted { .. } = self {
            headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        }
        headers.insert(OUTCOME, HeaderValue::from_static(self.outcome().name()));
        response
    }
}

/// `Retry-After` is in whole seconds. Zero would let clients retry in a busy loop.
pub(super) fn whole_seconds(duration: Duration) -> u64 {
    (duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).max(1)
}

/// Makes a sentence of an error text, which has no capital letter and no full stop.
fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).chain(['.']).collect()
}
