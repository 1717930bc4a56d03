//! The rules a fingerprint is made under, and the request they are applied to.

use std::{cell::Cell, fmt};

use super::{
    Fingerprint, ProfileId, Target,
    canonical::{Numbers, Rules, Scratch},
    content::{ContentType, Encoding, Kind},
    form, multipart,
    pointer::{Pointer, PointerError},
};
use crate::{Secret, digest::Digest};

/// Rises whenever the same request under the same settings would get another fingerprint than before: then old records
/// are recognised as made under other rules, instead of being refused as other requests.
const ALGORITHM: u64 = 1;

/// A request, borrowed from its receiver.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    /// As sent; methods are case-sensitive.
    pub method: &'a str,
    /// As sent: `/a%62` and `/ab` are different, because an upstream may think so.
    pub path: &'a str,
    /// Without its question mark. `/a` and `/a?` are different, as they are to RFC 3986.
    pub query: Option<&'a str>,
    /// Among them `content-type` and `content-encoding`, which say how the body is to be read.
    pub headers: &'a dyn Headers,
    /// All of it, as sent.
    pub body: &'a [u8],
}

/// The headers of a request. A trait, so that any header map can be read without a copy.
pub trait Headers {
    /// Hands each value of the header `name`, given in lower case, to `value`, in the order they came.
    fn each<'a>(&'a self, name: &str, value: &mut dyn FnMut(&'a [u8]));
}

/// Names may be in any case.
impl<const N: usize> Headers for [(&str, &[u8]); N] {
    fn each<'a>(&'a self, name: &str, value: &mut dyn FnMut(&'a [u8])) {
        self.iter().filter(|(other, _)| name.eq_ignore_ascii_case(other)).for_each(|(_, found)| value(found));
    }
}

/// Rules for fingerprints: which headers count, what is left out of JSON bodies, and whether the hash is keyed.
///
/// ```
/// use onceward::fingerprint::{Comparison, Parts, Profile};
///
/// let profile = Profile::builder().ignore(["/sent_at"]).build()?;
/// let fingerprint = |body: &str| {
///     let headers = [("content-type", &b"application/json"[..])];
///     let (method, path) = ("POST", "/payments");
///     profile.fingerprint(&Parts { method, path, query: None, headers: &headers, body: body.as_bytes() })
/// };
/// let first = fingerprint(r#"{"amount": 10, "currency": "EUR", "sent_at": 1}"#);
/// let retry = fingerprint(r#"{"currency":"EUR","amount":10.0,"sent_at":2}"#);
/// let other = fingerprint(r#"{"currency":"EUR","amount":99}"#);
/// assert_eq!(first.compare(&retry), Comparison::Same);
/// assert_eq!(first.compare(&other), Comparison::Different);
/// # Ok::<(), onceward::fingerprint::ProfileError>(())
/// ```
#[derive(Clone)]
pub struct Profile {
    id: ProfileId,
    headers: Box<[Box<str>]>,
    ignored: Box<[Pointer]>,
    max_depth: usize,
    /// Already holds the secret and the domain, which would otherwise be hashed anew for every request.
    seed: Digest,
    /// The same for targets, which no other setting changes.
    target_seed: Digest,
}

/// Collects the settings of a [`Profile`].
#[derive(Clone, Default)]
pub struct Builder {
    headers: Vec<String>,
    ignored: Vec<String>,
    max_depth: Option<usize>,
    secret: Option<Secret>,
}

/// A setting that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The name is not a valid header name.
    #[error("{name:?} is not a header name: use letters, digits and hyphens")]
    HeaderName {
        /// The name as given.
        name: String,
    },
    /// A retry of the same request would have another value, and be refused.
    #[error(
        "the header {name:?} is another one with every try, or a part of the key, so that it cannot tell a retry from another request: leave it out"
    )]
    ChangesWithEveryTry {
        /// The name as given.
        name: String,
    },
    /// A pointer is invalid, or means the whole body.
    #[error(transparent)]
    Pointer(#[from] PointerError),
    /// Above [`Profile::MAX_IGNORED`].
    #[error(
        "{found} pointers are ignored, but at most {} can be: ignore a common parent instead",
        Profile::MAX_IGNORED
    )]
    TooManyPointers {
        /// How many there are.
        found: usize,
    },
}

impl Builder {
    /// Headers whose values are part of the request; case does not matter.
    pub fn headers<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.headers.extend(names.into_iter().map(Into::into));
        self
    }

    /// JSON pointers (RFC 6901) to what is left out of JSON bodies, as if it had not been sent. A number names an
    /// element of an array by its place. A body that is compared by its bytes is compared whole.
    pub fn ignore<S: Into<String>>(mut self, pointers: impl IntoIterator<Item = S>) -> Self {
        self.ignored.extend(pointers.into_iter().map(Into::into));
        self
    }

    /// Keys the hash. Another secret is another profile.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Deeper JSON is compared by its bytes; [`Profile::MAX_DEPTH`] unless said otherwise.
    pub fn max_depth(mut self, containers: usize) -> Self {
        self.max_depth = Some(containers);
        self
    }

    /// Checks the settings.
    pub fn build(self) -> Result<Profile, ProfileError> {
        let mut headers = Vec::new();
        for name in self.headers {
            if !is_token(&name) {
                return Err(ProfileError::HeaderName { name });
            }
            let lower = name.to_ascii_lowercase();
            if lower == "idempotency-key" || is_own(&lower) || changes_with_every_try(&lower) {
                return Err(ProfileError::ChangesWithEveryTry { name });
            }
            headers.push(lower.into_boxed_str());
        }
        headers.sort_unstable();
        headers.dedup();

        let mut ignored =
            self.ignored.iter().map(|source| Pointer::parse(source)).collect::<Result<Vec<_>, _>>()?;
        ignored.sort_unstable_by(|left, right| left.as_str().cmp(right.as_str()));
        ignored.dedup();
        if ignored.len() > Profile::MAX_IGNORED {
            return Err(ProfileError::TooManyPointers { found: ignored.len() });
        }

        let max_depth = self.max_depth.unwrap_or(Profile::MAX_DEPTH);
        Ok(Profile::assemble(headers, ignored, max_depth, self.secret.as_ref()))
    }
}

/// The id of a set of rules. Keyed where there is a secret, so that it differs between secrets and reveals none.
fn id_of(headers: &[Box<str>], ignored: &[Pointer], max_depth: usize, secret: Option<&Secret>) -> ProfileId {
    let mut id = Digest::new(secret, "onceward fingerprint profile");
    id.part(&ALGORITHM.to_le_bytes());
    id.part(&(max_depth as u64).to_le_bytes());
    id.part(&(headers.len() as u64).to_le_bytes());
    headers.iter().for_each(|name| id.part(name.as_bytes()));
    ignored.iter().for_each(|pointer| id.part(pointer.as_str().as_bytes()));
    ProfileId::of_digest(id.finish())
}

/// No headers, nothing ignored, no secret.
impl Default for Profile {
    fn default() -> Self {
        Self::assemble(Vec::new(), Vec::new(), Self::MAX_DEPTH, None)
    }
}

impl Profile {
    /// No serializer nests further on purpose, and it is what widespread parsers allow.
    pub const MAX_DEPTH: usize = 128;

    /// Pointers are followed in the bits of one 64-bit word.
    pub const MAX_IGNORED: usize = 64;

    /// No headers, nothing ignored, no secret.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// From settings that were checked.
    fn assemble(
        headers: Vec<Box<str>>,
        ignored: Vec<Pointer>,
        max_depth: usize,
        secret: Option<&Secret>,
    ) -> Self {
        Self {
            id: id_of(&headers, &ignored, max_depth, secret),
            headers: headers.into(),
            ignored: ignored.into(),
            max_depth,
            seed: Digest::new(secret, "onceward fingerprint"),
            target_seed: Digest::new(secret, "onceward target"),
        }
    }

    /// Whether these rules hash under this secret. Targets are comparable only under one secret, so a layer must
    /// use its engine's, which the store verifies.
    #[cfg(feature = "http")]
    pub(crate) fn is_keyed_by(&self, secret: Option<&Secret>) -> bool {
        self.id == id_of(&self.headers, &self.ignored, self.max_depth, secret)
    }

    /// The same rules, hashed under this secret.
    #[cfg(feature = "http")]
    pub(crate) fn keyed_by(&self, secret: &Secret) -> Self {
        Self::assemble(self.headers.to_vec(), self.ignored.to_vec(), self.max_depth, Some(secret))
    }

    /// Names these rules: equal settings have equal ids, in every process and version.
    pub fn id(&self) -> ProfileId {
        self.id
    }

    /// The headers that count, in lower case and sorted.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        self.headers.iter().map(AsRef::as_ref)
    }

    /// The JSON pointers to what is left out, sorted.
    pub fn ignored(&self) -> impl Iterator<Item = &str> {
        self.ignored.iter().map(Pointer::as_str)
    }

    /// The fingerprint of a request under these rules.
    pub fn fingerprint(&self, request: &Parts<'_>) -> Fingerprint {
        let mut target = self.target_seed.clone();
        target.request_target(request);
        // The content's hash covers the target too. Format 1 kept this hash alone, so one hash serves both formats.
        let mut digest = self.seed.clone();
        digest.request_target(request);
        for name in &self.headers {
            request.headers.each(name, &mut |value| digest.optional(Some(value)));
            digest.optional(None);
        }
        let content = ContentType::of(request.headers);
        content.hash(&mut digest);
        let encoding = Encoding::of(request.headers);
        encoding.hash(&mut digest);
        let kind = if encoding.is_none() { content.kind() } else { Kind::Raw };
        self.hash_body(kind, request.body, &mut digest);
        Fingerprint::new(self.id, digest.finish()).at(Target::of_digest(target.finish()))
    }

    /// The body comes last, so nothing that follows can be mistaken for a part of it.
    fn hash_body(&self, kind: Kind<'_>, body: &[u8], digest: &mut Digest) {
        let understood = match kind {
            Kind::Json => self.hash_json(body, digest),
            Kind::Form => form::hash(body, digest),
            Kind::Multipart(boundary) => multipart::hash(boundary, body, digest),
            Kind::Raw => None,
        };
        if understood.is_none() {
            digest.part(b"raw");
            digest.part(body);
        }
    }

    fn hash_json(&self, body: &[u8], digest: &mut Digest) -> Option<()> {
        thread_local! {
            static SCRATCH: Cell<Scratch> = Cell::default();
        }
        // The thread is ending, and its scratch buffer is gone.
        let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
        let rules = Rules { numbers: Numbers::Exact, max_depth: self.max_depth, ignored: &self.ignored };
        let understood = scratch.canonicalize(body, rules).ok().map(|text| {
            digest.part(b"json");
            digest.part(text);
        });
        if scratch.is_small() {
            let _ = SCRATCH.try_with(|kept| kept.set(scratch));
        }
        understood
    }
}

impl Digest {
    fn request_target(&mut self, request: &Parts<'_>) {
        self.part(request.method.as_bytes());
        self.part(request.path.as_bytes());
        self.optional(request.query.map(str::as_bytes));
    }
}

/// Equal rules have equal ids.
impl PartialEq for Profile {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Profile {}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile")
            .field("id", &self.id)
            .field("headers", &self.headers)
            .field("ignored", &self.ignored)
            .field("max_depth", &self.max_depth)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("headers", &self.headers)
            .field("ignored", &self.ignored)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("method", &self.method)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Headers that a retry of the same request changes by nature: times, credentials that are signed or refreshed, and the ids of
/// a single try. In lower case.
const CHANGING: [&str; 8] = [
    "authorization",
    "connection",
    "date",
    "proxy-authorization",
    "traceparent",
    "tracestate",
    "x-amz-date",
    "x-request-id",
];

/// Whether a header, in lower case, has another value in every try.
pub(crate) fn changes_with_every_try(name: &str) -> bool {
    CHANGING.contains(&name)
}

/// Whether a header, in lower case, is one that only Onceward sets. Services that read headers as CGI does take `_` for `-`.
pub(crate) fn is_own(name: &str) -> bool {
    name.strip_prefix("onceward").is_some_and(|rest| rest.starts_with(['-', '_']))
}

fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
