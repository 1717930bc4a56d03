//! What the end of an execution means on a route with receipts: the rules of docs/receipts.md, as a door applies them.

use std::time::Duration;

use onceward::outcome::Unsure;
use onceward::reconcile::Finding;
use onceward::record::Cause;
use onceward::{Operation, Outcome, Reply};

/// As long as the layer waits after the row was asked for.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a handler answers.
#[derive(Debug, PartialEq, Eq)]
pub enum Given {
    /// 200, with the number of its execution.
    Done(u64),
    /// 404: nothing was done, which is an answer.
    Refused(u64),
    /// 429: nothing was done, and the request may come again.
    TryAgain,
    /// 500.
    Failed,
}

/// The outcome of an execution whose handler answered this, or whose connection broke.
pub async fn decided(operation: &Operation, given: Option<Given>) -> Outcome {
    let ended = match given {
        Some(Given::Done(number)) => return Outcome::completed(Reply::new(number.to_string())),
        Some(Given::Refused(number)) => Outcome::completed(Reply::new(number.to_string()).with_status(404)),
        Some(Given::TryAgain) => Outcome::Retryable("simulated: 429".to_owned()),
        Some(Given::Failed) => Outcome::said_unknown("simulated: 500"),
        None => Outcome::lost("simulated: the connection broke"),
    };
    match (operation.find().await, ended) {
        (Ok(Finding::Completed(reply)), _) => Outcome::Completed(reply),
        (
            Ok(Finding::Voided(_) | Finding::Unproven { .. } | Finding::Inconclusive(_) | Finding::Absent),
            own @ Outcome::Completed(_),
        ) => own,
        (Ok(Finding::Inconclusive(_) | Finding::Absent), own @ Outcome::Retryable(_)) => own,
        (Ok(Finding::Unproven { void, .. }), own @ Outcome::Retryable(_)) if void.point.is_none() => own,
        (Ok(Finding::Voided(void)), _) => {
            Outcome::Voided { void, why: "simulated: nothing was committed".to_owned() }
        }
        (Ok(Finding::DoneNotKept(why)), _) => Outcome::done_not_kept(why),
        (Ok(other), ended) => unknown(&ended, &format!("{other:?}")),
        (Err(why), ended) => unknown(&ended, &why),
    }
}

fn unknown(ended: &Outcome, found: &str) -> Outcome {
    let cause = match ended {
        Outcome::Unknown(unsure) => unsure.cause,
        Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Voided { .. } => Cause::Said,
    };
    Outcome::Unknown(Unsure { find_after: ASK_AGAIN_AFTER, ..Unsure::new(cause, found) })
}
