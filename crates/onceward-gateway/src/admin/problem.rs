//! Everything that the admin listener refuses, with its status and code.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use onceward::http::{Flavor, Problem as ClientProblem, ProblemJson};
use onceward::store::{Stamped, StoreError, Version};
use onceward::{EngineError, OperationId, RecordId, Refusal, record::State};
use serde_json::{Map, Value, json};

use super::record_json;
use crate::settings::Role;

/// Why a request to the admin listener is refused.
#[derive(Debug)]
pub(super) enum Problem {
    /// There is no token, and it needs one.
    TokenMissing,
    /// The token is not a valid one.
    TokenWrong,
    /// The token does not allow this.
    RoleTooLow { has: Role, needs: Role },
    /// There is no such path.
    NoSuchPath,
    /// The path does not take this method.
    NoSuchMethod,
    /// The request cannot be understood; the text has what to change.
    Invalid(String),
    /// The request's body is too large.
    TooLarge { limit: usize },
    /// There is no such operation.
    NotFound { id: OperationId },
    /// The record is of another window of its key.
    OtherWindow { asked: OperationId, stands: OperationId },
    /// The caller's tenure is over.
    Fenced { id: RecordId },
    /// The record's state does not allow it.
    Conflict { id: RecordId, action: Action, found: Box<Stamped> },
    /// The record was changed since the caller read it.
    OtherVersion { id: RecordId, sent: u64, found: Version },
    /// The receipt row has the phases of this operation.
    PhaseInReceipt(String),
    /// A claim was refused.
    Refused(Refusal),
    /// The record exists and cannot be read.
    Unreadable { id: RecordId, version: Version, why: String },
    /// The store or the engine cannot answer now.
    Unavailable(String),
}

/// An operator's change of a record.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    Resolve,
    Expire,
}

/// A problem in the words of its answer.
struct Answer {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    /// Members of the body that only this problem has.
    more: Map<String, Value>,
    retry_after: Option<u64>,
}

fn answer(status: StatusCode, code: &'static str, title: &'static str, detail: String) -> Answer {
    Answer { status, code, title, detail, more: Map::new(), retry_after: None }
}

impl Problem {
    fn answer(&self) -> Answer {
        match self {
            Self::TokenMissing => answer(
                StatusCode::UNAUTHORIZED,
                "token_missing",
                "This needs a token",
                "Send `Authorization: Bearer TOKEN`. Every change needs one, and so do stored bodies. Other reads need none over \
                 loopback, where `admin.listen` is on loopback too.".to_owned(),
            ),
            Self::TokenWrong => answer(
                StatusCode::UNAUTHORIZED,
                "token_wrong",
                "This token is not known here",
                "Send one `Authorization: Bearer TOKEN` with a token of [[admin.tokens]], or the one beside the store.".to_owned(),
            ),
            Self::RoleTooLow { has, needs } => answer(
                StatusCode::FORBIDDEN,
                "role_too_low",
                "This token does not allow that",
                format!("Its role is {}, and this needs {}.", has.name(), needs.name()),
            ),
            Self::NoSuchPath => answer(
                StatusCode::NOT_FOUND,
                "path_not_found",
                "There is nothing here",
                "The operations are under /v1/operations, metrics under /metrics.".to_owned(),
            ),
            Self::NoSuchMethod => answer(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "This path does not take that method",
                "Read with GET, change with POST.".to_owned(),
            ),
            Self::Invalid(why) => {
                answer(StatusCode::BAD_REQUEST, "request_invalid", "The request cannot be understood", why.clone())
            }
            Self::TooLarge { limit } => answer(
                StatusCode::PAYLOAD_TOO_LARGE,
                "request_too_large",
                "The request or its reply is too large",
                format!("At most {limit} bytes are taken."),
            ),
            Self::PhaseInReceipt(why) => answer(
                StatusCode::CONFLICT,
                "phase_in_receipt",
                "The receipt row has the phases of this operation",
                why.clone(),
            ),
            Self::NotFound { id } => answer(
                StatusCode::NOT_FOUND,
                "operation_not_found",
                "There is no such operation",
                format!("{id} was never claimed here, or its window is over and it was swept."),
            ),
            Self::OtherWindow { asked, stands } => answer(
                StatusCode::NOT_FOUND,
                "operation_not_found",
                "There is no such operation",
                format!("{asked} names another window of this key than the one that stands there now, {stands}. Read that one before you change it."),
            ),
            Self::Fenced { id } => answer(
                StatusCode::CONFLICT,
                "fenced",
                "Your tenure of this operation is over",
                format!("The fence that you sent no longer decides about {id}: do not go on. A result that you sent was kept as evidence."),
            ),
            Self::Conflict { id, action, found } => Answer {
                more: members(record_json::conflicting(found)),
                ..answer(
                    StatusCode::CONFLICT,
                    "conflict",
                    "The operation is not, or no longer, where this can be done",
                    format!("{id} is {}: {}.", found.record.state.name(), instead(*action, &found.record.state)),
                )
            },
            Self::OtherVersion { id, sent, found } => Answer {
                more: members(json!({ "version": record_json::version_text(*found) })),
                ..answer(
                    StatusCode::CONFLICT,
                    "conflict",
                    "The operation is not, or no longer, where this can be done",
                    format!(
                        "You sent version {sent} of {id}, and its version is {}: read it again, and send the version as it is \
                         shown, in quotes.",
                        found.as_number()
                    ),
                )
            },
            Self::Refused(refusal) => {
                let problem = client_problem(refusal);
                let details = problem.details(Flavor::Ietf);
                Answer {
                    more: members(json!({ "next_action": details.next_action.name() })),
                    retry_after: details.retry_after.map(|after| after.as_secs().max(1)),
                    ..answer(details.status, details.code, details.title, details.detail)
                }
            }
            Self::Unreadable { id, version, why } => Answer {
                more: members(json!({ "id": id.to_string(), "version": record_json::version_text(*version) })),
                ..answer(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "record_unreadable",
                    "The record is there and cannot be read",
                    format!("{why}. Its key stays refused; a damaged record can be resolved by its id."),
                )
            },
            Self::Unavailable(why) => Answer {
                retry_after: Some(1),
                ..answer(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "store_unavailable",
                    "The store could not be asked",
                    why.clone(),
                )
            },
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Answer { status, code, title, detail, more: mut members, retry_after } = self.answer();
        members.insert("type".to_owned(), format!("urn:onceward:problem:{code}").into());
        members.insert("code".to_owned(), code.into());
        let mut response = ProblemJson { status, title, detail, members }.response().map(Body::from);
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(after) = retry_after {
            headers.insert(RETRY_AFTER, after.into());
        }
        response
    }
}

/// The members of an object.
fn members(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(members) => members,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(StoreError::Unreadable { id, version, why }) => {
                Self::Unreadable { id, version, why: why.to_string() }
            }
            EngineError::Store(StoreError::Refused { reason }) => Self::Invalid(reason),
            EngineError::PhaseInReceipt => Self::PhaseInReceipt(error.to_string()),
            EngineError::ReplyTooLarge { limit, .. } => Self::TooLarge { limit },
            EngineError::Store(
                StoreError::Unavailable { .. } | StoreError::Overloaded { .. } | StoreError::Ambiguous { .. },
            )
            | EngineError::Overloaded { .. }
            | EngineError::NotVoided { .. }
            | EngineError::Stopping
            | EngineError::Contended { .. } => Self::Unavailable(error.to_string()),
        }
    }
}

/// The record that was found, if it is of the window that the operation names.
pub(super) fn in_window(operation: OperationId, found: Stamped) -> Result<Stamped, Problem> {
    if found.record.is_named_by(operation) {
        return Ok(found);
    }
    Err(Problem::OtherWindow { asked: operation, stands: found.record.operation(operation.record()) })
}

fn client_problem(refusal: &Refusal) -> ClientProblem {
    match refusal {
        Refusal::Mismatch(differs) => ClientProblem::Mismatch(*differs),
        Refusal::Incomparable => ClientProblem::Incomparable,
        Refusal::InProgress { retry_after } => ClientProblem::InProgress { retry_after: *retry_after },
        Refusal::Unknown { retry_after, letter } => {
            ClientProblem::OutcomeUnknown { retry_after: *retry_after, letter: *letter }
        }
    }
}

/// Why an action is refused in a state, and what to do instead.
fn instead(action: Action, state: &State) -> &'static str {
    match (action, state) {
        (_, State::InProgress { .. }) => {
            "it is being executed; wait until it is settled or its lease has lapsed"
        }
        (Action::Expire, State::Unknown { .. }) => "resolve it first",
        (Action::Resolve, State::Unknown { .. }) => {
            "it became unknown again meanwhile; read it again, and decide about that"
        }
        (Action::Resolve, State::Completed { .. }) => {
            "it is decided, and its answer is replayed; nothing is left to resolve"
        }
        (Action::Resolve, State::FailedRetryable { .. }) => {
            "it is decided, and a retry with its key executes it; nothing is left to resolve"
        }
        (Action::Resolve, State::Expired { .. }) => {
            "its window is over, and a request with its key executes; nothing is left to resolve"
        }
        (Action::Expire, State::Expired { .. }) => "its window is over already",
        (Action::Expire, State::Completed { .. } | State::FailedRetryable { .. }) => {
            "it was changed meanwhile; read it again"
        }
    }
}
