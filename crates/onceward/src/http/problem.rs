//! Every refusal and every failure that a client can meet, and the one place that says how it is told.

use std::time::Duration;

use ::http::header::{CACHE_CONTROL, CONTENT_TYPE, LINK, LOCATION, RETRY_AFTER, VARY};
use ::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde_json::json;

use super::body::Whole;
use super::classify::Class;
use super::header::OUTCOME;
use super::policy::Flavor;
use super::scope::ScopeMissing;
use super::wellknown::Links;
use crate::fingerprint::Difference;
use crate::record::Letter;
use crate::{Refusal, key::KeyError};

/// Why a client does not get the answer to its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The method is a known one but for its case.
    MethodMiscased,
    /// The route requires a key, and there is none.
    KeyMissing,
    /// There is a key, but it cannot be used.
    KeyInvalid(KeyFault),
    /// It cannot be told whose key it is.
    ScopeMissing(ScopeMissing),
    /// The key names another request, which differs in this part.
    Mismatch(Difference),
    /// The work is being done; the caller did not wait.
    InProgress {
        /// When it is worth asking again.
        retry_after: Duration,
    },
    /// The work is being done; the client asks after it elsewhere.
    Accepted {
        /// When it is worth asking.
        retry_after: Duration,
        /// Where.
        location: String,
    },
    /// The client was kept for as long as the route allows, and the work goes on.
    StillWorking,
    /// The work may have been done, and it is being found out.
    OutcomeUnknown {
        /// When it is worth asking again.
        retry_after: Duration,
        /// Whether anybody still asks after it.
        letter: Letter,
    },
    /// The work was begun and may be finished for the same request only, and whether this is it cannot be told.
    Incomparable,
    /// The store is away, overloaded, or holds what cannot be read. This try did nothing; one before it may have.
    StoreUnavailable,
    /// The service was not reached: proven not executed.
    UpstreamUnreachable,
    /// The service was reached, and gave no whole answer.
    NoWholeAnswer(Answerless),
    /// The service answered, and its answer could not be stored in time, or not at all.
    AnswerNotStored,
    /// The service, or what stands before it, gave an answer that leaves the outcome unknown.
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
    /// Too many bodies of keyed requests are held already. Nothing was done.
    NoRoom,
    /// A caller asked after a key that it never used, or whose window is over.
    KeyNotFound,
}

/// What is wrong with a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFault {
    /// It is malformed.
    #[error(transparent)]
    Malformed(#[from] KeyError),
    /// The client tells proxies to remove it, so that it may get lost on a retry.
    #[error(
        "the Connection header names Idempotency-Key, which tells proxies to remove it: leave it out there"
    )]
    HopByHop,
}

/// How an answer failed to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerless {
    /// Not in time.
    TimedOut,
    /// Not whole.
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
    /// Ask a person: nothing will change by itself.
    Contact,
}

impl NextAction {
    /// As it stands in the body.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixRequest => "fix_request",
            Self::NewKey => "new_key",
            Self::Wait => "wait",
            Self::RetrySameKey => "retry_same_key",
            Self::Contact => "contact",
        }
    }
}

/// How a problem is told to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The status.
    pub status: StatusCode,
    /// Tells programs what happened.
    pub code: &'static str,
    /// Tells programs what to do.
    pub next_action: NextAction,
    /// When to come back, where that helps.
    pub retry_after: Option<Duration>,
    /// Tells people what happened, the same for every problem of this code.
    pub title: &'static str,
    /// Tells people about this very problem.
    pub detail: String,
}

/// A store that was away a moment ago, or a service that could not be reached, is worth asking again this soon.
const RETRY_SOON: Duration = Duration::from_secs(1);

const IN_PROGRESS: &str = "idempotency_key_in_progress";
const IN_PROGRESS_TITLE: &str = "The first request with this key is still being executed";
const UNKNOWN: &str = "idempotency_outcome_unknown";
const STORE_TITLE: &str = "The request could not be protected, so this try was not executed";
const UNKNOWN_TITLE: &str = "It is not known yet whether the request was executed";

impl Problem {
    /// The one match from what happened to what a client is told.
    pub fn told(&self, flavor: Flavor) -> Told {
        use NextAction::{Contact, FixRequest, NewKey, RetrySameKey, Wait};
        let told = |status, code, next_action, title, detail: &str| Told {
            status,
            code,
            next_action,
            retry_after: None,
            title,
            detail: detail.to_owned(),
        };
        match self {
            Self::MethodMiscased => told(
                StatusCode::BAD_REQUEST,
                "idempotency_method_invalid",
                FixRequest,
                "The request's method is in another case than the one that is known",
                "Methods are case-sensitive: write it in capital letters, such as POST. Nothing was executed.",
            ),
            Self::KeyMissing => told(
                StatusCode::BAD_REQUEST,
                "idempotency_key_missing",
                FixRequest,
                "This request needs an Idempotency-Key",
                "Send an Idempotency-Key header, such as a random UUID, and the same one with every retry.",
            ),
            Self::KeyInvalid(fault) => told(
                StatusCode::BAD_REQUEST,
                "idempotency_key_invalid",
                FixRequest,
                "The Idempotency-Key cannot be used",
                &sentence(&fault.to_string()),
            ),
            Self::ScopeMissing(missing) => told(
                StatusCode::UNAUTHORIZED,
                "idempotency_scope_missing",
                FixRequest,
                "It cannot be told whose Idempotency-Key this is",
                &sentence(&missing.to_string()),
            ),
            Self::Mismatch(differs) => told(
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
            Self::InProgress { retry_after } => Told {
                retry_after: Some(*retry_after),
                ..told(
                    StatusCode::CONFLICT,
                    IN_PROGRESS,
                    Wait,
                    IN_PROGRESS_TITLE,
                    "Ask again with the same key; the work is not done twice.",
                )
            },
            Self::Accepted { retry_after, .. } => Told {
                retry_after: Some(*retry_after),
                ..told(
                    StatusCode::ACCEPTED,
                    IN_PROGRESS,
                    Wait,
                    IN_PROGRESS_TITLE,
                    "Ask after it at Location, or again with the same key; the work is not done twice.",
                )
            },
            Self::StillWorking => Told {
                retry_after: Some(RETRY_SOON),
                ..told(
                    StatusCode::GATEWAY_TIMEOUT,
                    IN_PROGRESS,
                    Wait,
                    IN_PROGRESS_TITLE,
                    "The work takes longer than a client is kept waiting here, and goes on. Ask again with the same key.",
                )
            },
            Self::OutcomeUnknown { retry_after, letter } => Told {
                retry_after: Some(*retry_after),
                ..match letter {
                    Letter::Live => told(
                        StatusCode::CONFLICT,
                        UNKNOWN,
                        Wait,
                        UNKNOWN_TITLE,
                        "It may have been done. Ask again later with the same key; the work is not done twice.",
                    ),
                    Letter::Dead => told(
                        StatusCode::CONFLICT,
                        UNKNOWN,
                        Contact,
                        UNKNOWN_TITLE,
                        "It could not be found out and waits for an operator. Do not send it under a new key.",
                    ),
                }
            },
            Self::Incomparable => told(
                StatusCode::CONFLICT,
                UNKNOWN,
                Contact,
                UNKNOWN_TITLE,
                "It was begun under other settings, so this request cannot be compared with the first one, and is not continued with it. Do not send it under a new key.",
            ),
            Self::StoreUnavailable => Told {
                retry_after: Some(RETRY_SOON),
                ..told(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "idempotency_store_unavailable",
                    RetrySameKey,
                    STORE_TITLE,
                    "An earlier try may have been. Send it again with the same key.",
                )
            },
            Self::UpstreamUnreachable => Told {
                retry_after: Some(RETRY_SOON),
                ..told(
                    StatusCode::BAD_GATEWAY,
                    "idempotency_upstream_unreachable",
                    RetrySameKey,
                    "The service was not reached, so the request was not executed",
                    "Send it again with the same key.",
                )
            },
            Self::NoWholeAnswer(how) => told(
                match how {
                    Answerless::TimedOut => StatusCode::GATEWAY_TIMEOUT,
                    Answerless::Broken => StatusCode::BAD_GATEWAY,
                },
                UNKNOWN,
                Wait,
                UNKNOWN_TITLE,
                "The service gave no whole answer. Ask again with the same key; the work is not done twice.",
            ),
            Self::AnswerNotStored => told(
                StatusCode::GATEWAY_TIMEOUT,
                UNKNOWN,
                Wait,
                UNKNOWN_TITLE,
                "The service answered, but its answer could not be stored. Ask again with the same key; the work is not done twice.",
            ),
            Self::UpstreamUnsure { upstream_status } => told(
                // Only a failure may be told with its own status: a 2xx would look like a success.
                if upstream_status.is_server_error() { *upstream_status } else { StatusCode::BAD_GATEWAY },
                UNKNOWN,
                Wait,
                UNKNOWN_TITLE,
                "The service's answer leaves it open. Ask again with the same key; the work is not done twice.",
            ),
            Self::ResponseTooLarge { .. } => told(
                StatusCode::BAD_GATEWAY,
                "idempotency_response_too_large",
                Contact,
                "The request was executed, but its answer is too large to be kept",
                "Every retry gets this same answer. Do not send the request under a new key.",
            ),
            Self::EncodingNotAccepted { coding } => told(
                StatusCode::NOT_ACCEPTABLE,
                "idempotency_encoding_not_accepted",
                Contact,
                "The request was executed, and its answer is kept in a coding that was not asked for",
                &format!(
                    "Send the same request with the same key and an Accept-Encoding that accepts {coding:?}. Do not send it under a new key."
                ),
            ),
            Self::RequestTooLarge { limit } => told(
                StatusCode::PAYLOAD_TOO_LARGE,
                "idempotency_request_too_large",
                FixRequest,
                "The request is too large for an Idempotency-Key",
                &format!("Its body may have at most {limit} bytes here. Nothing was executed."),
            ),
            Self::RequestBroken => told(
                StatusCode::BAD_REQUEST,
                "idempotency_request_broken",
                RetrySameKey,
                "The request's body broke off, so it was not executed",
                "Send it again with the same key.",
            ),
            Self::RequestSlow { patience } => told(
                StatusCode::REQUEST_TIMEOUT,
                "idempotency_request_broken",
                RetrySameKey,
                "The request's body broke off, so it was not executed",
                &format!(
                    "It may take {patience:?} to arrive, and took longer. Send it again with the same key."
                ),
            ),
            Self::NoRoom => Told {
                retry_after: Some(RETRY_SOON),
                ..told(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "idempotency_store_unavailable",
                    RetrySameKey,
                    STORE_TITLE,
                    "Too many requests are being received at once. Send it again with the same key.",
                )
            },
            Self::KeyNotFound => told(
                StatusCode::NOT_FOUND,
                "idempotency_key_not_found",
                FixRequest,
                "Nothing is known of this key",
                "It was never used by this caller, or its time is over.",
            ),
        }
    }

    /// Tells programs what happened, the same in every flavour.
    pub fn code(&self) -> &'static str {
        self.told(Flavor::Ietf).code
    }

    /// What an engine's refusal is to a client.
    pub(super) fn of(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Mismatch(differs) => Self::Mismatch(differs),
            Refusal::Incomparable => Self::Incomparable,
            Refusal::InProgress { retry_after } => Self::InProgress { retry_after },
            Refusal::Unknown { retry_after, letter } => Self::OutcomeUnknown { retry_after, letter },
        }
    }

    fn upstream_status(&self) -> Option<StatusCode> {
        match self {
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
            | Self::NoRoom
            | Self::KeyNotFound => None,
        }
    }

    /// What became of this request, as an outer Onceward is told: it releases its own key only where nothing was done.
    pub const fn outcome(&self) -> Class {
        match self {
            Self::ResponseTooLarge { .. } => Class::Completed,
            // It is being executed, or may have been. Where its answer is kept in another coding, an outer Onceward must not keep
            // this refusal as the answer.
            Self::StillWorking
            | Self::EncodingNotAccepted { .. }
            | Self::OutcomeUnknown { .. }
            | Self::Incomparable
            | Self::NoWholeAnswer(_)
            | Self::AnswerNotStored
            | Self::UpstreamUnsure { .. } => Class::Unknown,
            // Another request of this key may be under way, but this one began nothing.
            Self::InProgress { .. } | Self::Accepted { .. } | Self::Mismatch(_) => Class::Retryable,
            Self::MethodMiscased
            | Self::KeyMissing
            | Self::KeyInvalid(_)
            | Self::ScopeMissing(_)
            | Self::StoreUnavailable
            | Self::UpstreamUnreachable
            | Self::RequestTooLarge { .. }
            | Self::RequestBroken
            | Self::RequestSlow { .. }
            | Self::NoRoom
            | Self::KeyNotFound => Class::Retryable,
        }
    }

    /// The problem as RFC 9457 has it.
    pub(super) fn response(&self, flavor: Flavor, links: &Links) -> Response<Whole> {
        let told = self.told(flavor);
        let mut body = json!({
            "type": links.problem_type(told.code),
            "title": told.title,
            "status": told.status.as_u16(),
            "detail": told.detail,
            "code": told.code,
            "next_action": told.next_action.name(),
        });
        if let Some(status) = self.upstream_status() {
            body["upstream_status"] = status.as_u16().into();
        }
        let mut response = Response::new(Whole::from(Bytes::from(body.to_string())));
        *response.status_mut() = told.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(LINK, links.described_by());
        if let Some(after) = told.retry_after {
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

/// `Retry-After` has whole seconds, and zero would be an invitation to hammer.
fn whole_seconds(duration: Duration) -> u64 {
    (duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).max(1)
}

/// Error texts begin small and end without a stop, because they are often quoted; a detail stands alone.
fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).chain(['.']).collect()
}
