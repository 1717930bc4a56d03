//! How each state is entered. Only the machine decides when.

use std::sync::Arc;
use std::time::Duration;

use super::{Cause, Doubt, Fence, Letter, Naming, Record, RecordFormat, State, Subject, Terms, cut};
use crate::claim::Claim;
use crate::event::{Moment, Resolution};
use crate::outcome::{Evidence, Reply, Unsure, Verdict};
use crate::{Fingerprint, Timestamp, entropy::OwnerToken, fingerprint::ProfileId};

/// That a failure was retryable soon stops mattering: a key that comes later is executed all the same.
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
    ) -> Self {
        let fresh = Self::new(claim.subject(label), claim.fingerprint, claim.terms.clone(), owner, at.now);
        let fence = Fence::next(previous.map(|record| record.fence), at.now);
        let naming = match format {
            RecordFormat::One => Naming::Bare,
            RecordFormat::Two => Naming::Windowed,
        };
        let window = previous.filter(|record| !record.is_spent(at));
        Self {
            // What a window was dispatched under, and forbids, it keeps: others may still speak of it.
            format: window.map_or(format, |record| record.format.max(format)),
            opened: window.map_or(fence, |record| record.opened),
            naming: window.map_or(naming, |record| record.naming),
            voided: window.and_then(|record| record.voided),
            history: window.map_or(Vec::new(), |record| record.history.clone()),
            extensions: window.map_or(Vec::new(), |record| record.extensions.clone()),
            origin: fence,
            fence,
            ..fresh
        }
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
        // Nobody can tell any more under which id it was dispatched.
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
        let (settled_at, kept) = (self.told(at), self.terms.retention.saturating_add(self.jittered_grace()));
        self.state =
            State::Completed { reply: reply.clone(), settled_at, expires_at: settled_at.after(kept) };
        self.doubt = None;
        // What another tenure claims to have done is not answered by this one: it stays for the operator.
        self.evidence.take_if(|evidence| evidence.fence == self.fence || evidence.reply == *reply);
    }

    pub(crate) fn release(&mut self, at: Moment, error: &str) {
        // A phase that was committed must be remembered for as long as an answer would be: else it were done again.
        let kept = match self.recovery_point {
            Some(_) => self.terms.retention.saturating_add(self.jittered_grace()),
            None => self.terms.retention.min(RETRYABLE_RETENTION_MAX),
        };
        let settled_at = self.told(at);
        self.state = State::FailedRetryable { settled_at, expires_at: settled_at.after(kept) };
        self.doubt = None;
        // A release says that the outside call did not happen either.
        self.entered.clear();
        self.last_error = Some(error_text(error));
    }

    /// Nobody can be sure of the outcome, and where there was doubt before, not since now but since then.
    pub(crate) fn lose(&mut self, at: Moment, letter: Letter, unsure: &Unsure) {
        let since = self.doubt.map_or(self.told(at), |doubt| doubt.since);
        // That the work was done is not outweighed by a later attempt of which nothing is known.
        let cause = match self.doubt {
            Some(Doubt { cause: Cause::DoneNotKept, .. }) => Cause::DoneNotKept,
            Some(_) | None => unsure.cause,
        };
        self.last_error = Some(error_text(&unsure.why));
        if self.subject.is_shadow() {
            return self.lose_shadow(since, cause);
        }
        self.state = State::Unknown { since, due_at: at.now, probes: 0, letter, cause };
    }

    /// A shadow's request went through whatever is known of it, so nothing waits for its outcome and no operator can find it
    /// out. That it would be unknown is remembered, as doubt, for as long as an answer would be.
    pub(crate) fn lose_shadow(&mut self, since: Timestamp, cause: Cause) {
        let kept = self.terms.retention.saturating_add(self.jittered_grace());
        self.doubt = Some(Doubt { since, cause });
        self.state = State::FailedRetryable { settled_at: since, expires_at: since.after(kept) };
    }

    /// This tenure did nothing, and an earlier one still may have: as unknown as before.
    pub(crate) fn lose_again(&mut self, at: Moment, doubt: Doubt, error: &str) {
        let why = format!("an earlier attempt may have been executed; the last one was not: {error}");
        self.lose(at, Letter::Live, &Unsure { cause: doubt.cause, why });
    }

    /// An earlier tenure did the work, and its answer could not be kept.
    pub(crate) fn doubt_done(&mut self, at: Moment) {
        let since = self.doubt.map_or(self.told(at), |doubt| doubt.since);
        self.doubt = Some(Doubt { since, cause: Cause::DoneNotKept });
    }

    pub(crate) fn testify(&mut self, at: Moment, fence: Fence, reply: &Arc<Reply>) {
        self.evidence = Some(Evidence { fence, reply: reply.clone(), at: self.told(at) });
    }

    pub(crate) fn judge(&mut self, at: Moment, by: &str, reason: &str) {
        self.verdict = Some(Verdict { by: error_text(by), reason: error_text(reason), at: self.told(at) });
    }

    /// When something happened, never before the claim. The store's time is estimated between its answers, and the
    /// estimate of a claim may be some milliseconds ahead of the next one.
    pub(crate) fn told(&self, at: Moment) -> Timestamp {
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
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *self.owner.as_bytes();
        let seed = self.fence.as_number() ^ u64::from(u32::from_le_bytes([a, b, c, d])) << 32;
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
        let half = self.terms.grace / 2;
        half + half.mul_f64(mixed as f64 / (1_u64 << 20) as f64)
    }
}

fn error_text(text: &str) -> String {
    cut(text, ERROR_BYTES_MAX).to_owned()
}
