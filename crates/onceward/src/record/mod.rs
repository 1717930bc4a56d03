//! What is remembered about one operation. Records outlive the code that wrote them: a change here is a change of the
//! stored format, and `codec/` has the tests that say so.

mod extensions;
mod parts;
mod queries;
mod transitions;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::extensions::Receipts;
pub use self::parts::{
    Absence, Cause, Doubt, Entered, Extension, HistoryEntry, Label, LastFinding, Letter, Naming, OnLapse,
    RecordFormat, State, StateKind, Terms,
};
use crate::outcome::{Evidence, RecoveryPoint, Verdict};
use crate::scope::SHADOW;
use crate::{Fingerprint, OperationId, RecordId, Timestamp, entropy::OwnerToken};

/// The error of an operation whose lease lapsed. Records of format 1 encode doubt as this text, so it never changes.
pub(crate) const LAPSED: &str = "the lease lapsed";

/// So many controlled absences release an operation.
pub(crate) const RELEASING_ABSENCES: u32 = 2;

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

    /// The next higher fence: what a void raises the receipt row to.
    #[must_use]
    pub const fn above(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    pub(crate) fn next(previous: Option<Self>, now: Timestamp) -> Self {
        let above = previous.map_or(1, |fence| fence.0.saturating_add(1));
        Self(above.max(now.as_micros()))
    }
}

/// One operation, as the store keeps it. The order of the fields is the layout of format 2.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The format that it is written in. A record never goes back to an older one.
    #[serde(skip, default = "RecordFormat::newest")]
    pub format: RecordFormat,
    /// Whose operation this is, for people to read. Shared, because every step of the machine copies the record.
    pub subject: Arc<Subject>,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// How the operation is to be treated, fixed when it was claimed.
    pub terms: Terms,
    /// When the present execution was claimed.
    pub created_at: Timestamp,
    /// The fence of the Execute that opened this window; an Execute after a release leaves it. It is a part of the
    /// operation's id, so that a later window under the same key is another operation.
    pub opened: Fence,
    /// Under which form of its id the operation was dispatched, for the whole window.
    pub naming: Naming,
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
    /// Outside calls that were begun and are not known to be done.
    pub entered: Vec<Entered>,
    /// A completed result that came when it could not be applied.
    pub evidence: Option<Evidence>,
    /// Who decided an unknown outcome, and why.
    pub verdict: Option<Verdict>,
    /// What went wrong last, in words without keys or bodies.
    pub last_error: Option<String>,
    /// An earlier tenure of this execution may have done the work.
    pub doubt: Option<Doubt>,
    /// Below this fence nothing is accepted any more: the old owner can no longer commit.
    pub voided: Option<Fence>,
    /// When the gateway closed its connection to the service that executed the last tenure.
    pub closed_at: Option<Timestamp>,
    /// How often, and since when, finds have reported that the work was not done.
    pub absence: Option<Absence>,
    /// The result of the last find.
    pub finding: Option<LastFinding>,
    /// What happened to the operation, oldest first.
    pub history: Vec<HistoryEntry>,
    /// Its state.
    pub state: State,
    /// What newer versions keep in a record, written back unchanged.
    pub extensions: Vec<Extension>,
}

impl Record {
    /// The operation's public id: with its window, unless it was dispatched without one.
    pub fn operation(&self, id: RecordId) -> OperationId {
        match self.naming {
            Naming::Bare => OperationId::bare(id),
            Naming::Windowed => OperationId::windowed(id, self.opened),
        }
    }

    /// Whether an operation's id means this window. One without a window matches any.
    pub fn is_named_by(&self, operation: OperationId) -> bool {
        operation.opened().is_none_or(|opened| opened == self.opened)
    }
}

/// Describes an operation to people: whose it is, and for which request. Its debug form shows the route only.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Subject {
    /// The scope's text.
    pub scope: String,
    /// The key, or its id where keys are kept secret.
    pub key: String,
    /// The route or the kind of work, for metrics and lists.
    pub route: String,
    /// The request's method; empty where the work is not an HTTP request, and in records of format 1.
    pub method: String,
    /// The request's path without its query, cut to [`Subject::MAX_PATH_BYTES`]; empty where the method is.
    pub path: String,
    /// What the configuration takes out of the request for operators.
    pub labels: Vec<Label>,
}

impl Subject {
    /// Enough to recognise a request by; the fingerprint has all of it.
    pub const MAX_PATH_BYTES: usize = 255;

    /// Whether this is the shadow of an operation, on a route that only observes. A shadow is never `unknown`: its unknown
    /// outcome is kept as `failed_retryable` in doubt, which expires.
    pub fn is_shadow(&self) -> bool {
        self.scope.starts_with(SHADOW)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("route", &self.route).finish_non_exhaustive()
    }
}

/// The longest prefix of whole characters within this many bytes.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
