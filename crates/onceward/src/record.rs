//! What is remembered about one operation. Records outlive the code that wrote them: a change here is a change of the
//! stored format, and `codec.rs` has the test that says so.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::claim::Claim;
use crate::event::{Moment, Refusal, Resolution};
use crate::outcome::{Evidence, RecoveryPoint, Reply, Verdict};
use crate::scope::SHADOW;
use crate::{Fingerprint, OwnerToken, ProfileId, Timestamp};

/// Names one tenure of execution. Every write of an owner must present it.
///
/// It is the store's time in microseconds when the tenure began, and always above the fence before it. So it rises
/// within a record, and does not come back when a key is claimed anew after its record was swept: by then time has moved
/// on by the whole retention. It fits the 53 bits that every JSON reader keeps exactly, until the year 2255.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence(u64);

impl Fence {
    /// A fence that was written down elsewhere.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The number to write down.
    pub const fn as_number(self) -> u64 {
        self.0
    }

    pub(crate) fn next(previous: Option<Self>, now: Timestamp) -> Self {
        let above = previous.map_or(1, |fence| fence.0.saturating_add(1));
        Self(above.max(now.as_micros()))
    }
}

/// One operation, as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Whose operation this is, for people to read.
    pub subject: Subject,
    /// What was asked for.
    pub fingerprint: Fingerprint,
    /// How the operation is to be treated, fixed when it was claimed.
    pub terms: Terms,
    /// When the present execution was claimed.
    pub created_at: Timestamp,
    /// The fence of the Execute that opened this window; one after a release leaves it. What comes from before it speaks
    /// of another operation.
    pub opened: Fence,
    /// The fence of the Execute that began this execution; Resume leaves it.
    pub origin: Fence,
    /// The fence of the present tenure.
    pub fence: Fence,
    /// Who holds, or last held, the tenure.
    pub owner: OwnerToken,
    /// Tenures of this execution: 1 after Execute, one more with each Resume.
    pub attempt: u32,
    /// The last phase that is known to have been committed.
    pub recovery_point: Option<RecoveryPoint>,
    /// A completed result that came when it could not be applied.
    pub evidence: Option<Evidence>,
    /// Who decided an unknown outcome, and why.
    pub verdict: Option<Verdict>,
    /// What went wrong last, in words without keys or bodies.
    pub last_error: Option<String>,
    /// Where it stands.
    pub state: State,
}

/// Where an operation stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Someone executes, as long as the lease lives.
    InProgress {
        /// When the lease lapses.
        lease_until: Timestamp,
    },
    /// It happened, and this is the answer.
    Completed {
        /// What every retry gets.
        reply: Arc<Reply>,
        /// When it was settled.
        settled_at: Timestamp,
        /// When the key may name a new operation.
        expires_at: Timestamp,
    },
    /// It was proven not to have happened: the next claim executes.
    FailedRetryable {
        /// When it was settled.
        settled_at: Timestamp,
        /// When the record may be swept.
        expires_at: Timestamp,
    },
    /// Nobody can be sure. Never expires, never re-executes by itself.
    Unknown {
        /// Since when.
        since: Timestamp,
        /// When reconciliation should look next.
        due_at: Timestamp,
        /// How often a probe was inconclusive.
        probes: u32,
        /// Whether only an operator, a late owner or a webhook can settle it.
        letter: Letter,
    },
    /// Its window is over; kept for audit without its body.
    Expired {
        /// The status of the dropped reply, if it had one.
        status: Option<u16>,
        /// When the window ended.
        expires_at: Timestamp,
    },
}

impl State {
    /// The state's name wherever a person or a program can see it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::InProgress { .. } => "in_progress",
            Self::Completed { .. } => "completed",
            Self::FailedRetryable { .. } => "failed_retryable",
            Self::Unknown { .. } => "unknown",
            Self::Expired { .. } => "expired",
        }
    }
}

/// Whether an unknown outcome is still being asked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Letter {
    /// Reconciliation goes on.
    Live,
    /// Asking was given up: it waits among the dead letters.
    Dead,
}

/// Whose operation a record is, for people who ask for it; its debug form names the route alone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The scope's text.
    pub scope: String,
    /// The key, or its id where keys are kept secret.
    pub key: String,
    /// The route or the kind of work, for metrics and lists.
    pub route: String,
}

impl Subject {
    /// Whether this is no operation but the shadow of one, on a route that only observes: nobody has to find out about it.
    pub fn is_shadow(&self) -> bool {
        self.scope.starts_with(SHADOW)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("route", &self.route).finish_non_exhaustive()
    }
}

/// How one operation is to be treated. Stored with it, so that a changed configuration changes new operations only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// How long a tenure lasts without being renewed.
    pub lease: Duration,
    /// What a lapsed lease means.
    pub on_lapse: OnLapse,
    /// How long a completed answer is promised to be replayed.
    pub retention: Duration,
    /// How much longer it is kept than promised, at most; at least half of it.
    pub grace: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(60),
            on_lapse: OnLapse::Unknown,
            retention: Duration::from_secs(24 * 60 * 60),
            grace: Duration::from_secs(60 * 60),
        }
    }
}

/// What a lapsed lease means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnLapse {
    /// The outcome is unknown.
    Unknown,
    /// Where there is a recovery point, the work goes on from there.
    Resume {
        /// Tenures altogether; the next lapse is a dead letter.
        attempts: u32,
        /// How long after the lapse somebody may still take over.
        within: Duration,
    },
}

/// A retry sooner than this would only meet the same refusal.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
/// Most executions end within seconds, so a client is not told to wait for the whole lease.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// That a failure was retryable soon stops mattering: a key that comes later is executed all the same.
const RETRYABLE_RETENTION_MAX: Duration = Duration::from_secs(60 * 60);
/// Error texts are for lists and logs; what is longer is cut.
const ERROR_BYTES_MAX: usize = 512;

/// How each state is entered. Only the machine decides when.
impl Record {
    pub(crate) fn claimed(
        previous: Option<&Self>,
        at: Moment,
        claim: &Claim,
        owner: OwnerToken,
        label: &str,
    ) -> Self {
        let fence = Fence::next(previous.map(|record| record.fence), at.now);
        let opened = previous.filter(|record| !record.is_spent(at)).map_or(fence, |record| record.opened);
        Self {
            subject: Subject {
                scope: claim.scope.as_str().to_owned(),
                key: label.to_owned(),
                route: claim.route.clone().into_owned(),
            },
            fingerprint: claim.fingerprint,
            terms: claim.terms.clone(),
            created_at: at.now,
            opened,
            origin: fence,
            fence,
            owner,
            attempt: 1,
            recovery_point: None,
            evidence: None,
            verdict: None,
            last_error: None,
            state: State::InProgress { lease_until: at.now.after(claim.terms.lease) },
        }
    }

    /// A verdict in place of a record that cannot be read.
    pub(crate) fn replaced(at: Moment, verdict: &Resolution, by: &str, reason: &str) -> Self {
        let fence = Fence::next(None, at.now);
        let mut record = Self {
            subject: Subject { scope: String::new(), key: String::new(), route: "unreadable".to_owned() },
            fingerprint: Fingerprint::new(ProfileId::NONE, [0; 32]),
            terms: Terms::default(),
            created_at: at.now,
            opened: fence,
            origin: fence,
            fence,
            owner: OwnerToken::named(by),
            attempt: 1,
            recovery_point: None,
            evidence: None,
            verdict: None,
            last_error: None,
            state: State::Unknown { since: at.now, due_at: at.now, probes: 0, letter: Letter::Dead },
        };
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
        self.last_error = Some(cut(error));
    }

    pub(crate) fn lose(&mut self, at: Moment, letter: Letter, error: &str) {
        self.state = State::Unknown { since: self.told(at), due_at: at.now, probes: 0, letter };
        self.last_error = Some(cut(error));
    }

    pub(crate) fn testify(&mut self, at: Moment, fence: Fence, reply: &Arc<Reply>) {
        self.evidence = Some(Evidence { fence, reply: reply.clone(), at: self.told(at) });
    }

    pub(crate) fn judge(&mut self, at: Moment, by: &str, reason: &str) {
        self.verdict = Some(Verdict { by: cut(by), reason: cut(reason), at: self.told(at) });
    }

    /// When something happened, as it is told: never before the claim. The store's time is estimated between its answers,
    /// and the estimate of a claim may be some milliseconds ahead of the next one.
    fn told(&self, at: Moment) -> Timestamp {
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

    /// Whether the window is over, so that the key names a new operation. Work that runs, and outcomes that nobody
    /// knows, are never over.
    pub(crate) fn is_spent(&self, at: Moment) -> bool {
        match &self.state {
            State::Completed { expires_at, .. } => *expires_at <= at.expiry_now,
            // What is known to have been done is remembered as an answer would be.
            State::FailedRetryable { expires_at, .. } => {
                let known = self.evidence.as_ref().map(|evidence| evidence.at.after(self.terms.retention));
                known.map_or(*expires_at, |until| until.max(*expires_at)) <= at.expiry_now
            }
            State::Expired { .. } => true,
            State::InProgress { .. } | State::Unknown { .. } => false,
        }
    }

    /// Whether somebody's lease lives. One that ends later than any claim could have asked for was taken while the store's
    /// clock was ahead: nobody holds it, and an unknown outcome is safe.
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

    /// Evidence about this very execution, from whichever of its tenures.
    pub(crate) fn own_evidence(&self) -> Option<Arc<Reply>> {
        self.evidence
            .as_ref()
            .filter(|evidence| evidence.fence >= self.origin)
            .map(|evidence| evidence.reply.clone())
    }

    /// What a claim is told that finds this record neither spent nor answered.
    pub(crate) fn refusal(&self, at: Moment) -> Refusal {
        let hint = |until: Timestamp| until.since(at.now).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
        match &self.state {
            State::Unknown { due_at, letter, .. } => {
                Refusal::Unknown { retry_after: hint(*due_at), letter: *letter }
            }
            State::InProgress { lease_until } => Refusal::InProgress { retry_after: hint(*lease_until) },
            State::Completed { .. } | State::FailedRetryable { .. } | State::Expired { .. } => {
                Refusal::InProgress { retry_after: RETRY_AFTER_MIN }
            }
        }
    }

    /// Until when the answer is promised, which is earlier than when it goes.
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

fn cut(text: &str) -> String {
    let mut end = text.len().min(ERROR_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
