//! A route's settings, under the names that the configuration file gives them.

use std::time::Duration;

use ::http::Method;

use super::close_delimited::CloseDelimited;
use super::method::has_lower_case;
use crate::claim::{check_attach, check_resume_after, check_route, check_timeout};
use crate::record::{Receipts, Terms};
use crate::{Claim, Fingerprint, Key, OnLapse, Profile, Scope, claim::ClaimError, key::Syntax};

/// How requests on a route are treated. Set what differs from the defaults; [`Routes`](super::Routes) checks the whole.
///
/// ```
/// use std::time::Duration;
/// use onceward::http::{KeyRule, Policy};
/// let payments = Policy::new().key(KeyRule::Required).retention(Duration::from_secs(7 * 86_400));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Whether the route is protected, or only observed.
    pub mode: Mode,
    /// Which methods are protected, where the route's pattern names none. In capital letters.
    pub methods: Vec<Method>,
    /// Whether a request must bring a key.
    pub key: KeyRule,
    /// Which spellings of a key are accepted.
    pub syntax: Syntax,
    /// Shorter keys are refused. 16 is a good floor where callers share a scope.
    pub min_key_length: usize,
    /// Whose statuses and headers refusals and replays have.
    pub flavor: Flavor,
    /// How a retry is answered while the first request is still being executed.
    pub in_progress: InProgress,
    /// How long a caller may wait for another caller's execution: always with [`InProgress::Wait`], else on its request.
    pub wait: Duration,
    /// After this long the outcome counts as unknown. A late outcome of the work is accepted.
    pub timeout: Duration,
    /// After this long the client is answered that the work goes on. Counts only where it is shorter than the timeout.
    pub respond_within: Duration,
    /// How long a tenure lasts without being renewed.
    pub lease: Duration,
    /// What a lapsed lease means.
    pub on_lapse: OnLapse,
    /// Whether the work commits a receipt row in its own database. Then every answer but a 2xx is compared with that row, and the
    /// engine needs a reconciler that reads the rows of this route, such as a [`ReceiptFinder`](crate::receipts::ReceiptFinder).
    pub receipts: Receipts,
    /// How long work that goes on after its timeout is left alone before its outcome is found out. `None` stands for the larger
    /// of timeout and lease.
    pub resume_after: Option<Duration>,
    /// How long a completed answer is promised to be replayed.
    pub retention: Duration,
    /// How much longer than promised it is kept, at most.
    pub grace: Duration,
    /// What happens to keyed requests while the store is away.
    pub store_down: StoreDown,
    /// Statuses that prove that nothing was done, 400 to 599.
    pub retryable: Vec<u16>,
    /// Statuses after which the outcome is unknown.
    pub unknown: Vec<u16>,
    /// Bytes of a keyed request's body. It is held in memory until it is answered.
    pub max_request_body: usize,
    /// Bytes of an answer's body. It is stored, and held in memory until it is.
    pub max_response_body: usize,
    /// Whether an answer that ends with its connection counts as whole. The inner service marks such answers with
    /// [`EndsWithConnection`](super::EndsWithConnection).
    pub close_delimited: CloseDelimited,
    /// What makes two requests the same: the headers that count, and what is left out of JSON bodies.
    pub fingerprint: Profile,
    /// Stored with every reply, so that a new release can recognise an old reply.
    pub response_version: u32,
    /// Whether `Set-Cookie` is stored and replayed.
    pub set_cookie: SetCookie,
}

/// Whether a route is protected, or only observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Mode {
    /// It is protected.
    #[default]
    Enforce,
    /// Every request goes through as it came, and what would have been done with it is counted.
    Observe,
}

/// Whether a request must bring a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum KeyRule {
    /// Without one it is refused.
    Required,
    /// Without one it passes through unprotected.
    #[default]
    Optional,
}

/// Whose statuses and headers refusals and replays have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Flavor {
    /// The IETF draft's.
    #[default]
    Ietf,
    /// Stripe's.
    Stripe,
}

/// How a retry is answered while the first request is still being executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum InProgress {
    /// 409, at once unless the caller asks to wait.
    #[default]
    Conflict,
    /// It waits, and then gets the answer.
    Wait,
    /// 202, with the URL of the key's state.
    Accepted,
}

/// What happens to keyed requests while the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum StoreDown {
    /// 503: nothing is done that could not be remembered.
    #[default]
    Reject,
    /// They go through unprotected, and are marked. Not where a key is required, and never after a claim that may have
    /// been written.
    Pass,
}

/// Whether `Set-Cookie` is stored and replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum SetCookie {
    /// Only the first caller gets it: a stored cookie is a session that outlives its log-out.
    #[default]
    Drop,
    /// Every retry gets it too.
    Allow,
}

/// Why a policy is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A time is out of range.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A method has lower-case letters, so that no request would match it.
    #[error("the method {method:?} has small letters, so it would match no request: write it like \"POST\"")]
    Method {
        /// The method as it was given.
        method: String,
    },
    /// A status is in both lists, in the wrong list, or not valid.
    #[error("the status {status} {rule}")]
    Status {
        /// The status.
        status: u16,
        /// What is wrong with it.
        rule: &'static str,
    },
    /// The least length of a key is out of range.
    #[error("min_key_length = {found} must lie between 1 and {}", Key::MAX_BYTES)]
    MinKeyLength {
        /// The value.
        found: usize,
    },
    /// Waiting would end before another execution could.
    #[error(
        "in_progress = wait with wait = {wait:?} waits for nothing: choose at least a second, or in_progress = conflict"
    )]
    Wait {
        /// The value.
        wait: Duration,
    },
    /// No client could be answered in time.
    #[error("respond_within = 0 would answer nobody: choose at least a second")]
    RespondWithin,
    /// A route that requires a key must not let requests through unprotected.
    #[error("store_down = pass cannot be combined with key = required: choose store_down = reject")]
    PassWhereRequired,
}

impl Policy {
    /// Room for every JSON document that an API exchanges; uploads belong elsewhere.
    pub const MAX_BODY: usize = 1 << 20;
    /// Rejected or throttled before anything was done.
    pub const RETRYABLE: [u16; 3] = [401, 425, 429];
    /// From an intermediary in front of the service, which cannot know what the service did.
    pub const UNKNOWN: [u16; 3] = [502, 503, 504];

    /// With a shorter wait, nearly every retry would still be refused.
    pub const MIN_WAIT: Duration = Duration::from_secs(1);

    /// The defaults.
    pub fn new() -> Self {
        let terms = Terms::default();
        Self {
            mode: Mode::default(),
            methods: vec![Method::POST, Method::PATCH],
            key: KeyRule::default(),
            syntax: Syntax::default(),
            min_key_length: 1,
            flavor: Flavor::default(),
            in_progress: InProgress::default(),
            wait: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
            respond_within: Duration::from_secs(30),
            lease: terms.lease,
            on_lapse: terms.on_lapse,
            receipts: Receipts::None,
            resume_after: None,
            retention: terms.retention,
            grace: terms.grace,
            store_down: StoreDown::default(),
            retryable: Self::RETRYABLE.to_vec(),
            unknown: Self::UNKNOWN.to_vec(),
            max_request_body: Self::MAX_BODY,
            max_response_body: Self::MAX_BODY,
            close_delimited: CloseDelimited::default(),
            fingerprint: Profile::default(),
            response_version: 1,
            set_cookie: SetCookie::default(),
        }
    }

    setters! {
        mode: Mode,
        key: KeyRule,
        syntax: Syntax,
        min_key_length: usize,
        flavor: Flavor,
        in_progress: InProgress,
        wait: Duration,
        timeout: Duration,
        respond_within: Duration,
        lease: Duration,
        on_lapse: OnLapse,
        receipts: Receipts,
        resume_after: Option<Duration>,
        retention: Duration,
        grace: Duration,
        store_down: StoreDown,
        max_request_body: usize,
        max_response_body: usize,
        close_delimited: CloseDelimited,
        fingerprint: Profile,
        response_version: u32,
        set_cookie: SetCookie,
    }

    list_setters! {
        methods: Vec<Method>,
        retryable: Vec<u16>,
        unknown: Vec<u16>,
    }

    pub(super) fn terms(&self) -> Terms {
        Terms { lease: self.lease, on_lapse: self.on_lapse, retention: self.retention, grace: self.grace }
    }

    /// A claim on this policy's terms.
    pub(super) fn claim(
        &self,
        (scope, key): (Scope, Key),
        fingerprint: Fingerprint,
        route: &str,
        attach: Duration,
    ) -> Result<Claim, ClaimError> {
        Claim::new(scope, key, fingerprint)
            .route(route)?
            .terms(self.terms())?
            .attach(attach)?
            .timeout(self.timeout)?
            .resume_after(self.pause_before_find())
            .map(|claim| claim.receipts(self.kept_receipts()))
    }

    /// How long work that goes on after its timeout is left alone.
    pub(super) fn pause_before_find(&self) -> Duration {
        // Together they may be longer than a claim accepts.
        self.resume_after.unwrap_or_else(|| self.timeout.max(self.lease).min(Claim::MAX_LEASE))
    }

    /// Whether the outcome of the work is decided by its receipt row. That of a shadow is not.
    pub(super) const fn kept_receipts(&self) -> Receipts {
        match self.mode {
            Mode::Enforce => self.receipts,
            Mode::Observe => Receipts::None,
        }
    }

    /// Everything that could be refused later is refused when the layer is made.
    pub(super) fn check(&self, route: &str) -> Result<(), PolicyError> {
        check_route(route)?;
        self.terms().check()?;
        check_attach(self.wait)?;
        check_timeout(self.timeout)?;
        check_resume_after(self.pause_before_find())?;
        if !(1..=Key::MAX_BYTES).contains(&self.min_key_length) {
            return Err(PolicyError::MinKeyLength { found: self.min_key_length });
        }
        if self.in_progress == InProgress::Wait && self.wait < Self::MIN_WAIT {
            return Err(PolicyError::Wait { wait: self.wait });
        }
        if self.respond_within.is_zero() {
            return Err(PolicyError::RespondWithin);
        }
        if (self.store_down, self.key) == (StoreDown::Pass, KeyRule::Required) {
            return Err(PolicyError::PassWhereRequired);
        }
        if let Some(method) = self.methods.iter().find(|method| has_lower_case(method.as_str().as_bytes())) {
            return Err(PolicyError::Method { method: method.as_str().chars().take(64).collect() });
        }
        for &status in self.retryable.iter().chain(&self.unknown) {
            if !(200..=599).contains(&status) {
                return Err(PolicyError::Status { status, rule: "is no final status: use 200 to 599" });
            }
            if self.retryable.contains(&status) && status < 400 {
                let rule = "does not prove that nothing was done, so each retry would do it again: retryable takes 400 to 599";
                return Err(PolicyError::Status { status, rule });
            }
            if self.retryable.contains(&status) && self.unknown.contains(&status) {
                let rule = "is both retryable and unknown: it can prove only one";
                return Err(PolicyError::Status { status, rule });
            }
        }
        Ok(())
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::new()
    }
}
