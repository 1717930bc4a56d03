//! What is to be done with a request, decided from its head alone.

use std::sync::Arc;
use std::time::Duration;

use ::http::header::CONNECTION;
use ::http::{HeaderMap, HeaderName, Method, request};

use super::handled::How;
use super::header::IDEMPOTENCY_KEY;
use super::layer::Shared;
use super::policy::{Flavor, InProgress, KeyRule, Mode, Policy};
use super::problem::{KeyFault, Problem};
use super::routes::Found;
use super::text::{members, percent_decode};
use super::wellknown::{PAGE, STATUS};
use crate::{Key, RecordId, Scope, engine::Observation};

/// What is to be done with a request.
#[derive(Debug)]
pub(super) enum Admission {
    /// It is not protected. The name is that of its route.
    Pass(Arc<str>, How),
    /// It goes through, and what would have been done with it is counted.
    Observe(Ticket),
    /// It asks for the published policy.
    Page,
    /// It asks after a key of its own.
    Status(Scope, Key),
    /// It cannot be protected, and must not go through.
    Refuse(Problem, Flavor, Arc<str>),
    /// It is protected.
    Protect(Ticket),
}

/// What protecting a request needs to know.
#[derive(Debug)]
pub(super) struct Ticket {
    pub policy: Arc<Policy>,
    pub route: Arc<str>,
    pub scope: Scope,
    pub key: Key,
    /// How long to wait for somebody else's execution.
    pub attach: Duration,
}

pub(super) fn admit(shared: &Shared, request: &request::Parts) -> Admission {
    let (method, path) = (&request.method, request.uri.path());
    if shared.routes.is_miscased(method) {
        return Admission::Refuse(Problem::MethodMiscased, Flavor::Ietf, shared.routes.no_name().clone());
    }
    if matches!(*method, Method::GET | Method::HEAD) && path.starts_with(PAGE) {
        if path == PAGE {
            return Admission::Page;
        }
        if let Some(key) = path.strip_prefix(STATUS) {
            return status(shared, &request.headers, key);
        }
    }
    let Found { route, policy, .. } = shared.routes.find(method, path);
    let Some(policy) = policy else { return Admission::Pass(route.clone(), How::Passed) };
    match (ticket(shared, &request.headers, (route, policy)), policy.mode) {
        (Ok(None), _) => Admission::Pass(route.clone(), How::Passed),
        (Ok(Some(ticket)), Mode::Enforce) => Admission::Protect(ticket),
        (Ok(Some(ticket)), Mode::Observe) => Admission::Observe(ticket),
        (Err((problem, what)), mode) => {
            shared.engine.note(route, RecordId::NONE, what);
            match mode {
                Mode::Enforce => Admission::Refuse(problem, policy.flavor, route.clone()),
                Mode::Observe => Admission::Pass(route.clone(), How::Observed),
            }
        }
    }
}

/// Nothing for a request without a key where none is required.
fn ticket(
    shared: &Shared,
    headers: &HeaderMap,
    (route, policy): (&Arc<str>, &Arc<Policy>),
) -> Result<Option<Ticket>, (Problem, Observation)> {
    let key = match (key_of(headers, policy), policy.key) {
        (Ok(Some(key)), _) => key,
        (Ok(None), KeyRule::Optional) => return Ok(None),
        (Ok(None), KeyRule::Required) => return Err((Problem::KeyMissing, Observation::KeyMissing)),
        (Err(fault), _) => return Err((Problem::KeyInvalid(fault), Observation::KeyInvalid)),
    };
    let scope = scope(shared, headers).map_err(|problem| (problem, Observation::ScopeMissing))?;
    let scope = match policy.mode {
        Mode::Enforce => scope,
        // Where no protected operation can meet it.
        Mode::Observe => scope.shadow(),
    };
    let attach = attach(policy, headers);
    Ok(Some(Ticket { policy: policy.clone(), route: route.clone(), scope, key, attach }))
}

/// Whose key it is. Where only the operator can help, the log says how; nothing of the request is in it.
fn scope(shared: &Shared, headers: &HeaderMap) -> Result<Scope, Problem> {
    shared.scope.scope_of(headers, shared.engine.secret()).map_err(|missing| {
        if let Some(advice) = shared.advice.first_about(&missing) {
            tracing::warn!("a keyed request has no usable scope (this is said once): {advice}");
        }
        Problem::ScopeMissing(missing)
    })
}

fn key_of(headers: &HeaderMap, policy: &Policy) -> Result<Option<Key>, KeyFault> {
    if members(headers, &CONNECTION).any(|name| name.eq_ignore_ascii_case(IDEMPOTENCY_KEY.as_str())) {
        return Err(KeyFault::HopByHop);
    }
    let lines = headers.get_all(IDEMPOTENCY_KEY);
    let lines = lines.iter().map(|line| line.as_bytes());
    Ok(Key::from_header_lines(lines, policy.syntax, policy.min_key_length)?)
}

/// A caller may ask to wait, but not for longer than the route allows.
fn attach(policy: &Policy, headers: &HeaderMap) -> Duration {
    const PREFER: HeaderName = HeaderName::from_static("prefer");
    let asked = members(headers, &PREFER).find_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        let seconds = value.trim().trim_matches('"').parse::<u64>().ok()?;
        name.trim().eq_ignore_ascii_case("wait").then(|| Duration::from_secs(seconds))
    });
    if policy.mode == Mode::Observe {
        // Nobody waits for a shadow.
        return Duration::ZERO;
    }
    match (asked, policy.in_progress) {
        (Some(asked), _) => asked.min(policy.wait),
        (None, InProgress::Wait) => policy.wait,
        (None, InProgress::Conflict | InProgress::Accepted) => Duration::ZERO,
    }
}

/// Whoever asks after a key shows whose it is, as with every other request. What is no key was never used.
fn status(shared: &Shared, headers: &HeaderMap, key: &str) -> Admission {
    let refuse = |problem| Admission::Refuse(problem, Flavor::Ietf, shared.routes.no_name().clone());
    let scope = match scope(shared, headers) {
        Ok(scope) => scope,
        Err(problem) => return refuse(problem),
    };
    let key = String::from_utf8(percent_decode(key).into_owned()).ok().and_then(|key| Key::new(&key).ok());
    key.map_or_else(|| refuse(Problem::KeyNotFound), |key| Admission::Status(scope, key))
}
