//! How each state is entered. Only the machine decides when.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Absence, Cause, Doubt, Fence, LastFinding, Letter, Naming, RELEASING_ABSENCES, Record, RecordFormat,
    State, Subject, Terms, cut,
};
use crate::claim::Claim;
use crate::event::{Moment, Resolution};
use crate::id::NamespaceHash;
use crate::outcome::{Evidence, RecoveryPoint, Reply, Unsure, Verdict};
use crate::{Fingerprint, Timestamp, entropy::OwnerToken, fingerprint::ProfileId};

/// Short, because a key is executed whether its retryable failure is still recorded or not.
const RETRYABLE_RETENTION_MAX: Duration = Duration::from_secs(60 * 60);
/// Error texts are for lists and logs; what is longer is cut.
const ERROR_BYTES_MAX: usize = 512;

impl Record {
    /// A record in its first tenure, without anything that happens later.
    pub fn new(
        subject: Subject,
        fingerprint: Fingerprint,
        terms: Terms,
        owner: OwnerToken,
        at: Timestamp,
    ) -> Self {
        let fence = Fence::next(None, at);
        Self {
            format: RecordFormat::newest(),
            subject: Arc::new(subject),
            fingerprint,
            created_at: at,
            opened: fence,
            naming: Naming::Windowed,
            origin: fence,
            fence,
            owner,
            attempt: 1,
            recovery_point: None,
            entered: Vec::new(),
            evidence: None,
            verdict: None,
            last_error: None,
            doubt: None,
            voided: None,
            closed_at: None,
            absence: None,
            finding: None,
            history: Vec::new(),
            state: State::InProgress { lease_until: at.after(terms.lease) },
            terms,
            extensions: Vec::new(),
        }
    }

    /// A claim's record: in a new window, or in that of a record which is not spent.
    pub(crate) fn claimed(
        previous: Option<&Self>,
        at: Moment,
        claim: &Claim,
        owner: OwnerToken,
        label: &str,
        format: RecordFormat,
        namespace: NamespaceHash,
    ) -> Self {
        let fresh = Self::new(claim.subject(label), claim.fingerprint, claim.terms.clone(), owner, at.now);
        let fence = Fence::next(previous.map(|record| record.fence), at.now);
        let naming = match format {
            RecordFormat::One => Naming::Bare,
            RecordFormat::Two => Naming::Windowed,
        };
        let window = previous.filter(|record| !record.is_spent(at));
        let mut claimed = Self {
            // A window keeps its id and its void: evidence and late owners may still refer to it.
            format: window.map_or(format, |record| record.format.max(format)),
            opened: window.map_or(fence, |record| record.opened),
            naming: window.map_or(naming, |record| record.naming),
            voided: window.and_then(|record| record.voided),
            history: window.map_or(Vec::new(), |record| record.history.clone()),
            extensions: window.map_or(Vec::new(), |record| record.extensions.clone()),
            origin: fence,
            fence,
            ..fresh
        };
        claimed.note_claim(namespace, claim.receipts);
        claimed
    }

    /// A verdict in place of a record that cannot be read.
    pub(crate) fn replaced(
        at: Moment,
        verdict: &Resolution,
        by: &str,
        reason: &str,
        format: RecordFormat,
    ) -> Self {
        let subject = Subject { route: "unreadable".to_owned(), ..Subject::default() };
        let unseen = Fingerprint::new(ProfileId::NONE, [0; 32]);
        let mut record = Self::new(subject, unseen, Terms::default(), OwnerToken::named(by), at.now);
        record.format = format;
        // The id under which it was dispatched is not known any more.
        record.naming = Naming::Bare;
        match verdict {
            Resolution::Completed(reply) => record.complete(at, reply),
            Resolution::Retryable => record.release(at, reason),
        }
        record.judge(at, by, reason);
        record
    }

    pub(crate) fn extend_lease(&mut self, at: Moment) {
        self.state = State::InProgress { lease_until: at.now.after(self.terms.lease) };
    }

    pub(crate) fn complete(&mut self, at: Moment, reply: &Arc<Reply>) {
        let (settled_at, kept) =
            (self.time_of_event(at), self.terms.retention.saturating_add(self.jittered_grace()));
        self.state =
            State::Completed { reply: reply.clone(), settled_at, expires_at: settled_at.after(kept) };
        self.doubt = None;
        self.absence = None;
        // Another tenure's result that differs from this reply stays for the operator.
        self.evidence.take_if(|evidence| evidence.fence == self.fence || evidence.reply == *reply);
    }

    pub(crate) fn release(&mut self, at: Moment, error: &str) {
        // A committed phase is kept as long as an answer, so that it is not done again.
        let kept = match (&self.recovery_point, self.voided) {
            // So is a void, because an owner below it may still report.
            (Some(_), _) | (_, Some(_)) => self.terms.retention.saturating_add(self.jittered_grace()),
            (None, None) => self.terms.retention.min(RETRYABLE_RETENTION_MAX),
        };
        let settled_at = self.time_of_event(at);
        self.state = State::FailedRetryable { settled_at, expires_at: settled_at.after(kept) };
        self.doubt = None;
        // A release also means that no outside call happened.
        self.entered.clear();
        self.last_error = Some(error_text(error));
    }

    /// The outcome becomes unknown: since the earlier doubt if there is one, else since now.
    pub(crate) fn lose(&mut self, at: Moment, letter: Letter, unsure: &Unsure) {
        let since = self.doubt.map_or(self.time_of_event(at), |doubt| doubt.since);
        // A later attempt with an unknown outcome does not cancel the knowledge that the work was done.
        let cause = match self.doubt {
            Some(Doubt { cause: Cause::DoneNotKept, .. }) => Cause::DoneNotKept,
            Some(_) | None => unsure.cause,
        };
        self.last_error = Some(error_text(&unsure.why));
        if self.subject.is_shadow() {
            return self.lose_shadow(since, cause);
        }
        let due_at = at.now.after(unsure.find_after);
        self.state = State::Unknown { since, due_at, probes: 0, letter, cause };
        // From now on, and not from an earlier attempt, an absence is timed.
        self.absence = Some(Absence { count: 0, first_at: self.time_of_event(at), fence: self.fence });
    }

    /// The outcome stays unknown, whatever a find brings.
    pub(crate) fn lose_for_good(&mut self, at: Moment, unsure: &Unsure) {
        let State::Unknown { since, due_at, probes, .. } = self.state else { return };
        self.last_error = Some(error_text(&unsure.why));
        self.note_finding(at, &unsure.why);
        self.state = State::Unknown { since, due_at, probes, letter: Letter::Dead, cause: unsure.cause };
    }

    /// The next find is due then.
    pub(crate) fn find_again(&mut self, then: Timestamp) {
        let has_last_find_to_come = self.has_last_find_to_come();
        match &mut self.state {
            State::Unknown { due_at, .. } => *due_at = then,
            State::FailedRetryable { expires_at, .. } if has_last_find_to_come => *expires_at = then,
            State::FailedRetryable { .. }
            | State::InProgress { .. }
            | State::Completed { .. }
            | State::Expired { .. } => {}
        }
    }

    /// It was released because there was no trace of it, and is looked for once more. Until then stores list it by the time of that
    /// find, and it is kept as long as an answer.
    pub(crate) fn plan_last_find(&mut self, at: Moment, after: Duration) {
        let now = self.time_of_event(at);
        if let State::FailedRetryable { expires_at, .. } = &mut self.state {
            *expires_at = now.after(after);
            self.absence = Some(Absence { count: RELEASING_ABSENCES, first_at: now, fence: self.fence });
        }
    }

    /// It was looked for once more, and there is still no trace of it.
    pub(crate) fn end_last_find(&mut self) {
        let kept = self.terms.retention.saturating_add(self.jittered_grace());
        if let State::FailedRetryable { settled_at, expires_at } = &mut self.state {
            *expires_at = settled_at.after(kept);
            self.absence = None;
        }
    }

    pub(crate) fn note_finding(&mut self, at: Moment, text: &str) {
        self.finding = Some(LastFinding { at: self.time_of_event(at), text: error_text(text) });
    }

    /// No owner below this fence can commit any more. The work goes on after the phase that was committed, if there is one.
    pub(crate) fn void(&mut self, fence: Fence, point: Option<RecoveryPoint>) {
        self.fence = fence;
        self.voided = Some(fence);
        self.recovery_point = point;
        self.closed_at = None;
    }

    /// A shadow's request was passed on regardless, so nothing waits for its outcome and no operator can resolve it. The
    /// unknown outcome is kept as doubt, for as long as an answer would be.
    pub(crate) fn lose_shadow(&mut self, since: Timestamp, cause: Cause) {
        let kept = self.terms.retention.saturating_add(self.jittered_grace());
        self.doubt = Some(Doubt { since, cause });
        self.state = State::FailedRetryable { settled_at: since, expires_at: since.after(kept) };
    }

    /// This tenure did nothing, but an earlier one may have: the outcome stays unknown.
    pub(crate) fn lose_again(&mut self, at: Moment, doubt: Doubt, error: &str) {
        let why = format!("an earlier attempt may have been executed; the last one was not: {error}");
        self.lose(at, Letter::Live, &Unsure::new(doubt.cause, why));
    }

    /// An earlier tenure did the work, and its answer could not be kept.
    pub(crate) fn doubt_done(&mut self, at: Moment) {
        let since = self.doubt.map_or(self.time_of_event(at), |doubt| doubt.since);
        self.doubt = Some(Doubt { since, cause: Cause::DoneNotKept });
    }

    pub(crate) fn testify(&mut self, at: Moment, fence: Fence, reply: &Arc<Reply>) {
        self.evidence = Some(Evidence { fence, reply: reply.clone(), at: self.time_of_event(at) });
    }

    pub(crate) fn judge(&mut self, at: Moment, by: &str, reason: &str) {
        self.verdict =
            Some(Verdict { by: error_text(by), reason: error_text(reason), at: self.time_of_event(at) });
    }

    /// The time to record for an event, never before the claim. The store's time is estimated between its answers, so a
    /// claim's estimate may be some milliseconds ahead of the next one.
    pub(crate) fn time_of_event(&self, at: Moment) -> Timestamp {
        at.now.max(self.created_at)
    }

    pub(crate) fn empty(&mut self) {
        let (status, expires_at) = match &self.state {
            State::Completed { reply, expires_at, .. } => (Some(reply.status), *expires_at),
            State::FailedRetryable { expires_at, .. } => (None, *expires_at),
            State::Expired { status, expires_at } => (*status, *expires_at),
            State::InProgress { .. } | State::Unknown { .. } => return,
        };
        self.state = State::Expired { status, expires_at };
        self.evidence = None;
        self.recovery_point = None;
    }

    /// Between half of the grace and all of it, spread by fence and owner, so that what was written in one burst does
    /// not expire in one.
    fn jittered_grace(&self) -> Duration {
        self.jittered(self.terms.grace)
    }

    /// Between half of this time and all of it, the same each time for one tenure.
    pub(crate) fn jittered(&self, time: Duration) -> Duration {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *self.owner.as_bytes();
        let seed = self.fence.as_number() ^ u64::from(u32::from_le_bytes([a, b, c, d])) << 32;
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
        let half = time / 2;
        half + half.mul_f64(mixed as f64 / (1_u64 << 20) as f64)
    }
}

fn error_text(text: &str) -> String {
    cut(text, ERROR_BYTES_MAX).to_owned()
}
