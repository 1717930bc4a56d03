//! Decides from a request's head alone what is to be done with it.

use std::sync::Arc;
use std::time::Duration;

use ::http::header::CONNECTION;
use ::http::{HeaderMap, HeaderName, Method, request};

use super::handled::Disposition;
use super::header::IDEMPOTENCY_KEY;
use super::layer::LayerState;
use super::list_header::members;
use super::percent::percent_decode;
use super::policy::{Flavor, InProgress, KeyRule, Mode, Policy};
use super::problem::{KeyFault, Problem};
use super::routes::Found;
use super::wellknown::{PAGE, STATUS};
use crate::{Key, RecordId, Scope, engine::Observation};

/// What is to be done with a request.
#[derive(Debug)]
pub(super) enum Admission {
    /// It is not protected. Holds its route's name.
    Pass(Arc<str>, Disposition),
    /// It goes to the inner service, and what protection would have done is counted.
    Observe(KeyedRequest),
    /// It asks for the published policy.
    Page,
    /// It asks for the state of one of its caller's keys.
    Status(Scope, Key),
    /// It cannot be protected, and must not go to the inner service.
    Refuse(Problem, Flavor, Arc<str>),
    /// It is protected.
    Protect(KeyedRequest),
}

/// What the head of a request with a key says, and the policy that it is under.
#[derive(Debug)]
pub(super) struct KeyedRequest {
    pub policy: Arc<Policy>,
    pub route: Arc<str>,
    pub scope: Scope,
    pub key: Key,
    /// How long to wait for the execution of another request with this key.
    pub attach: Duration,
}

pub(super) fn admit(layer: &LayerState, request: &request::Parts) -> Admission {
    let (method, path) = (&request.method, request.uri.path());
    if layer.routes.is_miscased(method) {
        return Admission::Refuse(Problem::MethodMiscased, Flavor::Ietf, layer.routes.no_name().clone());
    }
    if matches!(*method, Method::GET | Method::HEAD) && path.starts_with(PAGE) {
        if path == PAGE {
            return Admission::Page;
        }
        if let Some(key) = path.strip_prefix(STATUS) {
            return status(layer, &request.headers, key);
        }
    }
    let Found { route, policy, .. } = layer.routes.find(method, path);
    let Some(policy) = policy else { return Admission::Pass(route.clone(), Disposition::Passed) };
    match (keyed_request(layer, &request.headers, (route, policy)), policy.mode) {
        (Ok(None), _) => Admission::Pass(route.clone(), Disposition::Passed),
        (Ok(Some(keyed)), Mode::Enforce) => Admission::Protect(keyed),
        (Ok(Some(keyed)), Mode::Observe) => Admission::Observe(keyed),
        (Err((problem, what)), mode) => {
            layer.engine.note(route, RecordId::NONE, what);
            match mode {
                Mode::Enforce => Admission::Refuse(problem, policy.flavor, route.clone()),
                Mode::Observe => Admission::Pass(route.clone(), Disposition::Observed),
            }
        }
    }
}

/// The key, scope and waiting time of a request. `None` for a request without a key where none is required.
fn keyed_request(
    layer: &LayerState,
    headers: &HeaderMap,
    (route, policy): (&Arc<str>, &Arc<Policy>),
) -> Result<Option<KeyedRequest>, (Problem, Observation)> {
    let key = match (key_of(headers, policy), policy.key) {
        (Ok(Some(key)), _) => key,
        (Ok(None), KeyRule::Optional) => return Ok(None),
        (Ok(None), KeyRule::Required) => return Err((Problem::KeyMissing, Observation::KeyMissing)),
        (Err(fault), _) => return Err((Problem::KeyInvalid(fault), Observation::KeyInvalid)),
    };
    let scope = scope(layer, headers).map_err(|problem| (problem, Observation::ScopeMissing))?;
    let scope = match policy.mode {
        Mode::Enforce => scope,
        // A domain of its own, which no protected operation uses.
        Mode::Observe => scope.shadow(),
    };
    let attach = attach(policy, headers);
    Ok(Some(KeyedRequest { policy: policy.clone(), route: route.clone(), scope, key, attach }))
}

/// Whose key it is. If only an operator can correct a missing scope, a warning says how. It quotes nothing of the request.
fn scope(layer: &LayerState, headers: &HeaderMap) -> Result<Scope, Problem> {
    layer.scope.scope_of(headers, layer.engine.secret()).map_err(|missing| {
        if let Some(advice) = layer.advice.first_about(&missing) {
            tracing::warn!("a keyed request has no usable scope (logged once): {advice}");
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
        // The request goes through at once, so its shadow has nothing to wait for.
        return Duration::ZERO;
    }
    match (asked, policy.in_progress) {
        (Some(asked), _) => asked.min(policy.wait),
        (None, InProgress::Wait) => policy.wait,
        (None, InProgress::Conflict | InProgress::Accepted) => Duration::ZERO,
    }
}

/// A caller is shown the state of keys in its own scope only. A malformed key was never used, so it is not found.
fn status(layer: &LayerState, headers: &HeaderMap, key: &str) -> Admission {
    let refuse = |problem| Admission::Refuse(problem, Flavor::Ietf, layer.routes.no_name().clone());
    let scope = match scope(layer, headers) {
        Ok(scope) => scope,
        Err(problem) => return refuse(problem),
    };
    let key = String::from_utf8(percent_decode(key).into_owned()).ok().and_then(|key| Key::new(&key).ok());
    key.map_or_else(|| refuse(Problem::KeyNotFound), |key| Admission::Status(scope, key))
}
