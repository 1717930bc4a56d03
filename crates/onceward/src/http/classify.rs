//! What an answer, or an error in its place, means for the operation.

use std::fmt;

use ::http::{HeaderMap, StatusCode};

use super::header::OUTCOME;
use super::policy::Policy;

/// What an answer means for the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The work was done: the answer is stored and replayed.
    Completed,
    /// The work was not done: the same key may be tried again.
    Retryable,
    /// The answer leaves open whether the work was done.
    Unknown,
}

impl Class {
    /// The class of a whole answer: its `Onceward-Outcome`, or else the class that the policy gives its status.
    pub(super) fn of(policy: &Policy, status: StatusCode, headers: &HeaderMap) -> Self {
        let by_status = Self::of_status(policy, status);
        // An interim status is not an answer that could be stored or passed on, whatever its headers say.
        if status.is_informational() { by_status } else { Self::from_header(headers).unwrap_or(by_status) }
    }

    /// The class as a value of `Onceward-Outcome`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Retryable => "retryable",
            Self::Unknown => "unknown",
        }
    }

    /// The class that the policy gives a status.
    pub fn of_status(policy: &Policy, status: StatusCode) -> Self {
        if policy.retryable.contains(&status.as_u16()) {
            Self::Retryable
        } else if policy.unknown.contains(&status.as_u16()) || status.is_informational() {
            // An interim status is not an answer.
            Self::Unknown
        } else {
            Self::Completed
        }
    }

    /// The class that the service gave in `Onceward-Outcome`, in any case. An unknown value is ignored, because it may be one of
    /// a later version.
    fn from_header(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(OUTCOME).iter();
        let (Some(word), None) = (lines.next(), lines.next()) else { return None };
        let word = word.as_bytes().trim_ascii();
        let classes = [Self::Completed, Self::Retryable, Self::Unknown];
        classes.into_iter().find(|class| word.eq_ignore_ascii_case(class.name().as_bytes()))
    }

    /// Whether the service gave the class itself, in `Onceward-Outcome`.
    pub(super) fn is_said(headers: &HeaderMap) -> bool {
        Self::from_header(headers).is_some()
    }

    /// Whether the service sent an `Onceward-Outcome` that is ignored.
    pub(super) fn has_invalid_header(headers: &HeaderMap) -> bool {
        headers.contains_key(OUTCOME) && Self::from_header(headers).is_none()
    }
}

/// What an inner service's error means for the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The request provably did not reach the code that does the work, such as after a refused connection.
    NotExecuted,
    /// It may have been executed; there was no answer in time.
    TimedOut,
    /// It may have been executed; the answer broke off, or something else went wrong.
    Broken,
}

/// Classifies an inner service's errors. Implemented by closures, for errors that implement `Display`.
pub trait OnError<E>: Send + Sync + 'static {
    /// What the error means for the operation.
    fn failure(&self, error: &E) -> Failure;

    /// The error in words, without keys, bodies and credentials. Up to 512 bytes of it are stored in the record as the cause,
    /// shown to operators and logged. Closures and [`EveryErrorUnknown`] use the error's `Display`.
    fn words(&self, error: &E) -> String;
}

impl<E, F> OnError<E> for F
where
    E: fmt::Display,
    F: Fn(&E) -> Failure + Send + Sync + 'static,
{
    fn failure(&self, error: &E) -> Failure {
        self(error)
    }

    fn words(&self, error: &E) -> String {
        error.to_string()
    }
}

/// Treats every error as an unknown outcome, which is always safe.
#[derive(Debug, Clone, Copy, Default)]
pub struct EveryErrorUnknown;

impl<E: fmt::Display> OnError<E> for EveryErrorUnknown {
    fn failure(&self, _: &E) -> Failure {
        Failure::Broken
    }

    fn words(&self, error: &E) -> String {
        error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(status: u16, words: &[&str]) -> Class {
        let mut headers = HeaderMap::new();
        for word in words {
            headers.append(OUTCOME, word.parse().unwrap());
        }
        Class::of(&Policy::new(), StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn every_status_has_the_class_that_the_contract_gives_it() {
        for status in 100..=599 {
            let expected = match status {
                401 | 425 | 429 => Class::Retryable,
                100..=199 | 502..=504 => Class::Unknown,
                _ => Class::Completed,
            };
            assert_eq!(class(status, &[]), expected, "{status}");
        }
    }

    #[test]
    fn the_services_own_class_wins_and_an_invalid_one_is_ignored() {
        assert_eq!(class(500, &["retryable"]), Class::Retryable);
        assert_eq!(class(503, &["completed"]), Class::Completed);
        assert_eq!(class(200, &["unknown"]), Class::Unknown);
        assert_eq!(class(200, &["Unknown"]), Class::Unknown);
        assert_eq!(class(200, &["UNKNOWN"]), Class::Unknown);
        assert_eq!(class(500, &[" Retryable "]), Class::Retryable);
        assert_eq!(class(503, &["Completed"]), Class::Completed);
        assert_eq!(class(200, &["perhaps"]), Class::Completed);
        assert_eq!(class(101, &["completed"]), Class::Unknown);
        assert_eq!(class(503, &["completed", "retryable"]), Class::Unknown);
    }
}
