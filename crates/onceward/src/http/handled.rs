//! What the layer did with a request, for metrics and logs around it.

use std::sync::Arc;

use ::http::Response;

use crate::OperationId;

/// How the layer handled a request. It is an extension of every response of the layer.
///
/// ```
/// use onceward::http::{Disposition, Handled};
/// # fn log(response: &http::Response<()>) {
/// if let Some(Handled { route, disposition: Disposition::Refused(code), .. }) = response.extensions().get::<Handled>() {
///     println!("{route}: refused with {code}");
/// }
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handled {
    /// The pattern of the route; `default` under the default policy, and empty where no route matches.
    pub route: Arc<str>,
    /// What was done.
    pub disposition: Disposition,
    /// The operation, where the request had a key and a scope and the route protects it. Without its window where its record was
    /// not read.
    pub operation: Option<OperationId>,
}

/// What was done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// It went to the inner service as if the layer were not there.
    Passed,
    /// The layer answered it with its published policy, or with the state of a key.
    Published,
    /// It was executed now, and its answer is stored.
    Executed,
    /// It was executed now, and its answer proves that nothing was done: the answer is passed on, and not stored.
    Released,
    /// It was or may have been executed now, and its answer cannot be given. Holds the problem's code.
    Unanswered(&'static str),
    /// It was answered with the stored answer.
    Replayed,
    /// Nothing was done for it. Holds the problem's code.
    Refused(&'static str),
    /// The store is unavailable and the route lets requests through: it was sent, and nothing is recorded.
    Unprotected,
    /// It went to the inner service, and what protection would have done was counted.
    Observed,
}

impl Disposition {
    /// The name for logs and metric labels.
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

    /// The code of the problem that the client was answered with, if it was one.
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
    /// For a request that names no operation.
    pub(super) fn without_operation(route: &Arc<str>, disposition: Disposition) -> Self {
        Self { route: route.clone(), disposition, operation: None }
    }

    /// Adds this to the response's extensions.
    pub(super) fn mark<B>(self, mut response: Response<B>) -> Response<B> {
        response.extensions_mut().insert(self);
        response
    }
}
