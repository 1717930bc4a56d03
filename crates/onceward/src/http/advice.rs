//! What the operator is told in the log about requests that no client can mend.

use std::sync::atomic::{AtomicBool, Ordering};

use super::scope::ScopeMissing;

/// Which advice was given. Each is given once, because a client must not be able to fill the log.
#[derive(Debug, Default)]
pub(super) struct Advice {
    refreshable: AtomicBool,
    changing: AtomicBool,
}

const REFRESHABLE: &str = "its Authorization header holds a JSON Web Token, and under the scope rule authorization a retry with a refreshed token would be a new operation. Until there is jwt:sub, let a proxy in front verify the token and set a header, and use header:NAME with scope_verified = true (in Rust, ScopeRules::parse_verified)";

const CHANGING: &str = "its Authorization header is neither Basic nor Bearer with an opaque token, and under the scope rule authorization a retry that is signed anew would be a new operation. Let a proxy in front verify the credential and set a header, and use header:NAME with scope_verified = true (in Rust, ScopeRules::parse_verified)";

impl Advice {
    /// The advice about a refusal, if there is one and it was not given yet.
    pub(super) fn first_about(&self, missing: &ScopeMissing) -> Option<&'static str> {
        let (given, advice) = match missing {
            ScopeMissing::Refreshable => (&self.refreshable, REFRESHABLE),
            ScopeMissing::Changing => (&self.changing, CHANGING),
            ScopeMissing::Absent { .. }
            | ScopeMissing::Several { .. }
            | ScopeMissing::HopByHop { .. }
            | ScopeMissing::NotBasic
            | ScopeMissing::TooLong => return None,
        };
        (!given.swap(true, Ordering::Relaxed)).then_some(advice)
    }
}
