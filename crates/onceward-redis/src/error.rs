//! Errors, and whether something was written.

use onceward::store::StoreError;
use onceward::store::driver::InvalidOption;

/// Why a Redis cannot be opened as a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// An option is out of its range.
    #[error(transparent)]
    Option(#[from] InvalidOption),
    /// The server cannot be reached, or does not answer.
    #[error("{server} cannot be used: {reason}")]
    Unavailable {
        /// The server, without its password.
        server: String,
        /// What happened.
        reason: String,
    },
    /// The server's settings would lose records.
    #[error("{server} must not hold records: {problem}; {advice}")]
    Setting {
        /// The server, without its password.
        server: String,
        /// What is wrong.
        problem: String,
        /// What to change.
        advice: String,
    },
    /// Records were lost, or may have been.
    #[error("{server} has lost records: {what}; {ACCEPT}")]
    Lost {
        /// The server, without its password.
        server: String,
        /// What is missing.
        what: String,
    },
    /// The server is empty, and the store should exist.
    #[error("{server} is empty, and its store should exist: it was flushed, or this is another server")]
    Empty {
        /// The server, without its password.
        server: String,
    },
    /// The operating system gave no random bytes.
    #[error(transparent)]
    Entropy(#[from] onceward::engine::EntropyUnavailable),
}

/// What an operator can do about a loss.
pub(crate) const ACCEPT: &str = "restore it from a backup, or, knowing that retries of what was lost will execute again, run `onceward store accept-loss`";

/// Why a command has no usable answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The command was not sent.
    NotSent(String),
    /// The server refused it before it wrote anything.
    Refused(String),
    /// The server has become a replica and refuses writes; nothing was written.
    Demoted(String),
    /// The server does not know the script.
    NoScript,
    /// The answer was lost. The command may have been carried out.
    Lost(String),
    /// This version does not understand the answer. The command may have been carried out.
    Malformed(&'static str),
}

impl Failure {
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::NotSent(reason) | Self::Refused(reason) | Self::Demoted(reason) | Self::Lost(reason) => {
                reason.clone()
            }
            Self::NoScript => "the server does not keep a script that it was just sent".to_owned(),
            Self::Malformed(what) => format!("the answer is malformed ({what}): is this server Redis?"),
        }
    }

    pub(crate) fn of_write(self) -> StoreError {
        let reason = self.reason();
        match self {
            Self::NotSent(_) | Self::Refused(_) | Self::Demoted(_) => StoreError::Unavailable { reason },
            Self::NoScript | Self::Lost(_) | Self::Malformed(_) => StoreError::Ambiguous { reason },
        }
    }

    /// A read writes nothing, even if its answer is lost.
    pub(crate) fn of_read(self) -> StoreError {
        StoreError::Unavailable { reason: self.reason() }
    }
}
