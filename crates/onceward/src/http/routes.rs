//! Finds the policy of a request by its method and path.

use std::cmp::Reverse;
use std::sync::Arc;

use ::http::Method;

use super::method::{equals_ignoring_case, has_lower_case, is_miscased};
use super::path::{Reading, Readings};
use super::percent::percent_decode;
use super::policy::{KeyRule, Mode, Policy, PolicyError};
use crate::Secret;

/// A table of routes. The first match wins, and a request that matches none has the default policy.
///
/// A pattern is `METHOD /path`, or `/path` alone, for the methods that its policy lists. `{name}` stands for one segment,
/// and a `*` at the end for the rest; `:name` and `<name>` are refused. Paths are compared in every spelling that a service
/// could take for the pattern: `//`, `.`, `..`, `%2F`, `;parameters`, and a slash or a line feed at the end do not slip
/// past. A path that a route names in full is compared with regard to case. Any other path is also compared without, and if
/// that leads to a stricter route, the stricter one applies. Methods are in capital letters; a request with a listed method
/// in another case is refused.
///
/// ```
/// use onceward::http::{KeyRule, Policy, Routes};
/// let required = Policy::new().key(KeyRule::Required);
/// let routes = Routes::new(Policy::new())?
///     .route("POST /payments", required.clone())?
///     .route("PUT /accounts/{id}/limits/*", required)?
///     .unprotected("POST /events")?;
/// # Ok::<(), onceward::http::RoutesError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    routes: Vec<Route>,
    default: Arc<Policy>,
    /// Names are shared, so that passing one on costs nothing.
    default_name: Arc<str>,
    no_name: Arc<str>,
}

/// The route and the policy of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    /// The route's name; empty where none matches.
    pub route: &'a Arc<str>,
    /// `None` where the request is not protected.
    pub policy: Option<&'a Arc<Policy>>,
    /// Its place in the table.
    order: usize,
}

/// How strictly a route treats requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Strictness {
    Open,
    Observed,
    Keyed,
    KeyRequired,
}

/// Whether the case of letters counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Counts,
    Ignored,
}

impl Found<'_> {
    fn strictness(&self) -> Strictness {
        match self.policy.map(|policy| (policy.mode, policy.key)) {
            None => Strictness::Open,
            Some((Mode::Observe, _)) => Strictness::Observed,
            Some((Mode::Enforce, KeyRule::Optional)) => Strictness::Keyed,
            Some((Mode::Enforce, KeyRule::Required)) => Strictness::KeyRequired,
        }
    }
}

/// A pattern and its policy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Route {
    pattern: Pattern,
    policy: Option<Arc<Policy>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: Arc<str>,
    method: Option<Method>,
    segments: Vec<Segment>,
    /// The same without empty segments, where it has some.
    tidied: Option<Vec<Segment>>,
    tail: Tail,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(Box<[u8]>),
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    Exact,
    Rest,
}

/// Why a table of routes is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutesError {
    /// The pattern cannot be read.
    #[error("the route {pattern:?} {rule}: write it like \"POST /payments/{{id}}/*\"")]
    Pattern {
        /// The pattern as it was given.
        pattern: String,
        /// What is wrong with it.
        rule: &'static str,
    },
    /// The policy is refused.
    #[error("the policy of the route {pattern:?} makes no sense: {error}")]
    Policy {
        /// The route's pattern.
        pattern: String,
        /// Why it is refused.
        error: PolicyError,
    },
}

/// Other tools write variables like this. Taken as text, such a route would match no request and protect nothing.
const FOREIGN_VARIABLE: &str = "has a segment that begins with : or <, which would be compared as it is written (for one segment write {id}, and for a colon itself %3A)";

/// The name of everything that no route matches, in metrics and lists.
pub(super) const DEFAULT_ROUTE: &str = "default";

impl Routes {
    /// A table without routes, so that every request has the default policy.
    pub fn new(default: Policy) -> Result<Self, RoutesError> {
        checked(DEFAULT_ROUTE, &default)?;
        Ok(Self {
            routes: Vec::new(),
            default: Arc::new(default),
            default_name: DEFAULT_ROUTE.into(),
            no_name: "".into(),
        })
    }

    /// Adds a route after those that are there.
    pub fn route(mut self, pattern: &str, policy: Policy) -> Result<Self, RoutesError> {
        checked(pattern, &policy)?;
        self.routes.push(Route { pattern: Pattern::parse(pattern)?, policy: Some(Arc::new(policy)) });
        Ok(self)
    }

    /// Adds a route that always passes through, such as one that answers with an endless stream.
    pub fn unprotected(mut self, pattern: &str) -> Result<Self, RoutesError> {
        self.routes.push(Route { pattern: Pattern::parse(pattern)?, policy: None });
        Ok(self)
    }

    /// Keys the fingerprints that are not keyed yet.
    pub(super) fn keyed_by(mut self, secret: &Secret) -> Self {
        let policies =
            self.routes.iter_mut().filter_map(|route| route.policy.as_mut()).chain([&mut self.default]);
        for policy in policies.filter(|policy| policy.fingerprint.is_keyed_by(None)) {
            let policy = Arc::make_mut(policy);
            policy.fingerprint = policy.fingerprint.keyed_by(secret);
        }
        self
    }

    /// The route's name and policy. Where the readings of a path lead to different routes, the strictest wins, because it
    /// is not known which reading is the service's.
    pub(super) fn find(&self, method: &Method, path: &str) -> Found<'_> {
        let readings = Readings::of(path);
        let mut found = self.first(method, Reading::Plain(path), Case::Counts);
        for reading in readings.loose() {
            let other = self.first(method, reading, Case::Counts);
            if (other.strictness(), Reverse(other.order)) > (found.strictness(), Reverse(found.order)) {
                found = other;
            }
        }
        // Unless a route names the path in full, a service that ignores case, as Express does, may take it for a strict route's.
        if self.routes.get(found.order).is_none_or(|route| route.pattern.is_wild()) {
            for reading in [Reading::Plain(path)].into_iter().chain(readings.loose()) {
                let other = self.first(method, reading, Case::Ignored);
                if other.strictness() > found.strictness() {
                    found = other;
                }
            }
        }
        found
    }

    /// The first route that matches, in one reading of the path.
    fn first(&self, method: &Method, path: Reading<'_>, case: Case) -> Found<'_> {
        let accepting = |(_, route): &(usize, &Route)| route.pattern.accepts(path, case);
        for (order, route) in self.routes.iter().enumerate().filter(accepting) {
            let listed = match (&route.pattern.method, &route.policy) {
                (Some(named), _) => named == method,
                (None, Some(policy)) => policy.methods.contains(method),
                (None, None) => true,
            };
            if listed {
                return Found { route: &route.pattern.text, policy: route.policy.as_ref(), order };
            }
        }
        let order = self.routes.len();
        if self.default.methods.contains(method) {
            Found { route: &self.default_name, policy: Some(&self.default), order }
        } else {
            Found { route: &self.no_name, policy: None, order }
        }
    }

    /// Whether a method differs only in case from a registered one, or from one that a route lists.
    pub(super) fn is_miscased(&self, method: &Method) -> bool {
        let method = method.as_str().as_bytes();
        is_miscased(method)
            || has_lower_case(method) && self.listed().any(|known| equals_ignoring_case(method, known))
    }

    /// Every method that a route or a policy lists, those of unprotected routes included.
    fn listed(&self) -> impl Iterator<Item = &Method> {
        let named = self.routes.iter().filter_map(|route| route.pattern.method.as_ref());
        let policies = self.routes.iter().filter_map(|route| route.policy.as_ref()).chain([&self.default]);
        named.chain(policies.flat_map(|policy| &policy.methods))
    }

    /// The name of every protected route, as metrics and logs have it, the default last.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.policies().map(|(name, _, _)| name)
    }

    /// The name for requests that no route matches.
    pub(super) fn no_name(&self) -> &Arc<str> {
        &self.no_name
    }

    /// Every protected route with its name, the default last.
    pub(super) fn policies(&self) -> impl Iterator<Item = (&str, Option<&Method>, &Policy)> {
        let named = self.routes.iter().filter_map(|route| {
            let policy = route.policy.as_deref()?;
            Some((&*route.pattern.text, route.pattern.method.as_ref(), policy))
        });
        named.chain([(DEFAULT_ROUTE, None, &*self.default)])
    }
}

fn checked(pattern: &str, policy: &Policy) -> Result<(), RoutesError> {
    policy.check(pattern).map_err(|error| RoutesError::Policy { pattern: pattern.to_owned(), error })
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, RoutesError> {
        let refused = |rule| RoutesError::Pattern { pattern: text.chars().take(255).collect(), rule };
        let (method, path) = match text.split_once(' ') {
            Some((method, path)) => {
                let method = Method::from_bytes(method.as_bytes()).map_err(|_| refused("has no method"))?;
                if has_lower_case(method.as_str().as_bytes()) {
                    return Err(refused("has its method in small letters, which no request could match"));
                }
                (Some(method), path.trim_start())
            }
            None => (None, text),
        };
        let Some(path) = path.strip_prefix('/') else {
            return Err(refused("has no path that begins with a slash"));
        };
        let (path, tail) = match path.strip_suffix('*') {
            Some("") => {
                let text = text.into();
                return Ok(Self { text, method, segments: Vec::new(), tidied: None, tail: Tail::Rest });
            }
            Some(rest) => match rest.strip_suffix('/') {
                Some(path) => (path, Tail::Rest),
                None => return Err(refused("has a * that is not a whole segment")),
            },
            None => (path, Tail::Exact),
        };
        if path.split('/').any(|segment| segment.starts_with([':', '<'])) {
            return Err(refused(FOREIGN_VARIABLE));
        }
        let segments = path.split('/').map(Segment::parse).collect::<Option<Vec<_>>>();
        let segments = segments.ok_or_else(|| refused("has a segment with a stray {, } or *"))?;
        let named: Vec<_> = segments.iter().filter(|segment| !segment.is_empty()).cloned().collect();
        let tidied = (named.len() < segments.len()).then_some(named);
        Ok(Self { text: text.into(), method, segments, tidied, tail })
    }

    /// Compares decoded segments, so that `/pay%6dents` does not slip past `/payments`.
    fn accepts(&self, path: Reading<'_>, case: Case) -> bool {
        let tidied = self.tidied.as_deref();
        match path {
            // To a service that ignores a slash at the end, the pattern without it names the same.
            Reading::Plain(_) => {
                self.is_met(&self.segments, path, case)
                    || tidied.is_some_and(|tidied| self.is_met(tidied, path, case))
            }
            Reading::Loose(_) => {
                self.is_met(tidied.unwrap_or(&self.segments), path, case)
                    || self.is_met(&self.segments, path, case)
            }
        }
    }

    /// Whether it stands for more than one path.
    fn is_wild(&self) -> bool {
        self.tail == Tail::Rest || self.segments.iter().any(|segment| matches!(segment, Segment::Any))
    }

    fn is_met(&self, segments: &[Segment], path: Reading<'_>, case: Case) -> bool {
        let mut rest = path.segments();
        let matched = segments.iter().all(|segment| {
            rest.next().is_some_and(|found| match segment {
                Segment::Any => !found.is_empty(),
                Segment::Literal(literal) => match case {
                    Case::Counts => **literal == *found,
                    Case::Ignored => literal.eq_ignore_ascii_case(&found),
                },
            })
        });
        matched && (self.tail == Tail::Rest || rest.next().is_none())
    }
}

impl Segment {
    fn is_empty(&self) -> bool {
        match self {
            Self::Literal(literal) => literal.is_empty(),
            Self::Any => false,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            Some(name) if !name.is_empty() && !name.contains(['{', '}', '*']) => Some(Self::Any),
            Some(_) => None,
            None if text.contains(['{', '}', '*']) => None,
            None => Some(Self::Literal(percent_decode(text).into_owned().into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(routes: &Routes, method: &Method, path: &str) -> Option<String> {
        let Found { route, policy, .. } = routes.find(method, path);
        policy.map(|_| route.to_string())
    }

    #[test]
    fn the_first_match_wins_and_the_rest_is_under_the_default() {
        let routes = Routes::new(Policy::new())
            .unwrap()
            .unprotected("POST /payments/stream")
            .unwrap()
            .route("POST /payments/{id}", Policy::new())
            .unwrap()
            .route("PUT /files/*", Policy::new())
            .unwrap();
        for (method, path, expected) in [
            (Method::POST, "/payments/stream", None),
            (Method::POST, "/payments/7", Some("POST /payments/{id}")),
            (Method::POST, "/pa%79ments/7", Some("POST /payments/{id}")),
            (Method::POST, "/payments/", Some("default")),
            (Method::POST, "/payments/7/refunds", Some("default")),
            (Method::PUT, "/payments/7", None),
            (Method::PUT, "/files/a/b", Some("PUT /files/*")),
            (Method::GET, "/files/a/b", None),
            (Method::PATCH, "/anything", Some("default")),
        ] {
            assert_eq!(found(&routes, &method, path).as_deref(), expected, "{method} {path}");
        }
    }

    #[test]
    fn no_spelling_of_a_path_slips_past_a_route_that_requires_a_key() {
        let required = Policy::new().key(KeyRule::Required);
        let routes = Routes::new(Policy::new())
            .unwrap()
            .unprotected("POST /events/*")
            .unwrap()
            .route("POST /drafts", Policy::new())
            .unwrap()
            .route("POST /payments", required.clone())
            .unwrap()
            .route("POST /accounts/{id}/", required.clone())
            .unwrap()
            .route("POST /vault/*", required.clone())
            .unwrap()
            .route("POST /refunds/{id}", Policy::new())
            .unwrap()
            .route("POST /refunds/{id}/", required)
            .unwrap();
        for (path, expected) in [
            ("/refunds/7", "POST /refunds/{id}"),
            ("/refunds/7/", "POST /refunds/{id}/"),
            ("//refunds/7/", "POST /refunds/{id}/"),
            ("/refunds/./7/", "POST /refunds/{id}/"),
            ("/refunds/7//", "POST /refunds/{id}/"),
            ("/refunds/7/.", "POST /refunds/{id}/"),
            ("/refunds/7%2f", "POST /refunds/{id}/"),
            ("//payments", "POST /payments"),
            ("/payments/", "POST /payments"),
            ("/./payments", "POST /payments"),
            ("/drafts/../payments", "POST /payments"),
            ("/events/../payments", "POST /payments"),
            ("/events/..;/payments", "POST /payments"),
            ("/events%2F..%2Fpayments", "POST /payments"),
            ("/events\\..\\payments", "POST /payments"),
            ("/payments;jsessionid=1", "POST /payments"),
            ("/payments%0a", "POST /payments"),
            ("/payments/%0A", "POST /payments"),
            ("/accounts/7%0a", "POST /accounts/{id}/"),
            ("/payments;x=%2F..%2Fevents%2Fx", "POST /payments"),
            ("/accounts/7", "POST /accounts/{id}/"),
            ("/accounts/7/", "POST /accounts/{id}/"),
            ("/accounts//7", "POST /accounts/{id}/"),
            // What tidies up to an open route may be meant for the strict one by a service that does not tidy.
            ("/vault/../events/x", "POST /vault/*"),
            ("/vault/%2e%2e/drafts", "POST /vault/*"),
            ("/Payments", "POST /payments"),
            ("/PAYMENTS/", "POST /payments"),
            ("/DRAFTS/../%50AYMENTS", "POST /payments"),
            ("/Vault/x", "POST /vault/*"),
            // Routes that stand for many paths do not name this one.
            ("/EVENTS/x", "default"),
            ("/events/../Payments", "POST /payments"),
            // Nothing stricter stands there, so that case counts.
            ("/Drafts", "default"),
            ("/Refunds/7", "default"),
            ("/payments%252F", "default"),
            ("/drafts/", "POST /drafts"),
        ] {
            assert_eq!(found(&routes, &Method::POST, path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(found(&routes, &Method::POST, "/events/./x"), None);
    }

    #[test]
    fn a_lenient_route_for_many_paths_hides_no_strict_one_that_differs_in_case() {
        let required = Policy::new().key(KeyRule::Required);
        let routes = Routes::new(Policy::new()).unwrap().route("POST /payments", required).unwrap();
        let routes = routes.unprotected("POST /Payments").unwrap().unprotected("POST /*").unwrap();
        assert_eq!(found(&routes, &Method::POST, "/PAYMENTS").as_deref(), Some("POST /payments"));
        // The operator has named this one.
        assert_eq!(found(&routes, &Method::POST, "/Payments"), None);
    }

    #[test]
    fn a_pattern_that_cannot_be_read_is_refused_with_an_example() {
        for pattern in [
            "",
            "payments",
            "POST payments",
            "POST /a*",
            "/{}",
            "/{a",
            "/a/*/b",
            "P@ST\u{7f} /",
            "post /a",
            "Post /a",
            "POST /payments/:id",
            "POST /payments/<id>/refunds",
            "/:tenant/*",
        ] {
            let error = Routes::new(Policy::new()).unwrap().unprotected(pattern).unwrap_err();
            assert!(error.to_string().contains("POST /payments"), "{error}");
        }
    }

    #[test]
    fn a_policy_that_makes_no_sense_is_refused_when_the_table_is_made() {
        let short = std::time::Duration::from_millis(999);
        let nonsense = [
            Policy::new().in_progress(crate::http::InProgress::Wait).wait(short),
            Policy::new().min_key_length(0),
            Policy::new().min_key_length(256),
            Policy::new().lease(std::time::Duration::ZERO),
            Policy::new().respond_within(std::time::Duration::ZERO),
            Policy::new().retryable([503]),
            Policy::new().retryable([100]),
            Policy::new().retryable([201, 429]),
            Policy::new().retryable([307]),
            Policy::new().methods([Method::POST, "patch".parse().unwrap()]),
            Policy::new().key(crate::http::KeyRule::Required).store_down(crate::http::StoreDown::Pass),
        ];
        for policy in nonsense {
            assert!(Routes::new(policy.clone()).is_err(), "{policy:?}");
        }
    }
}
