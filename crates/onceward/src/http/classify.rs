//! What becomes of an answer, and of no answer.

use std::fmt;

use ::http::{HeaderMap, StatusCode};

use super::header::OUTCOME;
use super::policy::Policy;

/// What an answer says about the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// It happened: the answer is stored and replayed.
    Completed,
    /// It did not happen: the same key may be tried again.
    Retryable,
    /// Nobody can be sure.
    Unknown,
}

impl Class {
    /// The class of a whole answer: the inner service's own word, or what the policy says about its status.
    pub(super) fn of(policy: &Policy, status: StatusCode, headers: &HeaderMap) -> Self {
        let by_status = Self::of_status(policy, status);
        // An interim status is no answer, so there is nothing that could be stored or passed on.
        if status.is_informational() { by_status } else { Self::told(headers).unwrap_or(by_status) }
    }

    /// The class as `Onceward-Outcome` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Retryable => "retryable",
            Self::Unknown => "unknown",
        }
    }

    /// The class of a status where the service says nothing itself.
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

    /// The service's own word, in whatever case. One that cannot be understood counts as none, because it may be of a later
    /// version.
    fn told(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(OUTCOME).iter();
        let (Some(word), None) = (lines.next(), lines.next()) else { return None };
        let word = word.as_bytes().trim_ascii();
        let classes = [Self::Completed, Self::Retryable, Self::Unknown];
        classes.into_iter().find(|class| word.eq_ignore_ascii_case(class.name().as_bytes()))
    }

    /// Whether the service said something that counts as no word.
    pub(super) fn is_misspoken(headers: &HeaderMap) -> bool {
        headers.contains_key(OUTCOME) && Self::told(headers).is_none()
    }
}

/// What an inner service's error says about the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The request provably never reached whoever does the work, such as after a refused connection.
    NotExecuted,
    /// It may have been executed; there was no answer in time.
    TimedOut,
    /// It may have been executed; the answer broke off, or something else went wrong.
    Broken,
}

/// Says what an inner service's error means. Closures do, for errors that can be displayed.
pub trait OnError<E>: Send + Sync + 'static {
    /// What the error says about the operation.
    fn failure(&self, error: &E) -> Failure;

    /// The error in words, without keys, bodies and credentials. The record keeps them as the cause, up to 512 bytes, operators
    /// are shown them, and they are logged. A closure, and [`Unsure`], take what the error displays.
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

/// Every error leaves the outcome unknown, which is always safe.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unsure;

impl<E: fmt::Display> OnError<E> for Unsure {
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
    fn the_services_own_word_wins_and_one_that_is_none_does_not_count() {
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
