//! Questions about a record that the machine and the engine decide by.

use std::sync::Arc;
use std::time::Duration;

use super::{Absence, Cause, Entered, Extension, Fence, Letter, RELEASING_ABSENCES, Record, State};
use crate::claim::Claim;
use crate::event::{Moment, Refusal};
use crate::fingerprint::Comparison;
use crate::outcome::Reply;
use crate::{Timestamp, entropy::OwnerToken};

/// A retry sooner than this would only meet the same refusal.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
/// Most executions end within seconds, so a client need not wait for the whole lease.
const IN_PROGRESS_RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// What has been unknown for long is seldom found out in the next minute. But once it is, clients should notice within one.
const UNKNOWN_RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Clients of an unknown outcome come back after this part of its age, so that each waits a little longer than before.
const UNKNOWN_AGE_DIVISOR: u32 = 2;
/// The second absence must be seen at least this part of `absent_after` later than the first.
const ABSENCES_APART_DIVISOR: u32 = 2;

impl Record {
    /// Whether a claim asks for what this record is about.
    ///
    /// A fingerprint of format 1, or one built by hand, has no target. If the contents are incomparable too, a claim on
    /// another route is another request: the settings that make contents incomparable belong to routes.
    pub(crate) fn compare(&self, claim: &Claim) -> Comparison {
        let comparison = self.fingerprint.compare(&claim.fingerprint);
        let elsewhere = self.lacks_target(claim) && self.subject.route != *claim.route;
        if comparison == Comparison::Incomparable && elsewhere { Comparison::Different } else { comparison }
    }

    /// Whether an incomparable claim may have another target: one of the two has no target to compare, and the route has other
    /// requests as well. The record's answer could be another request's.
    pub(crate) fn may_be_of_another_target(&self, claim: &Claim) -> bool {
        self.lacks_target(claim) && !claim.is_named_by(&self.subject.route)
    }

    fn lacks_target(&self, claim: &Claim) -> bool {
        self.fingerprint.lacks_target() || claim.fingerprint.lacks_target()
    }

    /// Whether the window is over, so that the key names a new operation. Running work and
    /// unknown outcomes never end a window.
    pub(crate) fn is_spent(&self, at: Moment) -> bool {
        match &self.state {
            State::Completed { expires_at, .. } => *expires_at <= at.expiry_now,
            // Work that was, or may have been, done is kept as long as an answer.
            State::FailedRetryable { settled_at, expires_at } => {
                let known = self.evidence.as_ref().map(|evidence| evidence.at);
                let known = known.or(self.doubt.map(|doubt| doubt.since));
                let known = known.or(self.has_last_find_to_come().then_some(*settled_at));
                known
                    .map(|at| at.after(self.terms.retention))
                    .map_or(*expires_at, |until| until.max(*expires_at))
                    <= at.expiry_now
            }
            State::Expired { .. } => true,
            State::InProgress { .. } | State::Unknown { .. } => false,
        }
    }

    /// Whether this owner's tenure is in progress, or has lapsed and the record has not changed since.
    pub(crate) fn is_owned_by(&self, owner: OwnerToken) -> bool {
        self.owner == owner && matches!(self.state, State::InProgress { .. })
    }

    /// Whether the lease lives. One that ends later than any claim could have asked for was taken while the store's clock
    /// was ahead: its end means nothing, and an unknown outcome is safe.
    pub(crate) fn is_held(&self, at: Moment) -> bool {
        match &self.state {
            State::InProgress { lease_until } => {
                *lease_until > at.now && *lease_until <= at.now.after(self.terms.lease.saturating_mul(2))
            }
            State::Completed { .. }
            | State::FailedRetryable { .. }
            | State::Unknown { .. }
            | State::Expired { .. } => false,
        }
    }

    /// Whether another tenure may continue the work: not while an outside call is open that must not be repeated, nor after
    /// an earlier tenure did the work.
    pub(crate) fn may_be_continued(&self, at: Moment) -> bool {
        let done = self.doubt.is_some_and(|doubt| doubt.cause == Cause::DoneNotKept);
        let open = |call: &Entered| call.dedup_until.is_none_or(|until| until <= at.now);
        !done && !self.entered.iter().any(open)
    }

    /// Whether an owner reported that the work was done, without an answer that could be kept.
    pub(crate) fn knows_it_was_done(&self) -> bool {
        let doubted = self.doubt.is_some_and(|doubt| doubt.cause == Cause::DoneNotKept);
        doubted || matches!(self.state, State::Unknown { cause: Cause::DoneNotKept, .. })
    }

    /// From when on an absence counts. `None`: when the outcome became unknown is not on record.
    pub(crate) fn absence_counts_from(&self, after: Duration) -> Option<Timestamp> {
        let seen = self.absence.filter(|absence| absence.fence == self.fence)?;
        Some(seen.first_at.after(if seen.count == 0 { after } else { after / ABSENCES_APART_DIVISOR }))
    }

    /// Whether it was released because there was no trace of it, and is to be looked for once more.
    pub(crate) fn has_last_find_to_come(&self) -> bool {
        let released = |absence: Absence| absence.count >= RELEASING_ABSENCES && absence.fence == self.fence;
        matches!(self.state, State::FailedRetryable { .. }) && self.absence.is_some_and(released)
    }

    /// Whether an owner with this fence can have committed nothing since it was voided.
    pub(crate) fn is_voided(&self, fence: Fence) -> bool {
        self.voided.is_some_and(|voided| fence < voided)
    }

    /// Evidence about this execution, from any of its tenures.
    pub(crate) fn own_evidence(&self) -> Option<Arc<Reply>> {
        self.evidence
            .as_ref()
            .filter(|evidence| evidence.fence >= self.origin)
            .map(|evidence| evidence.reply.clone())
    }

    /// The refusal of a claim that meets this record while it has no answer.
    pub(crate) fn refusal(&self, at: Moment) -> Refusal {
        match &self.state {
            State::Unknown { since, letter, .. } => {
                let part = at.now.since(*since) / UNKNOWN_AGE_DIVISOR;
                let retry_after = part.clamp(RETRY_AFTER_MIN, UNKNOWN_RETRY_AFTER_MAX);
                Refusal::Unknown { retry_after, letter: *letter }
            }
            State::InProgress { lease_until } => {
                let left = lease_until.since(at.now);
                Refusal::InProgress { retry_after: left.clamp(RETRY_AFTER_MIN, IN_PROGRESS_RETRY_AFTER_MAX) }
            }
            State::FailedRetryable { .. } if self.doubt.is_some() => {
                Refusal::Unknown { retry_after: RETRY_AFTER_MIN, letter: Letter::Live }
            }
            State::Completed { .. } | State::FailedRetryable { .. } | State::Expired { .. } => {
                Refusal::InProgress { retry_after: RETRY_AFTER_MIN }
            }
        }
    }

    /// Whether the record has nothing that a cache would drop.
    pub(crate) fn is_answer_only(&self) -> bool {
        self.recovery_point.is_none()
            && self.entered.is_empty()
            && self.evidence.is_none()
            && self.verdict.is_none()
            && self.finding.is_none()
            && self.history.is_empty()
            && self.extensions.iter().all(Extension::is_known)
    }

    /// The record as a cache keeps it, which only replays. The store keeps the rest.
    pub(crate) fn answer_only(&self) -> Self {
        Self {
            recovery_point: None,
            entered: Vec::new(),
            evidence: None,
            verdict: None,
            finding: None,
            history: Vec::new(),
            extensions: Vec::new(),
            ..self.clone()
        }
    }

    /// The record without the bytes of its answer.
    pub(crate) fn without_reply(&self) -> Self {
        let mut record = self.answer_only();
        record.extensions.clone_from(&self.extensions);
        if let State::Completed { reply, .. } = &mut record.state {
            *reply = Arc::new(Reply::new("").with_status(reply.status));
        }
        record
    }

    /// Until when the answer is promised; it is kept somewhat longer.
    pub fn published_expiry(&self) -> Option<Timestamp> {
        match &self.state {
            State::Completed { settled_at, expires_at, .. } => {
                Some(settled_at.after(self.terms.retention).min(*expires_at))
            }
            State::InProgress { .. }
            | State::FailedRetryable { .. }
            | State::Unknown { .. }
            | State::Expired { .. } => None,
        }
    }
}
