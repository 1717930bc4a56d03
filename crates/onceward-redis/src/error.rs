//! What can go wrong, and whether anything was written.

use onceward::store::StoreError;
use onceward::store::driver::InvalidOption;

/// Why a Redis could not be opened as a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// An option is out of its range.
    #[error(transparent)]
    Option(#[from] InvalidOption),
    /// It is not reached, or does not answer.
    #[error("{server} cannot be used: {reason}")]
    Unavailable {
        /// Which server, without its password.
        server: String,
        /// What happened.
        reason: String,
    },
    /// Its settings would lose records.
    #[error("{server} must not hold records: {problem}; {advice}")]
    Setting {
        /// Which server.
        server: String,
        /// What is wrong.
        problem: String,
        /// What to change.
        advice: String,
    },
    /// Records were lost, or may have been.
    #[error("{server} has lost records: {what}; {ACCEPT}")]
    Lost {
        /// Which server.
        server: String,
        /// What is missing.
        what: String,
    },
    /// There is nothing at all, and that is not expected.
    #[error("{server} is empty, and its store was said to exist: it was flushed, or this is another server")]
    Empty {
        /// Which server.
        server: String,
    },
    /// The operating system gave no random bytes.
    #[error(transparent)]
    Entropy(#[from] onceward::EntropyUnavailable),
}

/// What an operator does about a loss.
pub(crate) const ACCEPT: &str = "restore it from a backup, or, knowing that retries of what was lost will execute again, run `onceward store accept-loss`";

/// Why a command brought no answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// It was not sent.
    NotSent(String),
    /// The server refused it before anything was written.
    Refused(String),
    /// The server takes no writes any more: another one is the master now, and nothing was written.
    Demoted(String),
    /// The server does not know the script.
    NoScript,
    /// It may have been carried out.
    Lost(String),
    /// The answer is none that this version knows, so it may have been carried out.
    Malformed(&'static str),
}

impl Failure {
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::NotSent(reason) | Self::Refused(reason) | Self::Demoted(reason) | Self::Lost(reason) => {
                reason.clone()
            }
            Self::NoScript => "the server does not keep the script that it was just sent".to_owned(),
            Self::Malformed(what) => format!("the answer makes no sense ({what}): is it really Redis?"),
        }
    }

    pub(crate) fn of_write(self) -> StoreError {
        let reason = self.reason();
        match self {
            Self::NotSent(_) | Self::Refused(_) | Self::Demoted(_) => StoreError::Unavailable { reason },
            Self::NoScript | Self::Lost(_) | Self::Malformed(_) => StoreError::Ambiguous { reason },
        }
    }

    /// A read writes nothing, whatever became of it.
    pub(crate) fn of_read(self) -> StoreError {
        StoreError::Unavailable { reason: self.reason() }
    }
}
