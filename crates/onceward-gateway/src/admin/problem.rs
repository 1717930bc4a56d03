//! Everything that the admin listener refuses, and the one place that says how it is told.

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use onceward::http::{Flavor, Problem as Refusing};
use onceward::store::{Stamped, StoreError, Version};
use onceward::{EngineError, OperationId, RecordId, Refusal, record::State};
use serde_json::{Value, json};

use super::record;
use crate::settings::Role;

/// Why a request to the admin listener does not get what it asks for.
#[derive(Debug)]
pub(super) enum Problem {
    /// There is no token, and it needs one.
    TokenMissing,
    /// What is shown is not a known token.
    TokenWrong,
    /// The token does not allow this.
    RoleTooLow { has: Role, needs: Role },
    /// There is no such path.
    NoSuchPath,
    /// The path does not take this method.
    NoSuchMethod,
    /// The request cannot be understood; the words say what to change.
    Invalid(String),
    /// The request's body is too large.
    TooLarge { limit: usize },
    /// There is no such operation.
    NotFound { id: OperationId },
    /// The record stands for another window of its key.
    OtherWindow { asked: OperationId, stands: OperationId },
    /// The caller's tenure is over.
    Fenced { id: RecordId },
    /// It cannot be done to the record that stands there.
    Conflict { id: RecordId, wish: Wish, found: Box<Stamped> },
    /// The record was changed since the caller looked at it.
    OtherVersion { id: RecordId, sent: u64, found: Version },
    /// A claim was refused.
    Refused(Refusal),
    /// The record is there and cannot be read.
    Unreadable { id: RecordId, version: Version, why: String },
    /// The store is away, or too much is going on.
    Unavailable(String),
}

/// What an operator asked for that depends on the state of the record.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wish {
    Resolve,
    Expire,
}

struct Told {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    /// Members of the body that only this problem has.
    more: Value,
}

impl Problem {
    fn told(&self) -> Told {
        let told =
            |status, code, title, detail: String| Told { status, code, title, detail, more: json!({}) };
        match self {
            Self::TokenMissing => told(
                StatusCode::UNAUTHORIZED,
                "token_missing",
                "This needs a token",
                "Send `Authorization: Bearer TOKEN`. Every change needs one, and so do stored bodies. Other looks need none over \
                 loopback, where `admin.listen` is on loopback too.".to_owned(),
            ),
            Self::TokenWrong => told(
                StatusCode::UNAUTHORIZED,
                "token_wrong",
                "This token is not known here",
                "Send one `Authorization: Bearer TOKEN` with a token of [[admin.tokens]], or the one beside the store.".to_owned(),
            ),
            Self::RoleTooLow { has, needs } => told(
                StatusCode::FORBIDDEN,
                "role_too_low",
                "This token does not allow that",
                format!("Its role is {}, and this needs {}.", role(*has), role(*needs)),
            ),
            Self::NoSuchPath => told(
                StatusCode::NOT_FOUND,
                "path_not_found",
                "There is nothing here",
                "The operations are under /v1/operations, metrics under /metrics.".to_owned(),
            ),
            Self::NoSuchMethod => told(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "This path does not take that method",
                "Look with GET, change with POST.".to_owned(),
            ),
            Self::Invalid(why) => {
                told(StatusCode::BAD_REQUEST, "request_invalid", "The request cannot be understood", why.clone())
            }
            Self::TooLarge { limit } => told(
                StatusCode::PAYLOAD_TOO_LARGE,
                "request_too_large",
                "The request or its reply is too large",
                format!("At most {limit} bytes are taken."),
            ),
            Self::NotFound { id } => told(
                StatusCode::NOT_FOUND,
                "operation_not_found",
                "There is no such operation",
                format!("{id} was never claimed here, or its window is over and it was swept."),
            ),
            Self::OtherWindow { asked, stands } => told(
                StatusCode::NOT_FOUND,
                "operation_not_found",
                "There is no such operation",
                format!("{asked} names another window of this key than the one that stands there now, {stands}. Look at that one before you change it."),
            ),
            Self::Fenced { id } => told(
                StatusCode::CONFLICT,
                "fenced",
                "Your tenure of this operation is over",
                format!("The fence that you sent no longer decides about {id}: do not go on. A result that you sent was kept as evidence."),
            ),
            Self::Conflict { id, wish, found } => Told {
                more: record::first(found),
                ..told(
                    StatusCode::CONFLICT,
                    "conflict",
                    "The operation is not, or no longer, where this can be done",
                    format!("{id} is {}: {}.", found.record.state.name(), instead(*wish, &found.record.state)),
                )
            },
            Self::OtherVersion { id, sent, found } => Told {
                more: json!({ "version": record::version_text(*found) }),
                ..told(
                    StatusCode::CONFLICT,
                    "conflict",
                    "The operation is not, or no longer, where this can be done",
                    format!(
                        "You sent version {sent} of {id}, and its version is {}: look at it again, and send the version as it is \
                         shown, in quotes.",
                        found.as_number()
                    ),
                )
            },
            Self::Refused(refusal) => {
                let refusing = refusing(refusal);
                let about = refusing.told(Flavor::Ietf);
                Told {
                    more: json!({ "next_action": about.next_action.name() }),
                    ..told(about.status, about.code, about.title, about.detail)
                }
            }
            Self::Unreadable { id, version, why } => Told {
                more: json!({ "id": id.to_string(), "version": record::version_text(*version) }),
                ..told(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "record_unreadable",
                    "The record is there and cannot be read",
                    format!("{why}. Its key stays refused; a damaged record can be resolved by its id."),
                )
            },
            Self::Unavailable(why) => {
                told(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "The store could not be asked", why.clone())
            }
        }
    }

    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Unavailable(_) => Some(1),
            Self::Refused(refusal) => {
                refusing(refusal).told(Flavor::Ietf).retry_after.map(|after| after.as_secs().max(1))
            }
            Self::TokenMissing
            | Self::TokenWrong
            | Self::RoleTooLow { .. }
            | Self::NoSuchPath
            | Self::NoSuchMethod
            | Self::Invalid(_)
            | Self::TooLarge { .. }
            | Self::NotFound { .. }
            | Self::OtherWindow { .. }
            | Self::Fenced { .. }
            | Self::Conflict { .. }
            | Self::OtherVersion { .. }
            | Self::Unreadable { .. } => None,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Told { status, code, title, detail, more } = self.told();
        let mut body = json!({
            "type": format!("urn:onceward:problem:{code}"),
            "title": title,
            "status": status.as_u16(),
            "detail": detail,
            "code": code,
        });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        let mut response = (status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(after) = self.retry_after() {
            headers.insert(RETRY_AFTER, after.into());
        }
        response
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(StoreError::Unreadable { id, version, why }) => {
                Self::Unreadable { id, version, why: why.to_string() }
            }
            EngineError::Store(StoreError::Refused { reason }) => Self::Invalid(reason),
            EngineError::ReplyTooLarge { limit, .. } => Self::TooLarge { limit },
            EngineError::Store(
                StoreError::Unavailable { .. } | StoreError::Overloaded { .. } | StoreError::Ambiguous { .. },
            )
            | EngineError::Overloaded { .. }
            | EngineError::Stopping
            | EngineError::Contended { .. } => Self::Unavailable(error.to_string()),
        }
    }
}

fn refusing(refusal: &Refusal) -> Refusing {
    match refusal {
        Refusal::Mismatch(differs) => Refusing::Mismatch(*differs),
        Refusal::Incomparable => Refusing::Incomparable,
        Refusal::InProgress { retry_after } => Refusing::InProgress { retry_after: *retry_after },
        Refusal::Unknown { retry_after, letter } => {
            Refusing::OutcomeUnknown { retry_after: *retry_after, letter: *letter }
        }
    }
}

/// Why a wish cannot be granted in a state, and what to do instead.
fn instead(wish: Wish, state: &State) -> &'static str {
    match (wish, state) {
        (_, State::InProgress { .. }) => {
            "it is being executed; wait until it is settled or its lease has lapsed"
        }
        (Wish::Expire, State::Unknown { .. }) => "resolve it first",
        (Wish::Resolve, State::Unknown { .. }) => {
            "it became unknown again meanwhile; look at it again, and decide about that"
        }
        (Wish::Resolve, State::Completed { .. }) => {
            "it is decided, and its answer is replayed; nothing is left to resolve"
        }
        (Wish::Resolve, State::FailedRetryable { .. }) => {
            "it is decided, and a retry with its key executes it; nothing is left to resolve"
        }
        (Wish::Resolve, State::Expired { .. }) => {
            "its window is over, and a request with its key executes; nothing is left to resolve"
        }
        (Wish::Expire, State::Expired { .. }) => "its window is over already",
        (Wish::Expire, State::Completed { .. } | State::FailedRetryable { .. }) => {
            "it was changed meanwhile; look at it again"
        }
    }
}

const fn role(role: Role) -> &'static str {
    match role {
        Role::Reader => "reader",
        Role::Worker => "worker",
        Role::Operator => "operator",
    }
}
