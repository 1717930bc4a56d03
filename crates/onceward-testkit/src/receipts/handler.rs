//! A handler that writes receipt rows, as the suite needs it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use onceward::{Fence, OperationId};

/// What a handler's calls return.
pub type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>>;

/// A handler's own connection to its database. One that is dropped has crashed: what it did not commit is undone.
pub trait Handler: Send {
    /// Begins a transaction.
    fn begin(&mut self) -> HandlerFuture<'_>;

    /// Calls `onceward_checkpoint`.
    fn checkpoint<'a>(
        &'a mut self,
        step: Step<'a>,
        point: &'a str,
        data: Option<&'a str>,
    ) -> HandlerFuture<'a>;

    /// Calls `onceward_enter`, with the time for which the receiver deduplicates.
    fn enter<'a>(&'a mut self, step: Step<'a>, point: &'a str, dedup: Option<Duration>) -> HandlerFuture<'a>;

    /// Calls `onceward_complete`.
    fn complete<'a>(&'a mut self, step: Step<'a>, answer: Answer<'a>) -> HandlerFuture<'a>;

    /// Commits the transaction.
    fn commit(&mut self) -> HandlerFuture<'_>;

    /// Gives the transaction up. One that the database gave up before is no error.
    fn rollback(&mut self) -> HandlerFuture<'_>;
}

/// Whose step it is.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The operation.
    pub operation: OperationId,
    /// The fence that the handler was given.
    pub fence: Fence,
    /// The step that it was given or last wrote.
    pub after: Option<&'a str>,
}

impl<'a> Step<'a> {
    /// The first step of an operation.
    pub const fn first(operation: OperationId, fence: Fence) -> Self {
        Self { operation, fence, after: None }
    }

    /// A step after another.
    #[must_use]
    pub const fn after(self, step: &'a str) -> Self {
        Self { after: Some(step), ..self }
    }
}

/// An answer as a handler writes it.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// The status.
    pub status: i32,
    /// The headers, as JSON.
    pub headers: &'a str,
    /// The body.
    pub body: &'a [u8],
}

impl<'a> Answer<'a> {
    /// An answer of JSON.
    pub const fn json(status: i32, body: &'a [u8]) -> Self {
        Self { status, headers: r#"[["Content-Type","application/json"]]"#, body }
    }
}

/// How a handler's call failed. Its transaction can no longer commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerError {
    /// `OW001`: the operation was voided or taken over, or its fence is too old for a new row.
    Fenced(String),
    /// `OW002`: it was completed before.
    Completed(String),
    /// `OW003`: another delivery moved the step.
    Moved(String),
    /// The database found that two transactions cannot both commit.
    Serialization(String),
    /// Anything else.
    Failed(String),
}

impl HandlerError {
    /// The error that a code and its words mean.
    pub fn of(code: &str, words: String) -> Self {
        match code {
            "OW001" => Self::Fenced(words),
            "OW002" => Self::Completed(words),
            "OW003" => Self::Moved(words),
            "40001" | "40P01" => Self::Serialization(words),
            _ => Self::Failed(words),
        }
    }
}
