//! Warnings for operators about requests and answers that only a change of the configuration or the service can correct.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::scope::ScopeMissing;

/// Which warnings were logged. Each is logged once, because clients must not be able to fill the log.
#[derive(Debug, Default)]
pub(super) struct Advice {
    refreshable: AtomicBool,
    changing: AtomicBool,
    /// The routes whose answers ended with their connection.
    close_delimited: Mutex<HashSet<Arc<str>>>,
}

const REFRESHABLE: &str = "its Authorization header holds a JSON Web Token, and under the scope rule authorization a retry with a refreshed token would be a new operation. Until there is jwt:sub, let a proxy in front verify the token and set a header, and use header:NAME with scope_verified = true (in Rust, ScopeRules::parse_verified)";

const CHANGING: &str = "its Authorization header is neither Basic nor Bearer with an opaque token, and under the scope rule authorization a retry that is signed anew would be a new operation. Let a proxy in front verify the credential and set a header, and use header:NAME with scope_verified = true (in Rust, ScopeRules::parse_verified)";

impl Advice {
    /// The advice about a missing scope, if there is any and it was not returned before.
    pub(super) fn first_about(&self, missing: &ScopeMissing) -> Option<&'static str> {
        let (logged, advice) = match missing {
            ScopeMissing::Refreshable => (&self.refreshable, REFRESHABLE),
            ScopeMissing::Changing => (&self.changing, CHANGING),
            ScopeMissing::Absent { .. }
            | ScopeMissing::Several { .. }
            | ScopeMissing::HopByHop { .. }
            | ScopeMissing::NotBasic
            | ScopeMissing::TooLong => return None,
        };
        (!logged.swap(true, Ordering::Relaxed)).then_some(advice)
    }

    /// Warns once per route that an answer had no length and ended with its connection.
    pub(super) fn close_delimited(&self, route: &Arc<str>) {
        // A panic while the lock is held cannot leave half an entry.
        let first = self.close_delimited.lock().unwrap_or_else(PoisonError::into_inner).insert(route.clone());
        if first {
            tracing::warn!(
                route = &**route,
                next = "let the service send Content-Length or Transfer-Encoding: chunked. If it cannot, close_delimited = \"accept\" (in Rust, Policy::close_delimited) stores such answers, also those that a crash cut off",
                "an answer under a key has no length and ended with its connection: unless it is one JSON document, its outcome is unknown (said once for each route)"
            );
        }
    }
}
