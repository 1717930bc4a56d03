//! `GET /v1/operations`: one operation, or a list of them.

use axum::Extension;
use axum::extract::Path;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Uri;
use onceward::store::{Cursor, Filter, Scan, Which};
use onceward::{
    Engine, Key, Scope, Timestamp,
    record::{Letter, StateKind},
};
use serde_json::{Value, json};

use super::problem::{Problem, in_window};
use super::reply_json::Bodies;
use super::token::Caller;
use super::{Context, input, record_json, response};

/// How many operations a list has by default.
const LIMIT: usize = 100;
/// How many it may have. A page is held in memory whole.
const LIMIT_MAX: usize = 1_000;

/// `GET /v1/operations/{id}`
pub(super) async fn one(
    context: Context,
    Path(id): Path<String>,
    caller: Option<Extension<Caller>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let operation = input::operation(&id)?;
    let id = operation.record();
    let query = input::query(&uri, &["bodies"])?;
    let asked = match query.get("bodies").map(String::as_str) {
        None | Some("false") => Bodies::Hidden,
        Some("true") => Bodies::Shown,
        Some(_) => return Err(Problem::Invalid("bodies in the query must be true or false".to_owned())),
    };
    // Headers and recovery data count as bodies: any of them may hold secrets of users.
    let (bodies, bodies_word) = match (asked, caller) {
        (_, None) => (Bodies::Hidden, "token_needed"),
        (Bodies::Hidden, Some(_)) => (Bodies::Hidden, "hidden"),
        (Bodies::Shown, Some(_)) => (Bodies::Shown, "shown"),
    };
    let found = context.engine.load(id).await?.ok_or(Problem::NotFound { id: operation })?;
    let found = in_window(operation, found)?;
    let mut shown = record_json::operation(&context.engine, id, found.version, &found.record, bodies);
    shown["bodies"] = bodies_word.into();
    shown["timeline"] = record_json::timeline(&found.record);
    Ok(response::ok(shown))
}

/// `GET /v1/operations`
pub(super) async fn list(context: Context, uri: Uri) -> Result<Response, Problem> {
    let engine = &context.engine;
    let known = ["state", "dead", "route", "scope", "key", "older_than", "cursor", "limit"];
    let mut query = input::query(&uri, &known)?;
    let letter = query.get("dead").map(|dead| letter(dead)).transpose()?;
    let state = query.get("state").map(|state| state_kind(state)).transpose()?;
    let filter = Filter {
        // Every dead letter is unknown, and stores find the unknown by an index.
        state: state.or_else(|| (letter == Some(Letter::Dead)).then_some(StateKind::Unknown)),
        letter,
        route: query.remove("route"),
        created_before: match query.get("older_than") {
            Some(age) => Some(time_before(engine, input::duration("older_than", age)?).await?),
            None => None,
        },
        scope: query.remove("scope"),
    };
    if let Some(key) = query.get("key") {
        let Some(scope) = &filter.scope else {
            return Err(Problem::Invalid("a key belongs to a scope: give scope with key".to_owned()));
        };
        let found = operation_of_key(engine, scope, key, &filter).await?;
        return Ok(page(found.into_iter().collect(), None));
    }
    let limit = match query.get("limit").map(|limit| limit.parse::<usize>()) {
        None => LIMIT,
        Some(Ok(limit)) if (1..=LIMIT_MAX).contains(&limit) => limit,
        Some(Ok(_) | Err(_)) => {
            return Err(Problem::Invalid(format!("limit in the query must lie between 1 and {LIMIT_MAX}")));
        }
    };
    let after = match query.get("cursor").map(|cursor| URL_SAFE_NO_PAD.decode(cursor)) {
        None => None,
        Some(Ok(cursor)) => Some(Cursor::from_bytes(cursor)),
        Some(Err(_)) => return Err(Problem::Invalid("the cursor is not one of this list's".to_owned())),
    };
    let found = engine.list(Scan { which: Which::Filter(filter), after, limit }).await?;
    let operations = found
        .entries
        .iter()
        .map(|entry| match &entry.record {
            Ok(record) => record_json::operation(engine, entry.id, entry.version, record, Bodies::Hidden),
            Err(why) => record_json::unreadable(entry.id, entry.version, why),
        })
        .collect();
    Ok(page(operations, found.next.as_ref()))
}

fn page(operations: Vec<Value>, next: Option<&Cursor>) -> Response {
    let next_cursor = next.map(|cursor| URL_SAFE_NO_PAD.encode(cursor.as_bytes()));
    response::ok(json!({ "operations": operations, "next_cursor": next_cursor }))
}

/// The operation of one key, if it passes the filter.
async fn operation_of_key(
    engine: &Engine,
    scope: &str,
    key: &str,
    filter: &Filter,
) -> Result<Option<Value>, Problem> {
    let invalid = |why: String| Problem::Invalid(format!("scope and key in the query name nothing: {why}"));
    let key = Key::new(key).map_err(|error| invalid(error.to_string()))?;
    // The text of a scope is shown with its parts escaped and joined.
    let parts: Vec<String> =
        scope.split(',').map(|part| part.replace("%2C", ",").replace("%25", "%")).collect();
    let scope =
        Scope::from_parts(parts.iter().map(String::as_str)).map_err(|error| invalid(error.to_string()))?;
    let id = engine.id_of(&scope, &key);
    let found = engine.load(id).await?.filter(|found| filter.accepts(&found.record));
    Ok(found.map(|found| record_json::operation(engine, id, found.version, &found.record, Bodies::Hidden)))
}

/// The time that lies `age` before now, by the store's clock.
async fn time_before(engine: &Engine, age: std::time::Duration) -> Result<Timestamp, Problem> {
    let scan = Scan {
        which: Which::Filter(Filter { state: Some(StateKind::Unknown), ..Filter::default() }),
        after: None,
        limit: 1,
    };
    let now = engine.list(scan).await?.now;
    let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
    Ok(Timestamp::from_micros(now.as_micros().saturating_sub(age)))
}

fn state_kind(text: &str) -> Result<StateKind, Problem> {
    StateKind::from_name(text).ok_or_else(|| {
        let names = StateKind::ALL.map(StateKind::name);
        Problem::Invalid(format!("state = {:?} is none of {names:?}", shortened(text)))
    })
}

/// `dead=true`: dead letters only. `dead=false`: the rest.
fn letter(text: &str) -> Result<Letter, Problem> {
    match text {
        "true" => Ok(Letter::Dead),
        "false" => Ok(Letter::Live),
        _ => Err(Problem::Invalid(format!("dead = {:?} is neither true nor false", shortened(text)))),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(32).collect()
}
