//! The duty to settle, for owners that do the work outside [`Engine::run`](super::Engine::run).

use std::ops::Deref;

use tracing::{Instrument as _, Span};

use super::operate::Settled;
use super::running::StoredLate;
use super::{EngineError, Operation, log};
use crate::outcome::Outcome;

/// The right, and the duty, to do the work once.
///
/// It must be settled. Dropping it does not release the key, because the work may have been done: the lease lapses, and the
/// outcome becomes unknown.
#[derive(Debug)]
#[must_use = "a reservation that is not settled becomes an unknown outcome when its lease lapses"]
pub struct Reservation {
    operation: Operation,
    duty: Duty,
}

#[derive(Debug, PartialEq, Eq)]
enum Duty {
    Open,
    Done,
}

impl Reservation {
    pub(super) fn new(operation: Operation) -> Self {
        Self { operation, duty: Duty::Open }
    }

    /// Stores the outcome and ends the tenure. A failing store is tried again for [`Limits::settle_patience`]; then the error is
    /// returned, and the settlement is tried again in the background, because the outcome must not be lost.
    ///
    /// Poll the future to its end: if it is dropped, the outcome may not be stored, and becomes unknown when the lease lapses.
    ///
    /// [`Limits::settle_patience`]: super::Limits::settle_patience
    pub async fn settle(self, outcome: Outcome) -> Result<Settled, EngineError> {
        let operation = self.hand_over();
        let engine = operation.engine().clone();
        let outcome = engine.within_limits(outcome);
        let settled = operation.settle(outcome.clone(), engine.limits.settle_patience).await;
        if let Err(error) = &settled {
            operation.log(|about| log::not_stored(about, error));
            let late = async move {
                if engine.settle_late(&operation, outcome).await == StoredLate::Yes {
                    operation.log(log::stored_late);
                }
            };
            tokio::spawn(late.instrument(Span::current()));
        }
        settled
    }

    /// Leaves the duty to another process, which settles by id and fence with [`Engine::settle`](super::Engine::settle).
    pub fn hand_over(mut self) -> Operation {
        self.duty = Duty::Done;
        self.operation.clone()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.duty == Duty::Open {
            self.operation.log(log::dropped);
        }
    }
}

impl Deref for Reservation {
    type Target = Operation;

    fn deref(&self) -> &Operation {
        &self.operation
    }
}
