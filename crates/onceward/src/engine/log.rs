//! The log lines for operators: one for each incident, in words, with the operation, its cause and what to do next.
//!
//! Messages are constant, so that alerts can match them; `docs/operations.md` lists them. The rest is in fields, which never
//! have keys, scopes or bodies. Texts from outside are quoted, so that they cannot imitate a line of their own.

use std::fmt;
use std::time::Duration;

use super::EngineError;
use super::apply::{Report, Wrote};
use super::observe::FindResult;
use super::reconcile::Plan;
use crate::event::{Answer, Decision, Event, Notice};
use crate::outcome::{Outcome, Unsure};
use crate::record::{Letter, Record, State, StateKind};
use crate::{OperationId, RecordId};

/// The operation that a line is about, as far as it is known.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) operation: OperationId,
    pub(super) record: Option<&'a Record>,
    /// Whether this is a shadow, even if its record is gone or unreadable. Lines about refused retries would be false, because
    /// its request went through.
    pub(super) shadow: bool,
}

impl<'a> About<'a> {
    pub(super) fn new(id: RecordId, record: Option<&'a Record>) -> Self {
        let operation = record.map_or(OperationId::bare(id), |record| record.operation(id));
        Self { operation, record, shadow: record.is_some_and(|record| record.subject.is_shadow()) }
    }

    fn text(&self, read: impl FnOnce(&'a Record) -> &'a str) -> Option<&'a str> {
        self.record.map(read).filter(|text| !text.is_empty())
    }

    fn cause(&self) -> Option<&'a str> {
        self.text(|record| record.last_error.as_deref().unwrap_or_default())
    }

    /// Why the outcome is unknown, in one word.
    fn kind(&self) -> Option<&'static str> {
        let State::Unknown { cause, .. } = self.record?.state else { return None };
        Some(cause.name())
    }

    /// What the last find brought, or why nothing was asked.
    fn finding(&self) -> Option<&'a str> {
        self.text(|record| record.finding.as_ref().map_or("", |finding| &finding.text))
    }
}

/// Logs a line about an operation. Unknown fields are left out.
macro_rules! line {
    ($level:ident, $about:expr, $($rest:tt)*) => {
        tracing::$level!(
            operation = %$about.operation,
            route = $about.text(|record| &record.subject.route),
            method = $about.text(|record| &record.subject.method),
            path = $about.text(|record| &record.subject.path),
            attempt = $about.record.map(|record| record.attempt),
            $($rest)*
        )
    };
}

/// The advice for an unknown outcome that a person must settle.
struct HowToResolve(OperationId);

impl fmt::Display for HowToResolve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "find out what happened, then POST /v1/operations/{}/resolve (in Rust: Engine::resolve)",
            self.0
        )
    }
}

/// What happens to an outcome that has just become unknown.
struct NextFind {
    operation: OperationId,
    plan: Plan,
    /// How long it has been unknown: longer than a moment where an earlier attempt left it in doubt.
    age: Duration,
    /// Until the next find, unless it is made at once.
    due_in: Duration,
}

impl fmt::Display for NextFind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.plan {
            Plan::Find(_) => write!(
                f,
                "nothing: it is asked about within {}, and again until it is known or given up",
                Rounded(self.due_in)
            ),
            Plan::GiveUpAfter(after) => write!(
                f,
                "nothing finds it out by itself: {}; it is a dead letter in {}",
                HowToResolve(self.operation),
                Rounded(after.saturating_sub(self.age))
            ),
            Plan::Leave => f.write_str("nothing by this engine: another one of its namespace finds it out"),
        }
    }
}

/// A time as people say it, rounded up.
struct Rounded(Duration);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs_f64() {
            seconds if seconds <= 120.0 => write!(f, "{} s", seconds.ceil()),
            seconds => write!(f, "{} min", (seconds / 60.0).ceil()),
        }
    }
}

/// What happens to an operation whose outcome is known now.
struct NextClaim<'a>(&'a Record);

impl fmt::Display for NextClaim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.state, &self.0.recovery_point) {
            (State::Completed { .. }, _) => f.write_str("nothing: every retry gets the answer"),
            (State::FailedRetryable { .. }, Some(point)) => {
                write!(f, "nothing: the next retry goes on after {:?}", point.name())
            }
            (State::FailedRetryable { .. }, None) => f.write_str("nothing: the next retry executes"),
            (State::InProgress { .. } | State::Unknown { .. } | State::Expired { .. }, _) => {
                f.write_str("nothing")
            }
        }
    }
}

/// The state that a step changed. A settlement whose first answer was lost changes nothing when it finds its own write, but
/// must be logged as the change that it was.
fn changed_from(step: &Report<'_>) -> Option<Option<StateKind>> {
    match (step.wrote, step.lost, step.event) {
        (Wrote::Record | Wrote::Removal, ..) => Some(step.from),
        (Wrote::Nothing, Some(_), Event::Settle { .. }) => Some(None),
        (Wrote::Nothing, ..) => None,
    }
}

/// Logs a step, in at most one line. `plan` says how an unknown outcome is found out.
pub(super) fn applied(step: &Report<'_>, plan: impl FnOnce(&Record) -> Plan) {
    if step.shadow {
        return;
    }
    let record = step.record.filter(|_| step.wrote != Wrote::Removal);
    let about = About::new(step.id, record);
    let state = about.record.map(|record| &record.state);
    match (step.notice, changed_from(step), state) {
        (Some(Notice::Contradiction), ..) => contradicted(about, step),
        (Some(Notice::DeadLettered), ..) => line!(
            error,
            about,
            kind = about.kind(),
            cause = about.cause(),
            finding = about.finding(),
            next = %HowToResolve(about.operation),
            "an unknown outcome was given up: retries are refused until an operator resolves it"
        ),
        (_, Some(from), Some(State::Unknown { letter: Letter::Live, since, due_at, .. }))
            if from != Some(StateKind::Unknown) =>
        {
            line!(
                warn,
                about,
                kind = about.kind(),
                cause = about.cause(),
                next = about.record.map(|record| tracing::field::display(NextFind {
                    operation: about.operation,
                    plan: plan(record),
                    age: step.now.since(*since),
                    due_in: due_at.since(step.now),
                })),
                "the outcome of an operation is unknown: it may have been executed, and retries are refused until it is resolved"
            );
        }
        (_, Some(Some(StateKind::Unknown)), Some(now)) if !matches!(now, State::Unknown { .. }) => line!(
            info,
            about,
            state = now.name(),
            by = author(step.event),
            reason = reason(step.event),
            cause = about.cause(),
            next = about.record.map(|record| tracing::field::display(NextClaim(record))),
            "an unknown outcome is known now: retries are no longer refused"
        ),
        _ => match step.answer {
            Answer::Fenced => fenced(about, step.event),
            Answer::Decision(Decision::Resume(point)) if step.wrote == Wrote::Record => line!(
                info,
                about,
                point = point.name(),
                cause = about.cause(),
                "an operation goes on after its last recovery point"
            ),
            Answer::Decision(_)
            | Answer::Applied
            | Answer::AlreadySettled(_)
            | Answer::Conflict
            | Answer::Lapsed
            | Answer::Swept
            | Answer::Left => {}
        },
    }
}

fn contradicted(about: About<'_>, step: &Report<'_>) {
    line!(
        error,
        about,
        state = about.record.map(|record| record.state.name()),
        by = author(step.event),
        next = format_args!(
            "compare GET /v1/operations/{}?bodies=true with the records of the service",
            about.operation
        ),
        "a result contradicts what was decided before: the operation may have been executed twice"
    );
}

/// An owner whose tenure is over. Only its outcome is logged; a renewal that comes too late is logged as a lapse.
fn fenced(about: About<'_>, event: &Event<'_>) {
    let Event::Settle { outcome, .. } = event else { return };
    let outcome = match outcome {
        Outcome::Completed(_) => "completed",
        Outcome::Retryable(_) => "retryable",
        Outcome::Voided { .. } | Outcome::Unknown(_) => return,
    };
    line!(
        warn,
        about,
        outcome,
        state = about.record.map(|record| record.state.name()),
        next = format_args!(
            "GET /v1/operations/{} shows what stands, and evidence where there is any",
            about.operation
        ),
        "the outcome of an execution came after its lease had lapsed: the operation's state stays as it is"
    );
}

/// Who or what caused the event, for the field `by`.
fn author<'a>(event: &'a Event<'_>) -> &'a str {
    match event {
        Event::Evidence { by, .. } | Event::Resolve { by, .. } => by,
        Event::Found { by, .. } => by,
        Event::Settle { .. } | Event::Renew { .. } | Event::Checkpoint { .. } => "the execution itself",
        Event::Claim { .. } | Event::Resume { .. } => "evidence that a retry met",
        Event::Find { .. } | Event::GiveUp { .. } => "reconciliation",
        Event::Expire { .. } => "an operator",
        Event::Sweep { .. } => "evidence that the sweeper met",
    }
}

/// Why an outcome is known now, for the field `reason`.
fn reason<'a>(event: &'a Event<'_>) -> Option<&'a str> {
    match event {
        Event::Resolve { reason, .. } => Some(reason),
        Event::Found { finding, .. } => Some(FindResult::of(finding).words()),
        Event::Evidence { .. }
        | Event::Settle { .. }
        | Event::Renew { .. }
        | Event::Checkpoint { .. }
        | Event::Claim { .. }
        | Event::Resume { .. }
        | Event::Find { .. }
        | Event::GiveUp { .. }
        | Event::Expire { .. }
        | Event::Sweep { .. } => None,
    }
}

pub(super) fn replaced(about: About<'_>, by: &str, reason: &str) {
    line!(
        info,
        about,
        state = about.record.map(|record| record.state.name()),
        by,
        reason,
        "a record that could not be read was replaced by an operator's verdict"
    );
}

/// The service was not reached, or the work was not begun.
pub(super) fn not_executed(about: About<'_>, cause: &str) {
    line!(
        warn,
        about,
        cause,
        next = "nothing: a retry with the same key is sent again. If this repeats, check the cause",
        "an operation was not executed: the service took nothing of it"
    );
}

/// The service gave no whole answer, and a find at the end of the execution told what it did.
#[cfg(feature = "http")]
pub(super) fn found_at_end(about: About<'_>, cause: &str, found: FindResult) {
    line!(
        info,
        about,
        found = found.name(),
        cause,
        reason = found.words(),
        next = "nothing: it is settled accordingly",
        "an execution ended without a usable answer, and it was found out at once what it did"
    );
}

/// The service or database of a route does not answer finds.
pub(super) fn cannot_be_asked(route: &str, cause: &str) {
    tracing::error!(
        route,
        cause,
        next = "see to what this route's outcomes are found out by: they stay unknown, and are asked about until it answers",
        "unknown outcomes of a route cannot be found out: the service or the database that knows them cannot be asked"
    );
}

/// The end of [`cannot_be_asked`].
pub(super) fn can_be_asked(route: &str) {
    tracing::info!(route, "unknown outcomes of a route can be found out again");
}

/// The outcome is not stored yet.
pub(super) fn not_stored(about: About<'_>, error: &EngineError) {
    line!(
        error,
        about,
        cause = error.to_string(),
        next = "see to the store: until the outcome is stored, retries are refused",
        "the outcome of an operation could not be stored in time: its caller is told that it is unknown, and storing it goes on"
    );
}

/// The outcome will not be stored.
pub(super) fn never_stored(about: About<'_>, outcome: &Outcome, error: &EngineError) {
    let (outcome, why) = match outcome {
        Outcome::Completed(_) => ("completed", None),
        Outcome::Retryable(why) | Outcome::Voided { why, .. } => ("retryable", Some(why.as_str())),
        Outcome::Unknown(Unsure { why, .. }) => ("unknown", Some(why.as_str())),
    };
    line!(
        error,
        about,
        outcome,
        why,
        cause = error.to_string(),
        next = %HowToResolve(about.operation),
        "the outcome of an operation was given up, because it could not be stored: it is unknown when its lease has lapsed"
    );
}

/// The outcome was stored after [`not_stored`].
pub(super) fn stored_late(about: About<'_>) {
    let state = about.record.map(|record| record.state.name());
    line!(info, about, state, "the outcome of an operation is stored now: retries are answered again");
}

pub(super) fn not_renewed(about: About<'_>, error: &EngineError) {
    line!(
        warn,
        about,
        cause = error.to_string(),
        next = "see to the store: if the lease lapses before it answers, the outcome is unknown until the work ends",
        "the lease of a running operation could not be renewed: it is tried again"
    );
}

pub(super) fn dropped(about: About<'_>) {
    line!(
        warn,
        about,
        next = "settle every reservation, or hand it over: see Reservation",
        "a reservation was dropped without being settled: its outcome is unknown when its lease has lapsed"
    );
}

/// A record is damaged, or of a newer version.
pub(super) fn unreadable(about: About<'_>, cause: &dyn fmt::Display) {
    if about.shadow {
        return;
    }
    line!(
        error,
        about,
        cause = cause.to_string(),
        next = %HowToResolve(about.operation),
        "the record of an operation cannot be read: requests under its key are refused until it is resolved"
    );
}

pub(super) fn refused(about: About<'_>, cause: &dyn fmt::Display) {
    line!(error, about, cause = cause.to_string(), "the store refused to write an operation's record");
}
