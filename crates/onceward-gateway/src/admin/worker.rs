//! The calls of workers, which execute operations elsewhere: claim, renew, checkpoint, settle.

use axum::body::Body;
use axum::extract::Path;
use axum::response::Response;
use http::StatusCode;
use onceward::{
    Claim, Claimed, Fence, Fingerprint, Key, OperationId, Outcome, RecordId, RecoveryPoint, Scope, Terms,
    claim::OwnerToken,
    engine::{By, Settled, Tenure},
    outcome::Unsure,
    record::{Cause, State},
};
use serde::Deserialize;
use serde_json::json;

use super::input::Number;
use super::problem::{Problem, in_window};
use super::reply_json::{Bodies, BytesJson, ReplyJson, bytes_json, reply_json};
use super::{Context, input, record_json, response};
use crate::settings::LapseRule;
use crate::telemetry::metrics::OPERATIONS;

/// The smallest valid body of each call, for the errors that refuse a body.
const CLAIM: &str = r#"{"scope": "…", "key": "…", "fingerprint": "…"}"#;
const RENEW: &str = r#"{"fence": …}"#;
const CHECKPOINT: &str = r#"{"fence": …, "recovery_point": "…"}"#;
const SETTLE: &str =
    r#"{"fence": …, "outcome": "completed", "reply": {…}}, or the outcome retryable or unknown"#;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimBody {
    scope: ScopeText,
    key: String,
    fingerprint: String,
    owner: Option<String>,
    lease: Option<String>,
    retention: Option<String>,
    on_lapse: Option<LapseRule>,
}

/// A scope of one part, or of several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ScopeText {
    One(String),
    Parts(Vec<String>),
}

impl ClaimBody {
    fn claim(self) -> Result<Claim, Problem> {
        let invalid = |why: String| Problem::Invalid(why);
        let scope = match &self.scope {
            ScopeText::One(part) => Scope::new(part),
            ScopeText::Parts(parts) => Scope::from_parts(parts.iter().map(String::as_str)),
        };
        let scope = scope.map_err(|error| invalid(error.to_string()))?;
        let key = Key::new(&self.key).map_err(|error| invalid(error.to_string()))?;
        let mut terms = Terms::default();
        if let Some(lease) = &self.lease {
            terms.lease = input::duration("lease", lease)?;
        }
        if let Some(retention) = &self.retention {
            terms.retention = input::duration("retention", retention)?;
        }
        terms.on_lapse = self.on_lapse.unwrap_or_default().into();
        let claim = Claim::new(scope, key, Fingerprint::of_bytes(self.fingerprint.as_bytes()));
        let claim = claim.route(OPERATIONS).and_then(|claim| claim.terms(terms));
        let claim = claim.map_err(|error| invalid(error.to_string()))?;
        Ok(match self.owner {
            Some(owner) => claim.owner(OwnerToken::named(&owner)),
            None => claim,
        })
    }
}

/// `POST /v1/operations`
pub(super) async fn claim(context: Context, body: Body) -> Result<Response, Problem> {
    let claim = input::json::<ClaimBody>(body, CLAIM).await?.claim()?;
    match context.engine.claim(claim).await? {
        Claimed::Reserved(reservation) => {
            let operation = reservation.hand_over();
            let point = operation.recovery_point();
            let mut body = json!({
                "decision": if point.is_some() { "resume" } else { "execute" },
                "id": operation.id().to_string(),
                "operation": operation.operation_id().to_string(),
                "fence": operation.fence().as_number(),
                "attempt": operation.attempt(),
                "recovery_point": point.as_ref().map_or("started", |point| point.name()),
            });
            let status = match &point {
                Some(point) => {
                    body["data"] = bytes_json(point.data());
                    StatusCode::OK
                }
                None => StatusCode::CREATED,
            };
            Ok(response::json(status, &body))
        }
        Claimed::Replay { reply, expires_at } => {
            let expires_at = record_json::time(expires_at);
            let reply = reply_json(&reply, Bodies::Shown);
            Ok(response::ok(json!({ "decision": "replay", "reply": reply, "expires_at": expires_at })))
        }
        Claimed::Refused(refusal) => Err(Problem::Refused(refusal)),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewBody {
    fence: Number,
}

/// `POST /v1/operations/{id}/renew`
pub(super) async fn renew(context: Context, Path(id): Path<String>, body: Body) -> Result<Response, Problem> {
    let id = record_named_by(&context, input::operation(&id)?).await?;
    let fence = fence_of(input::json::<RenewBody>(body, RENEW).await?.fence);
    require_held(&context, id, context.engine.renew(id, fence).await?).await?;
    lease_end(&context, id, fence).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckpointBody {
    fence: Number,
    recovery_point: String,
    #[serde(default)]
    data: BytesJson,
}

/// `POST /v1/operations/{id}/checkpoint`
pub(super) async fn checkpoint(
    context: Context,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let id = record_named_by(&context, input::operation(&id)?).await?;
    let CheckpointBody { fence, recovery_point, data } = input::json(body, CHECKPOINT).await?;
    let point = RecoveryPoint::new(&recovery_point, data.bytes()?);
    let point = point.map_err(|error| Problem::Invalid(error.to_string()))?;
    let fence = fence_of(fence);
    require_held(&context, id, context.engine.checkpoint(id, fence, point).await?).await?;
    lease_end(&context, id, fence).await
}

fn fence_of(fence: Number) -> Fence {
    Fence::from_number(fence.0)
}

/// Until when the lease lasts now; refused if the tenure has ended since.
async fn lease_end(context: &Context, id: RecordId, fence: Fence) -> Result<Response, Problem> {
    let found = context.engine.load(id).await?;
    match found.map(|found| found.record) {
        Some(record) if record.fence == fence => match record.state {
            State::InProgress { lease_until } => {
                Ok(response::ok(json!({ "lease_until": record_json::time(lease_until) })))
            }
            State::Completed { .. }
            | State::FailedRetryable { .. }
            | State::Unknown { .. }
            | State::Expired { .. } => Err(Problem::Fenced { id }),
        },
        Some(_) | None => Err(Problem::Fenced { id }),
    }
}

async fn require_held(context: &Context, id: RecordId, tenure: Tenure) -> Result<(), Problem> {
    match tenure {
        Tenure::Held => Ok(()),
        Tenure::Over => Err(not_held(context, id).await?),
    }
}

/// The id of the record that an operation names. If the name has a window, it must be the record's own.
async fn record_named_by(context: &Context, operation: OperationId) -> Result<RecordId, Problem> {
    let id = operation.record();
    if operation.opened().is_none() {
        return Ok(id);
    }
    let found = context.engine.load(id).await?.ok_or(Problem::NotFound { id: operation })?;
    in_window(operation, found)?;
    Ok(id)
}

/// Why a tenure is not held: it is over, or the operation does not exist.
async fn not_held(context: &Context, id: RecordId) -> Result<Problem, Problem> {
    Ok(match context.engine.load(id).await? {
        Some(_) => Problem::Fenced { id },
        None => Problem::NotFound { id: OperationId::bare(id) },
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleBody {
    fence: Number,
    outcome: OutcomeName,
    reply: Option<ReplyJson>,
    error: Option<String>,
    /// Why the outcome is unknown. An owner that reports it has had an answer, unless it sends another cause.
    cause: Option<Cause>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutcomeName {
    Completed,
    Retryable,
    Unknown,
}

impl SettleBody {
    fn outcome(self) -> Result<Outcome, Problem> {
        let error = self.error.unwrap_or_else(|| "the owner gave no reason".to_owned());
        let cause = match (&self.outcome, self.cause) {
            (OutcomeName::Unknown, cause) => cause.unwrap_or(Cause::Said),
            (OutcomeName::Completed | OutcomeName::Retryable, None) => Cause::Said,
            (OutcomeName::Completed | OutcomeName::Retryable, Some(_)) => {
                return Err(Problem::Invalid("only outcome = unknown has a cause".to_owned()));
            }
        };
        match (self.outcome, self.reply) {
            (OutcomeName::Completed, Some(reply)) => Ok(Outcome::Completed(reply.reply()?)),
            (OutcomeName::Completed, None) => {
                Err(Problem::Invalid("outcome = completed needs a reply".to_owned()))
            }
            (OutcomeName::Retryable, None) => Ok(Outcome::Retryable(error)),
            (OutcomeName::Unknown, None) => Ok(Outcome::Unknown(Unsure::new(cause, error))),
            (OutcomeName::Retryable | OutcomeName::Unknown, Some(_)) => {
                Err(Problem::Invalid("only outcome = completed has a reply".to_owned()))
            }
        }
    }
}

/// `POST /v1/operations/{id}/settle`
pub(super) async fn settle(
    context: Context,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let id = record_named_by(&context, input::operation(&id)?).await?;
    let body: SettleBody = input::json(body, SETTLE).await?;
    let fence = fence_of(body.fence);
    match context.engine.settle(id, fence, body.outcome()?).await? {
        Settled::Completed { by, expires_at, .. } => {
            let by = match by {
                By::This => "this",
                By::Other => "other",
            };
            Ok(response::ok(
                json!({ "state": "completed", "by": by, "expires_at": record_json::time(expires_at) }),
            ))
        }
        Settled::Retryable => Ok(response::ok(json!({ "state": "failed_retryable" }))),
        Settled::Unknown => Ok(response::ok(json!({ "state": "unknown" }))),
        Settled::Fenced => Err(not_held(&context, id).await?),
    }
}
