//! Records as JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onceward::codec::Unreadable;
use onceward::reconcile::Plan;
use onceward::store::{Stamped, Version};
use onceward::{
    Engine, OnLapse, Record, RecordId, Timestamp,
    record::{Letter, State},
};
use serde_json::{Map, Value, json};

use super::reply_json::{Bodies, bytes_json, reply_json};

/// The last second that RFC 3339 can write, at the end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A time as RFC 3339 has it, in UTC, to the microsecond.
pub(super) fn time(at: Timestamp) -> Value {
    rfc3339(at, humantime::format_rfc3339_micros).into()
}

fn rfc3339(at: Timestamp, format: fn(SystemTime) -> humantime::Rfc3339Timestamp) -> String {
    let last = Duration::from_secs(LAST_SECOND);
    let since = Duration::from_micros(at.as_micros()).min(last);
    format(UNIX_EPOCH + since).to_string()
}

/// A version as its digits. Those of PostgreSQL are above 2⁵³, where many JSON readers round.
pub(super) fn version_text(version: Version) -> Value {
    version.as_number().to_string().into()
}

/// One operation, without its timeline.
pub(super) fn operation(
    engine: &Engine,
    id: RecordId,
    version: Version,
    record: &Record,
    bodies: Bodies,
) -> Value {
    let mut shown_record = json!({
        "id": id.to_string(),
        "operation": record.operation(id).to_string(),
        "version": version_text(version),
        "state": record.state.name(),
        "scope": record.subject.scope,
        "key": record.subject.key,
        "route": record.subject.route,
        "created_at": time(record.created_at),
        "fence": record.fence.as_number(),
        "attempt": record.attempt,
        "recovery_point": record.recovery_point.as_ref().map_or("started", |point| point.name()),
        "terms": {
            "lease": humantime::format_duration(record.terms.lease).to_string(),
            "on_lapse": match record.terms.on_lapse {
                OnLapse::Unknown => "unknown",
                OnLapse::Resume { .. } => "resume",
            },
            "retention": humantime::format_duration(record.terms.retention).to_string(),
            "grace": humantime::format_duration(record.terms.grace).to_string(),
        },
    });
    let Value::Object(fields) = &mut shown_record else { return shown_record };
    if let (Some(point), Bodies::Shown) = (&record.recovery_point, bodies) {
        fields.insert("data".to_owned(), bytes_json(point.data()));
    }
    if let Some(evidence) = &record.evidence {
        let reply = reply_json(&evidence.reply, bodies);
        let json = json!({ "fence": evidence.fence.as_number(), "at": time(evidence.at), "reply": reply });
        fields.insert("evidence".to_owned(), json);
    }
    if let Some(verdict) = verdict(record) {
        fields.insert("verdict".to_owned(), verdict);
    }
    if !record.subject.method.is_empty() {
        fields.insert("method".to_owned(), record.subject.method.as_str().into());
        fields.insert("path".to_owned(), record.subject.path.as_str().into());
    }
    if let Some(doubt) = &record.doubt {
        let json = json!({ "since": time(doubt.since), "cause": doubt.cause.name() });
        fields.insert("doubt".to_owned(), json);
    }
    if let Some(error) = &record.last_error {
        fields.insert("last_error".to_owned(), error.as_str().into());
    }
    if let Some(finding) = &record.finding {
        let json = json!({ "at": time(finding.at), "text": finding.text });
        fields.insert("last_finding".to_owned(), json);
    }
    add_state(fields, &record.state, bodies);
    if let Some(next) = next(id, record, || engine.plan(record)) {
        fields.insert("next".to_owned(), next.into());
    }
    shown_record
}

/// What happens to an unknown outcome next, or what a person must do.
fn next(id: RecordId, record: &Record, plan: impl FnOnce() -> Plan) -> Option<String> {
    let State::Unknown { since, due_at, letter, .. } = record.state else { return None };
    let resolve = || {
        let operation = record.operation(id);
        format!("find out what happened, then POST /v1/operations/{operation}/resolve")
    };
    let at = |time| rfc3339(time, humantime::format_rfc3339_seconds);
    let plan = match letter {
        Letter::Dead => return Some(format!("it waits for a person: {}", resolve())),
        Letter::Live => plan(),
    };
    Some(match plan {
        Plan::Find(_) => {
            format!("it is asked about again by itself, at {} or soon after", at(due_at))
        }
        Plan::GiveUpAfter(after) => format!(
            "nothing finds it out by itself: {}; from {} on it is a dead letter",
            resolve(),
            at(since.after(after))
        ),
        Plan::Leave | _ => "another gateway of its namespace finds it out".to_owned(),
    })
}

fn add_state(fields: &mut Map<String, Value>, state: &State, bodies: Bodies) {
    let more = match state {
        State::InProgress { lease_until } => json!({ "lease_until": time(*lease_until) }),
        State::Completed { reply, settled_at, expires_at } => json!({
            "reply": reply_json(reply, bodies),
            "settled_at": time(*settled_at),
            "expires_at": time(*expires_at),
        }),
        State::FailedRetryable { settled_at, expires_at } => {
            json!({ "settled_at": time(*settled_at), "expires_at": time(*expires_at) })
        }
        State::Unknown { since, due_at, probes, letter, cause } => json!({
            "unknown_since": time(*since),
            "cause": cause.name(),
            "due_at": time(*due_at),
            "probes": probes,
            "dead_lettered": match letter {
                Letter::Live => false,
                Letter::Dead => true,
            },
        }),
        State::Expired { status, expires_at } => json!({ "status": status, "expires_at": time(*expires_at) }),
    };
    if let Value::Object(more) = more {
        fields.extend(more);
    }
}

/// A record that cannot be read still has a place in a list.
pub(super) fn unreadable(id: RecordId, version: Version, why: &Unreadable) -> Value {
    json!({ "id": id.to_string(), "version": version_text(version), "unreadable": why.to_string() })
}

/// The state, version and verdict that a conflicting change met.
pub(super) fn conflicting(found: &Stamped) -> Value {
    let mut json = json!({ "state": found.record.state.name(), "version": version_text(found.version) });
    if let Some(verdict) = verdict(&found.record) {
        json["verdict"] = verdict;
    }
    json
}

fn verdict(record: &Record) -> Option<Value> {
    let verdict = record.verdict.as_ref()?;
    Some(json!({ "by": verdict.by, "reason": verdict.reason, "at": time(verdict.at) }))
}

/// The events that the record itself remembers, in order.
pub(super) fn timeline(record: &Record) -> Value {
    let mut events =
        vec![(record.created_at, json!({ "event": "claimed", "fence": record.origin.as_number() }))];
    if let Some(evidence) = &record.evidence {
        events.push((evidence.at, json!({ "event": "evidence", "fence": evidence.fence.as_number() })));
    }
    if let Some(verdict) = &record.verdict {
        let json = json!({ "event": "resolved", "by": verdict.by, "reason": verdict.reason });
        events.push((verdict.at, json));
    }
    match &record.state {
        State::InProgress { .. } => {}
        State::Completed { settled_at, .. } => events.push((*settled_at, json!({ "event": "completed" }))),
        State::FailedRetryable { settled_at, .. } => {
            events.push((*settled_at, json!({ "event": "failed_retryable" })));
        }
        State::Unknown { since, .. } => events.push((*since, json!({ "event": "unknown" }))),
        State::Expired { expires_at, .. } => events.push((*expires_at, json!({ "event": "expired" }))),
    }
    events.sort_by_key(|(at, _)| *at);
    events
        .into_iter()
        .map(|(at, mut event)| {
            event["at"] = time(at);
            event
        })
        .collect()
}
