//! Changing operations: by workers that execute elsewhere, and by operators.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State as Held};
use axum::response::Response;
use http::StatusCode;
use onceward::event::Resolution;
use onceward::store::{Stamped, StoreError};
use onceward::{
    Claim, Claimed, EngineError, Fence, Fingerprint, Key, OnLapse, OperationId, Outcome, RecordId,
    RecoveryPoint, Scope, Terms,
    claim::OwnerToken,
    engine::{By, Operated, Resolve, Settled, Tenure},
    outcome::Unsure,
    record::{Cause, State},
};
use serde::Deserialize;
use serde_json::json;

use super::input::Number;
use super::look::json_response;
use super::problem::{Problem, Wish};
use super::reply::{Bodies, Brought, Content, content, shown};
use super::token::Caller;
use super::{Shared, input, record};
use crate::telemetry::metrics::OPERATIONS;

/// The least body of each call, shown to callers that send less.
const CLAIM: &str = r#"{"scope": "…", "key": "…", "fingerprint": "…"}"#;
const RENEW: &str = r#"{"fence": …}"#;
const CHECKPOINT: &str = r#"{"fence": …, "recovery_point": "…"}"#;
const SETTLE: &str =
    r#"{"fence": …, "outcome": "completed", "reply": {…}}, or the outcome retryable or unknown"#;
const RESOLVE: &str =
    r#"{"verdict": "completed", "reply": {…}, "reason": "…"}, or {"verdict": "retryable", "reason": "…"}"#;
const EXPIRE: &str = r#"{"reason": "…"}"#;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimBody {
    scope: ScopeText,
    key: String,
    fingerprint: String,
    owner: Option<String>,
    lease: Option<String>,
    retention: Option<String>,
    on_lapse: Option<OnLapseName>,
}

/// A scope of one part, or of several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ScopeText {
    One(String),
    Parts(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnLapseName {
    Unknown,
    Resume,
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
        terms.on_lapse = match self.on_lapse {
            None | Some(OnLapseName::Unknown) => OnLapse::Unknown,
            Some(OnLapseName::Resume) => OnLapse::RESUME,
        };
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
pub(super) async fn claim(Held(shared): Held<Arc<Shared>>, body: Body) -> Result<Response, Problem> {
    let claim = input::json::<ClaimBody>(body, CLAIM).await?.claim()?;
    match shared.engine.claim(claim).await? {
        Claimed::Reserved(reservation) => {
            let operation = reservation.hand_over();
            let point = operation.recovery_point();
            let mut told = json!({
                "decision": if point.is_some() { "resume" } else { "execute" },
                "id": operation.id().to_string(),
                "operation": operation.operation_id().to_string(),
                "fence": operation.fence().as_number(),
                "attempt": operation.attempt(),
                "recovery_point": point.as_ref().map_or("started", |point| point.name()),
            });
            let status = match &point {
                Some(point) => {
                    told["data"] = content(point.data());
                    StatusCode::OK
                }
                None => StatusCode::CREATED,
            };
            Ok(json_response(status, &told))
        }
        Claimed::Replay { reply, expires_at } => {
            let expires_at = record::time(expires_at);
            let reply = shown(&reply, Bodies::Shown);
            Ok(ok(json!({ "decision": "replay", "reply": reply, "expires_at": expires_at })))
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
pub(super) async fn renew(
    Held(shared): Held<Arc<Shared>>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let id = named(&shared, input::operation(&id)?).await?;
    let fence = tenure(input::json::<RenewBody>(body, RENEW).await?.fence);
    held(&shared, id, shared.engine.renew(id, fence).await?).await?;
    lease(&shared, id, fence).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckpointBody {
    fence: Number,
    recovery_point: String,
    #[serde(default)]
    data: Content,
}

/// `POST /v1/operations/{id}/checkpoint`
pub(super) async fn checkpoint(
    Held(shared): Held<Arc<Shared>>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let id = named(&shared, input::operation(&id)?).await?;
    let CheckpointBody { fence, recovery_point, data } = input::json(body, CHECKPOINT).await?;
    let point = RecoveryPoint::new(&recovery_point, data.bytes()?);
    let point = point.map_err(|error| Problem::Invalid(error.to_string()))?;
    let fence = tenure(fence);
    held(&shared, id, shared.engine.checkpoint(id, fence, point).await?).await?;
    lease(&shared, id, fence).await
}

fn tenure(fence: Number) -> Fence {
    Fence::from_number(fence.0)
}

/// Until when the lease lives now. It may have ended since: then its owner is told.
async fn lease(shared: &Shared, id: RecordId, fence: Fence) -> Result<Response, Problem> {
    let found = shared.engine.load(id).await?;
    match found.map(|found| found.record) {
        Some(record) if record.fence == fence => match record.state {
            State::InProgress { lease_until } => Ok(ok(json!({ "lease_until": record::time(lease_until) }))),
            State::Completed { .. }
            | State::FailedRetryable { .. }
            | State::Unknown { .. }
            | State::Expired { .. } => Err(Problem::Fenced { id }),
        },
        Some(_) | None => Err(Problem::Fenced { id }),
    }
}

async fn held(shared: &Shared, id: RecordId, tenure: Tenure) -> Result<(), Problem> {
    match tenure {
        Tenure::Held => Ok(()),
        Tenure::Over => Err(over(shared, id).await?),
    }
}

/// The record of an operation. An id that names a window must mean the one that stands there.
async fn named(shared: &Shared, operation: OperationId) -> Result<RecordId, Problem> {
    let id = operation.record();
    if operation.opened().is_none() {
        return Ok(id);
    }
    match shared.engine.load(id).await? {
        Some(found) => found
            .record
            .is_named_by(operation)
            .then_some(id)
            .ok_or_else(|| Problem::OtherWindow { asked: operation, stands: found.record.operation(id) }),
        None => Err(Problem::NotFound { id: operation }),
    }
}

/// The tenure is over; or there never was one.
async fn over(shared: &Shared, id: RecordId) -> Result<Problem, Problem> {
    Ok(match shared.engine.load(id).await? {
        Some(_) => Problem::Fenced { id },
        None => Problem::NotFound { id: OperationId::bare(id) },
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleBody {
    fence: Number,
    outcome: OutcomeName,
    reply: Option<Brought>,
    error: Option<String>,
    cause: Option<CauseName>,
}

/// Why an outcome is unknown. An owner that says so itself has had an answer, unless it says otherwise.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CauseName {
    Lost,
    Said,
    DoneNotKept,
}

impl From<CauseName> for Cause {
    fn from(name: CauseName) -> Self {
        match name {
            CauseName::Lost => Self::Lost,
            CauseName::Said => Self::Said,
            CauseName::DoneNotKept => Self::DoneNotKept,
        }
    }
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
            (OutcomeName::Unknown, cause) => cause.map_or(Cause::Said, Cause::from),
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
            (OutcomeName::Unknown, None) => Ok(Outcome::Unknown(Unsure { cause, why: error })),
            (OutcomeName::Retryable | OutcomeName::Unknown, Some(_)) => {
                Err(Problem::Invalid("only outcome = completed has a reply".to_owned()))
            }
        }
    }
}

/// `POST /v1/operations/{id}/settle`
pub(super) async fn settle(
    Held(shared): Held<Arc<Shared>>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let id = named(&shared, input::operation(&id)?).await?;
    let body: SettleBody = input::json(body, SETTLE).await?;
    let fence = tenure(body.fence);
    match shared.engine.settle(id, fence, body.outcome()?).await? {
        Settled::Completed { by, expires_at, .. } => {
            let by = match by {
                By::This => "this",
                By::Other => "other",
            };
            Ok(ok(json!({ "state": "completed", "by": by, "expires_at": record::time(expires_at) })))
        }
        Settled::Retryable => Ok(ok(json!({ "state": "failed_retryable" }))),
        Settled::Unknown => Ok(ok(json!({ "state": "unknown" }))),
        Settled::Fenced => Err(over(&shared, id).await?),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResolveBody {
    verdict: VerdictName,
    reply: Option<Brought>,
    reason: String,
    version: Option<Number>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum VerdictName {
    Completed,
    Retryable,
}

/// `POST /v1/operations/{id}/resolve`
pub(super) async fn resolve(
    Held(shared): Held<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let operation = input::operation(&id)?;
    let id = operation.record();
    let ResolveBody { verdict, reply, reason, version } = input::json(body, RESOLVE).await?;
    let reason = given(&reason)?;
    let resolution = match (verdict, reply) {
        (VerdictName::Completed, Some(reply)) => Resolution::Completed(reply.reply()?),
        (VerdictName::Completed, None) => {
            return Err(Problem::Invalid(
                "verdict = completed needs a reply: it is what every retry gets".to_owned(),
            ));
        }
        (VerdictName::Retryable, None) => Resolution::Retryable,
        (VerdictName::Retryable, Some(_)) => {
            return Err(Problem::Invalid("only verdict = completed has a reply".to_owned()));
        }
    };
    // The verdict is about the record that stands there now: its version goes with it.
    let found = match shared.engine.load(id).await {
        Ok(Some(found)) if found.record.is_named_by(operation) => found.version,
        Ok(Some(found)) => {
            return Err(Problem::OtherWindow { asked: operation, stands: found.record.operation(id) });
        }
        Ok(None) => return Err(Problem::NotFound { id: operation }),
        Err(EngineError::Store(StoreError::Unreadable { .. })) if operation.opened().is_some() => {
            return Err(Problem::Invalid(format!(
                "the record cannot be read, so that nothing says which window it is about: resolve it as {id}"
            )));
        }
        Err(EngineError::Store(StoreError::Unreadable { version, .. })) => version,
        Err(error) => return Err(error.into()),
    };
    if let Some(Number(sent)) = version.filter(|version| version.0 != found.as_number()) {
        return Err(Problem::OtherVersion { id, sent, found });
    }
    let resolve = Resolve { verdict: resolution, by: &caller.name, reason, seen: Some(found) };
    let applied = applied(operation, Wish::Resolve, shared.engine.resolve(id, resolve).await?)?;
    Ok(shown_operation(id, &applied))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpireBody {
    reason: String,
}

/// `POST /v1/operations/{id}/expire`
pub(super) async fn expire(
    Held(shared): Held<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let operation = input::operation(&id)?;
    let id = operation.record();
    let ExpireBody { reason } = input::json(body, EXPIRE).await?;
    let reason = given(&reason)?;
    let applied = applied(operation, Wish::Expire, shared.engine.expire(id, operation.opened()).await?)?;
    let operation = applied.record.operation(id);
    tracing::info!(
        %operation,
        by = caller.name,
        reason,
        "an operator ended the window of an operation: soon a retry with its key executes again"
    );
    Ok(shown_operation(id, &applied))
}

/// A record keeps this much of a reason, and the log has no more.
const REASON_BYTES_MAX: usize = 512;

fn given(reason: &str) -> Result<&str, Problem> {
    match reason.trim() {
        "" => Err(Problem::Invalid("reason is empty: say why, for whoever looks at this later".to_owned())),
        reason => Ok(&reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]),
    }
}

fn applied(operation: OperationId, wish: Wish, operated: Operated) -> Result<Stamped, Problem> {
    match operated {
        Operated::Applied(stamped) => Ok(stamped),
        Operated::Conflict(None) => Err(Problem::NotFound { id: operation }),
        Operated::Conflict(Some(found)) if !found.record.is_named_by(operation) => {
            Err(Problem::OtherWindow { asked: operation, stands: found.record.operation(operation.record()) })
        }
        Operated::Conflict(Some(found)) => {
            Err(Problem::Conflict { id: operation.record(), wish, found: Box::new(found) })
        }
    }
}

fn shown_operation(id: RecordId, found: &Stamped) -> Response {
    let mut shown = record::operation(id, found.version, &found.record, Bodies::Hidden);
    shown["timeline"] = record::timeline(&found.record);
    ok(shown)
}

fn ok(body: serde_json::Value) -> Response {
    json_response(StatusCode::OK, &body)
}
