//! What became of a request, for whoever counts and logs requests around this layer.

use std::sync::Arc;

use ::http::Response;

use crate::RecordId;

/// What became of a request. Every response of the layer has one among its extensions.
///
/// ```
/// use onceward::http::{Handled, How};
/// # fn look(response: &http::Response<()>) {
/// if let Some(Handled { route, how: How::Refused(code), .. }) = response.extensions().get::<Handled>() {
///     println!("{route}: refused with {code}");
/// }
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handled {
    /// The route as its pattern is written, `default` for what is under the default policy, and empty for what no
    /// route matches.
    pub route: Arc<str>,
    /// What was done.
    pub how: How,
    /// The operation, where the request had a key and a scope and the route protects it.
    pub operation: Option<RecordId>,
}

/// What was done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// It went through as if this layer were not there.
    Passed,
    /// This layer answered from what it publishes.
    Published,
    /// It was executed now, and its answer is stored.
    Executed,
    /// It was executed now, and its answer proves that nothing was done: passed on, and not stored.
    Released,
    /// It was executed now, or perhaps, and there is no answer that could be given. The code says why.
    Unanswered(&'static str),
    /// The answer that was given before.
    Replayed,
    /// Nothing was done for this request. The code says why.
    Refused(&'static str),
    /// The store is away and the route lets requests through: nothing is remembered of it.
    Unprotected,
    /// It went through, and what would have been done with it was counted.
    Observed,
}

impl How {
    /// A word for logs and for labels of metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Published => "published",
            Self::Executed => "executed",
            Self::Released => "released",
            Self::Unanswered(_) => "unanswered",
            Self::Replayed => "replayed",
            Self::Refused(_) => "refused",
            Self::Unprotected => "unprotected",
            Self::Observed => "observed",
        }
    }

    /// The code of the problem that the client was told, where it was told one.
    pub const fn code(self) -> Option<&'static str> {
        match self {
            Self::Unanswered(code) | Self::Refused(code) => Some(code),
            Self::Passed
            | Self::Published
            | Self::Executed
            | Self::Released
            | Self::Replayed
            | Self::Unprotected
            | Self::Observed => None,
        }
    }
}

impl Handled {
    /// Without an operation.
    pub(super) fn new(route: &Arc<str>, how: How) -> Self {
        Self { route: route.clone(), how, operation: None }
    }

    /// The response, with this among its extensions.
    pub(super) fn mark<B>(self, mut response: Response<B>) -> Response<B> {
        response.extensions_mut().insert(self);
        response
    }
}
