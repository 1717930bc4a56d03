//! The calls of operators: resolve an unknown outcome, end the window of a key.

use axum::Extension;
use axum::body::Body;
use axum::extract::Path;
use axum::response::Response;
use onceward::event::Resolution;
use onceward::store::{Stamped, StoreError};
use onceward::{
    Engine, EngineError, OperationId, RecordId,
    engine::{Operated, Resolve},
};
use serde::Deserialize;

use super::input::Number;
use super::problem::{Action, Problem, in_window};
use super::reply_json::{Bodies, ReplyJson};
use super::token::Caller;
use super::{Context, input, record_json, response};

/// The smallest valid body of each call, for the errors that refuse a body.
const RESOLVE: &str =
    r#"{"verdict": "completed", "reply": {…}, "reason": "…"}, or {"verdict": "retryable", "reason": "…"}"#;
const EXPIRE: &str = r#"{"reason": "…"}"#;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResolveBody {
    verdict: VerdictName,
    reply: Option<ReplyJson>,
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
    context: Context,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let operation = input::operation(&id)?;
    let id = operation.record();
    let ResolveBody { verdict, reply, reason, version } = input::json(body, RESOLVE).await?;
    let reason = reason_of(&reason)?;
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
    // The verdict is about this version of the record, so the version goes down to the compare-and-swap.
    let found = match context.engine.load(id).await {
        Ok(Some(found)) => in_window(operation, found)?.version,
        Ok(None) => return Err(Problem::NotFound { id: operation }),
        Err(EngineError::Store(StoreError::Unreadable { .. })) if operation.opened().is_some() => {
            return Err(Problem::Invalid(format!(
                "the record cannot be read, so that its window is not known: resolve it as {id}"
            )));
        }
        Err(EngineError::Store(StoreError::Unreadable { version, .. })) => version,
        Err(error) => return Err(error.into()),
    };
    if let Some(Number(sent)) = version.filter(|version| version.0 != found.as_number()) {
        return Err(Problem::OtherVersion { id, sent, found });
    }
    let resolve = Resolve { verdict: resolution, by: &caller.name, reason, seen: Some(found) };
    let applied = applied(operation, Action::Resolve, context.engine.resolve(id, resolve).await?)?;
    Ok(operation_response(&context.engine, id, &applied))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpireBody {
    reason: String,
}

/// `POST /v1/operations/{id}/expire`
pub(super) async fn expire(
    context: Context,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let operation = input::operation(&id)?;
    let id = operation.record();
    let ExpireBody { reason } = input::json(body, EXPIRE).await?;
    let reason = reason_of(&reason)?;
    let applied = applied(operation, Action::Expire, context.engine.expire(id, operation.opened()).await?)?;
    let operation = applied.record.operation(id);
    tracing::info!(
        %operation,
        by = caller.name,
        reason,
        "an operator ended the window of an operation: soon a retry with its key executes again"
    );
    Ok(operation_response(&context.engine, id, &applied))
}

/// A record keeps this much of a reason, and so does the log.
const REASON_BYTES_MAX: usize = 512;

fn reason_of(reason: &str) -> Result<&str, Problem> {
    match reason.trim() {
        "" => Err(Problem::Invalid("reason is empty: say why, for those who read it later".to_owned())),
        reason => Ok(&reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]),
    }
}

fn applied(operation: OperationId, action: Action, operated: Operated) -> Result<Stamped, Problem> {
    match operated {
        Operated::Applied(stamped) => Ok(stamped),
        Operated::Conflict(None) => Err(Problem::NotFound { id: operation }),
        Operated::Conflict(Some(found)) => {
            let found = Box::new(in_window(operation, found)?);
            Err(Problem::Conflict { id: operation.record(), action, found })
        }
    }
}

fn operation_response(engine: &Engine, id: RecordId, found: &Stamped) -> Response {
    let mut shown = record_json::operation(engine, id, found.version, &found.record, Bodies::Hidden);
    shown["timeline"] = record_json::timeline(&found.record);
    response::ok(shown)
}
