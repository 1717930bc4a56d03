//! Route patterns, parsed as far as needed to find a route that can never match because an earlier one covers it.

use http::Method;

use super::rules::{Route, Rules};

/// A parsed route pattern.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    methods: Methods,
    /// `None` stands for any one segment.
    segments: Vec<Option<String>>,
    rest: bool,
}

#[derive(Debug, Clone)]
enum Methods {
    All,
    These(Vec<Method>),
}

impl Pattern {
    /// Parses a route's pattern. The error ends a sentence that begins with "it".
    pub(super) fn of(route: &Route, rules: &Rules) -> Result<Self, &'static str> {
        let (method, path) = match route.pattern.split_once(' ') {
            Some((method, path)) => (Some(method), path.trim_start()),
            None => (None, route.pattern.as_str()),
        };
        let methods = match (method, route.protect) {
            // Every parser accepts `post`, and it would match no request.
            (Some(method), _) if method.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                return Err("has its method in small letters");
            }
            (Some(method), _) => {
                Methods::These(vec![Method::from_bytes(method.as_bytes()).map_err(|_| "has no method")?])
            }
            (None, Some(false)) => Methods::All,
            (None, Some(true) | None) => {
                Methods::These(rules.methods.iter().map(|method| method.0.clone()).collect())
            }
        };
        let path = path.strip_prefix('/').ok_or("has no path that begins with a slash")?;
        let mut segments: Vec<&str> = path.split('/').collect();
        let rest = segments.last() == Some(&"*");
        if rest {
            segments.pop();
        }
        let segments = segments.into_iter().map(segment).collect::<Result<_, _>>()?;
        Ok(Self { methods, segments, rest })
    }

    /// Whether this pattern matches every request that the other one matches.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let methods = match (&self.methods, &other.methods) {
            (Methods::All, _) => true,
            (Methods::These(_), Methods::All) => false,
            (Methods::These(these), Methods::These(others)) => {
                others.iter().all(|method| these.contains(method))
            }
        };
        // A pattern with a slash at the end matches paths without it as well.
        let without_slash = match self.segments.split_last() {
            Some((Some(last), before)) if last.is_empty() && !before.is_empty() => Some(before),
            Some(_) | None => None,
        };
        methods
            && [Some(&self.segments[..]), without_slash]
                .into_iter()
                .flatten()
                .any(|ours| self.reach(ours, other))
    }

    fn reach(&self, ours: &[Option<String>], other: &Self) -> bool {
        let mut theirs = other.segments.iter();
        let each = ours.iter().all(|segment| {
            theirs
                .next()
                .is_some_and(|other| segment.is_none() && other.as_deref() != Some("") || segment == other)
        });
        each && (self.rest || theirs.next().is_none() && !other.rest)
    }
}

fn segment(text: &str) -> Result<Option<String>, &'static str> {
    match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        Some(name) if !name.is_empty() && !name.contains(['{', '}', '*']) => Ok(None),
        Some(_) => Err("has a segment with a stray {, } or *"),
        None if text.contains(['{', '}', '*']) => Err("has a segment with a stray {, } or *"),
        None if text.starts_with([':', '<']) => Err(
            "has a segment that begins with : or <, which would be compared as it is written (for one segment write {id}, \
                 and for a colon itself %3A)",
        ),
        None if text.contains(['?', '#']) => Err("has a query, which is not compared"),
        None => Ok(Some(text.to_owned())),
    }
}
