//! Format 1, which versions before format 2 read and write.
//!
//! It has no fields for causes, doubt and windows. What must survive of them is encoded in the text of the last
//! error, which older versions show and do not change; the rest is read back as its safest value.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Unreadable, whole};
use crate::outcome::{Evidence, RecoveryPoint, Reply, Verdict};
use crate::record::{
    Cause, Doubt, Fence, LAPSED, Letter, Naming, Record, RecordFormat, State, Subject, Terms,
};
use crate::{Fingerprint, Timestamp, entropy::OwnerToken, fingerprint::ProfileId};

/// The prefix of the last error where the work was done and its answer could not be kept. Versions without causes used it
/// too.
const DONE_NOT_KEPT: &str = "the work was done, but ";

/// The fields in their order. Text is borrowed where a record is written, and owned where it is read.
#[derive(Serialize, Deserialize)]
pub(super) struct Fields<'a> {
    subject: SubjectFields<'a>,
    fingerprint: FingerprintFields,
    terms: Terms,
    created_at: Timestamp,
    opened: Fence,
    origin: Fence,
    fence: Fence,
    owner: OwnerToken,
    attempt: u32,
    recovery_point: Option<RecoveryPoint>,
    evidence: Option<Evidence>,
    verdict: Option<Verdict>,
    last_error: Option<Cow<'a, str>>,
    state: StateFields,
}

#[derive(Serialize, Deserialize)]
struct SubjectFields<'a> {
    scope: Cow<'a, str>,
    key: Cow<'a, str>,
    route: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
struct FingerprintFields {
    profile: ProfileId,
    digest: [u8; 32],
}

#[derive(Serialize, Deserialize)]
enum StateFields {
    InProgress { lease_until: Timestamp },
    Completed { reply: Arc<Reply>, settled_at: Timestamp, expires_at: Timestamp },
    FailedRetryable { settled_at: Timestamp, expires_at: Timestamp },
    Unknown { since: Timestamp, due_at: Timestamp, probes: u32, letter: Letter },
    Expired { status: Option<u16>, expires_at: Timestamp },
}

/// The fields of a record as format 1 has them.
pub(super) fn written(record: &Record) -> Fields<'_> {
    Fields {
        subject: SubjectFields {
            scope: Cow::Borrowed(&record.subject.scope),
            key: Cow::Borrowed(&record.subject.key),
            route: Cow::Borrowed(&record.subject.route),
        },
        fingerprint: FingerprintFields {
            profile: record.fingerprint.profile(),
            digest: *record.fingerprint.digest(),
        },
        terms: record.terms.clone(),
        created_at: record.created_at,
        opened: record.opened,
        origin: record.origin,
        fence: record.fence,
        owner: record.owner,
        attempt: record.attempt,
        recovery_point: record.recovery_point.clone(),
        evidence: record.evidence.clone(),
        verdict: record.verdict.clone(),
        last_error: last_error(record),
        state: match record.state.clone() {
            State::InProgress { lease_until } => StateFields::InProgress { lease_until },
            State::Completed { reply, settled_at, expires_at } => {
                StateFields::Completed { reply, settled_at, expires_at }
            }
            State::FailedRetryable { settled_at, expires_at } => {
                StateFields::FailedRetryable { settled_at, expires_at }
            }
            State::Unknown { since, due_at, probes, letter, .. } => {
                StateFields::Unknown { since, due_at, probes, letter }
            }
            State::Expired { status, expires_at } => StateFields::Expired { status, expires_at },
        },
    }
}

/// The text of the last error, which encodes what has no field.
fn last_error(record: &Record) -> Option<Cow<'_, str>> {
    let words = record.last_error.as_deref();
    match &record.state {
        State::Unknown { cause: Cause::DoneNotKept, .. } => Some(done_not_kept(words)),
        State::InProgress { .. } | State::FailedRetryable { .. } => match record.doubt {
            Some(Doubt { cause: Cause::DoneNotKept, .. }) => Some(done_not_kept(words)),
            Some(Doubt { cause: Cause::Lost | Cause::Said, .. }) => Some(Cow::Borrowed(LAPSED)),
            None => words.map(Cow::Borrowed),
        },
        State::Unknown { .. } | State::Completed { .. } | State::Expired { .. } => words.map(Cow::Borrowed),
    }
}

fn done_not_kept(words: Option<&str>) -> Cow<'_, str> {
    let words = words.unwrap_or_default();
    match words.starts_with(DONE_NOT_KEPT) {
        true => Cow::Borrowed(words),
        false => Cow::Owned(format!("{DONE_NOT_KEPT}{words}")),
    }
}

pub(super) fn read(fields: &[u8]) -> Result<Record, Unreadable> {
    let fields: Fields<'_> = whole(fields)?;
    let SubjectFields { scope, key, route } = fields.subject;
    let subject = Subject {
        scope: scope.into_owned(),
        key: key.into_owned(),
        route: route.into_owned(),
        ..Subject::default()
    };
    let FingerprintFields { profile, digest } = fields.fingerprint;
    let last_error = fields.last_error.map(Cow::into_owned);
    let cause = match last_error.as_deref() {
        Some(words) if words.starts_with(DONE_NOT_KEPT) => Cause::DoneNotKept,
        Some(LAPSED) | None => Cause::Lost,
        // `Lost` may be resumed, so it is not assumed: there may have been an answer.
        Some(_) => Cause::Said,
    };
    let doubt = doubt_cause(&fields.state, fields.attempt, last_error.as_deref(), &subject)
        .map(|cause| Doubt { since: fields.created_at, cause });
    let state = match fields.state {
        StateFields::InProgress { lease_until } => State::InProgress { lease_until },
        StateFields::Completed { reply, settled_at, expires_at } => {
            State::Completed { reply, settled_at, expires_at }
        }
        StateFields::FailedRetryable { settled_at, expires_at } => {
            State::FailedRetryable { settled_at, expires_at }
        }
        StateFields::Unknown { since, due_at, probes, letter } => {
            State::Unknown { since, due_at, probes, letter, cause }
        }
        StateFields::Expired { status, expires_at } => State::Expired { status, expires_at },
    };
    let fingerprint = Fingerprint::new(profile, digest);
    let record = Record::new(subject, fingerprint, fields.terms, fields.owner, fields.created_at);
    Ok(Record {
        format: RecordFormat::One,
        naming: Naming::Bare,
        opened: fields.opened,
        origin: fields.origin,
        fence: fields.fence,
        attempt: fields.attempt,
        recovery_point: fields.recovery_point,
        evidence: fields.evidence,
        verdict: fields.verdict,
        last_error,
        doubt,
        state,
        ..record
    })
}

/// Why an earlier tenure may have done the work, if it may.
///
/// A second tenure follows a lapsed lease, unless the text is that of a release. Older versions keep that text when a later
/// lease lapses, so it proves nothing about a third tenure; and an unknown outcome overwrites it. In both cases doubt is
/// assumed.
fn doubt_cause(
    state: &StateFields,
    attempt: u32,
    last_error: Option<&str>,
    subject: &Subject,
) -> Option<Cause> {
    let done = last_error.is_some_and(|words| words.starts_with(DONE_NOT_KEPT));
    let lapsed = last_error.is_none_or(|words| words == LAPSED);
    match state {
        StateFields::InProgress { .. } | StateFields::FailedRetryable { .. } if done => {
            Some(Cause::DoneNotKept)
        }
        // A shadow whose outcome would be unknown. Only the machine releases one, and never with this text.
        StateFields::FailedRetryable { .. } if subject.is_shadow() && last_error == Some(LAPSED) => {
            Some(Cause::Lost)
        }
        StateFields::InProgress { .. } if attempt > 2 || (attempt == 2 && lapsed) => Some(Cause::Lost),
        StateFields::Unknown { .. } if attempt > 1 => Some(Cause::Lost),
        StateFields::InProgress { .. }
        | StateFields::Unknown { .. }
        | StateFields::Completed { .. }
        | StateFields::FailedRetryable { .. }
        | StateFields::Expired { .. } => None,
    }
}
