//! Claims: what callers ask an engine to do once.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

pub use crate::entropy::OwnerToken;
use crate::record::{OnLapse, Receipts, Subject, Terms, cut};
use crate::{Fingerprint, Key, Scope};

/// A request to do a piece of work once: a key in a scope, with a fingerprint of the work.
///
/// ```
/// use onceward::{Claim, Fingerprint, Key, Scope};
/// let claim = Claim::new(Scope::new("acme")?, Key::new("evt_1")?, Fingerprint::of_bytes(b"{\"paid\":true}"))
///     .route("webhook.paid")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Claim {
    pub(crate) scope: Scope,
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) route: Cow<'static, str>,
    pub(crate) request: Option<ShownRequest>,
    pub(crate) terms: Terms,
    pub(crate) receipts: Receipts,
    pub(crate) owner: Option<OwnerToken>,
    pub(crate) timing: Timing,
}

/// The request that a claim is made for.
#[derive(Clone, Copy)]
pub struct RequestLine<'a> {
    /// Its method.
    pub method: &'a str,
    /// Its path, without the query.
    pub path: &'a str,
}

/// The request that a claim was made for, as operators see it.
#[derive(Clone)]
pub(crate) struct ShownRequest {
    method: String,
    path: String,
}

impl fmt::Debug for RequestLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLine").field("method", &self.method).finish_non_exhaustive()
    }
}

impl fmt::Debug for ShownRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A path can name a person or a customer: operators see it, but a debug form can end up in any log.
        f.debug_struct("ShownRequest").field("method", &self.method).finish_non_exhaustive()
    }
}

/// How long this claim's own execution and its caller may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    /// How long to wait for another execution of the same key.
    pub attach: Duration,
    /// How long until the outcome of this execution counts as unknown.
    pub timeout: Duration,
    /// How long a find waits after that timeout, because the work may still go on.
    pub resume_after: Duration,
}

/// Why a claim's settings are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The route is empty or too long.
    #[error("the route {route:?} must have 1 to {} bytes", Claim::MAX_ROUTE_BYTES)]
    Route {
        /// The route's beginning.
        route: String,
    },
    /// A time is out of range.
    #[error("{setting} = {value:?} must lie between {least:?} and {most:?}")]
    Duration {
        /// The name of the setting.
        setting: &'static str,
        /// Its value.
        value: Duration,
        /// The least accepted value.
        least: Duration,
        /// The greatest accepted value.
        most: Duration,
    },
    /// With fewer than two attempts, work would never be resumed.
    #[error(
        "on_lapse = resume with {attempts} attempts never resumes: allow at least 2, or choose on_lapse = unknown"
    )]
    Attempts {
        /// The number of attempts.
        attempts: u32,
    },
}

impl Claim {
    /// The longest route. It is a label in metrics and lists, so it is short.
    pub const MAX_ROUTE_BYTES: usize = 255;
    /// Longer than any registered method. A longer method is cut where it is shown.
    const MAX_METHOD_BYTES: usize = 32;
    /// Below this a lease would lapse while a busy store still commits.
    pub const MIN_LEASE: Duration = Duration::from_millis(100);
    /// Beyond this a dead worker would block its key for longer than any client waits; longer work renews.
    pub const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
    /// Below this every outcome would be unknown.
    pub const MIN_TIMEOUT: Duration = Duration::from_millis(1);
    /// A shorter window would end before a retry.
    pub const MIN_RETENTION: Duration = Duration::from_secs(1);
    /// Ten years: longer than any dispute, short enough that times never overflow.
    pub const MAX_RETENTION: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

    /// Asks for work to be done once under this key, on the default [`Terms`].
    pub fn new(scope: Scope, key: Key, fingerprint: Fingerprint) -> Self {
        let terms = Terms::default();
        let timing =
            Timing { attach: Duration::ZERO, timeout: Duration::from_secs(30), resume_after: terms.lease };
        Self {
            scope,
            key,
            fingerprint,
            route: Cow::Borrowed("default"),
            request: None,
            terms,
            receipts: Receipts::None,
            owner: None,
            timing,
        }
    }

    /// The fingerprint of the work.
    pub const fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Whether the route's name is this request's method and path, so that no other request has this route. Always true for
    /// work that is not an HTTP request, because nothing but its route names it.
    pub(crate) fn is_named_by(&self, route: &str) -> bool {
        self.request.as_ref().is_none_or(|request| {
            route.strip_prefix(request.method.as_str()).and_then(|rest| rest.strip_prefix(' '))
                == Some(&request.path)
        })
    }

    /// Notes the method and the path of the request, for operators. What makes two requests the same is the fingerprint.
    pub fn request_line(mut self, line: RequestLine<'_>) -> Self {
        let method = cut(line.method, Self::MAX_METHOD_BYTES).to_owned();
        self.request =
            Some(ShownRequest { method, path: cut(line.path, Subject::MAX_PATH_BYTES).to_owned() });
        self
    }

    /// The part of the record that describes this claim to people. `label` stands for the key.
    pub(crate) fn subject(&self, label: &str) -> Subject {
        let ShownRequest { method, path } =
            self.request.clone().unwrap_or(ShownRequest { method: String::new(), path: String::new() });
        Subject {
            scope: self.scope.as_str().to_owned(),
            key: label.to_owned(),
            route: self.route.clone().into_owned(),
            method,
            path,
            labels: Vec::new(),
        }
    }

    /// Names the kind of work, for metrics and lists. It is a label: what makes two requests the same is the fingerprint.
    pub fn route(mut self, route: &str) -> Result<Self, ClaimError> {
        check_route(route)?;
        self.route = Cow::Owned(route.to_owned());
        Ok(self)
    }

    /// Sets how the operation is to be treated.
    pub fn terms(mut self, terms: Terms) -> Result<Self, ClaimError> {
        terms.check()?;
        self.terms = terms;
        Ok(self)
    }

    /// Declares whether the work commits a receipt row in its own database. Then only a void of that row releases what was begun.
    pub fn receipts(mut self, receipts: Receipts) -> Self {
        self.receipts = receipts;
        self
    }

    /// Names the owner, so that a caller that lost the answer is recognised when it claims again. Only
    /// [`Engine::claim`](crate::Engine::claim) uses it.
    ///
    /// No two callers may share a name: both would execute.
    pub fn owner(mut self, owner: OwnerToken) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Waits up to this long for another execution of the same key instead of being refused at once. Only
    /// [`Engine::run`](crate::Engine::run) waits.
    pub fn attach(mut self, wait: Duration) -> Result<Self, ClaimError> {
        check_attach(wait)?;
        self.timing.attach = wait;
        Ok(self)
    }

    /// After this long the outcome counts as unknown. The work is not stopped, and its late outcome is accepted. Only
    /// [`Engine::run`](crate::Engine::run) uses it.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self, ClaimError> {
        check_timeout(timeout)?;
        self.timing.timeout = timeout;
        Ok(self)
    }

    /// After its timeout, work that goes on is left alone for this long before its outcome is found out. Only
    /// [`Engine::run`](crate::Engine::run) uses it.
    pub fn resume_after(mut self, pause: Duration) -> Result<Self, ClaimError> {
        check_resume_after(pause)?;
        self.timing.resume_after = pause;
        Ok(self)
    }
}

impl Terms {
    /// Refuses values that are out of range. Every claim checks its terms, and so does a policy that keeps terms for later
    /// claims.
    pub fn check(&self) -> Result<(), ClaimError> {
        within("lease", self.lease, Claim::MIN_LEASE, Claim::MAX_LEASE)?;
        within("retention", self.retention, Claim::MIN_RETENTION, Claim::MAX_RETENTION)?;
        within("grace", self.grace, Duration::ZERO, Claim::MAX_RETENTION)?;
        if let OnLapse::Resume { attempts, within: window } = self.on_lapse {
            if attempts < 2 {
                return Err(ClaimError::Attempts { attempts });
            }
            // With no time to take over in, it would never resume.
            within("resume within", window, Claim::MIN_LEASE, Claim::MAX_RETENTION)?;
        }
        Ok(())
    }
}

pub(crate) fn check_route(route: &str) -> Result<(), ClaimError> {
    if route.is_empty() || route.len() > Claim::MAX_ROUTE_BYTES {
        return Err(ClaimError::Route { route: route.chars().take(64).collect() });
    }
    Ok(())
}

pub(crate) fn check_attach(wait: Duration) -> Result<(), ClaimError> {
    within("attach", wait, Duration::ZERO, Claim::MAX_LEASE)
}

pub(crate) fn check_resume_after(pause: Duration) -> Result<(), ClaimError> {
    within("resume_after", pause, Duration::ZERO, Claim::MAX_LEASE)
}

pub(crate) fn check_timeout(timeout: Duration) -> Result<(), ClaimError> {
    within("timeout", timeout, Claim::MIN_TIMEOUT, Claim::MAX_RETENTION)
}

fn within(setting: &'static str, value: Duration, least: Duration, most: Duration) -> Result<(), ClaimError> {
    if value < least || value > most {
        return Err(ClaimError::Duration { setting, value, least, most });
    }
    Ok(())
}
