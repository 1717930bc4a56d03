//! Where the work commits a receipt row: an end of an execution that does not say whole that the work was done is compared with
//! that row. A request that was never sent needs no row, and work that may go on is compared later.

use std::time::Duration;

use ::http::{HeaderValue, StatusCode};

use super::classify::Class;
use super::exchange::Exchange;
use super::execute::{Ended, FirstAnswer, Says};
use super::header::OUTCOME;
use super::problem::Problem;
use super::reply;
use crate::engine::FindResult;
use crate::outcome::Unsure;
use crate::reconcile::Finding;
use crate::record::{Cause, Receipts};
use crate::{Operation, Outcome};

/// The row was just asked for. Soon enough for the retry of a client that waits a few seconds.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl<C> Exchange<C> {
    /// What the end of an execution means, after the row was asked where it decides.
    pub(super) async fn decided_by_receipt(
        &self,
        operation: &Operation,
        Ended { outcome, first, says }: Ended,
    ) -> (Outcome, FirstAnswer) {
        if self.keyed.policy.kept_receipts() == Receipts::None || !needs_receipt(&outcome, says) {
            return (outcome, first);
        }
        match (operation.find().await, outcome) {
            (Ok(Finding::Completed(reply)), ended) => {
                operation.log_found_at_end(&words(&ended), FindResult::Completed);
                let first = reply::restore(&self.keyed.policy, &reply);
                (Outcome::Completed(reply), Ok(Box::new(first)))
            }
            // It was done, and the row has no answer in its place.
            (_, Outcome::Completed(own)) if says == Says::DoneButNotWhole => (Outcome::Completed(own), first),
            (_, ended) if says == Says::DoneButNotWhole => {
                (Outcome::done_not_kept(words(&ended)), Err(Problem::AnswerNotStored))
            }
            // The owner can commit nothing any more, so that its own word counts.
            (
                Ok(
                    Finding::Voided(_)
                    | Finding::AbsentAndVoided(_)
                    | Finding::Unproven { .. }
                    | Finding::Inconclusive(_)
                    | Finding::Absent,
                ),
                Outcome::Completed(own),
            ) if (400..500).contains(&own.status) => (Outcome::Completed(own), first),
            (Ok(Finding::Inconclusive(_) | Finding::Absent), Outcome::Retryable(why)) => {
                (Outcome::Retryable(why), first)
            }
            // The owner's own proof releases, and the void only adds that it stays true.
            (Ok(Finding::AbsentAndVoided(void)), Outcome::Retryable(why)) => {
                (Outcome::Voided { void, why }, released(first))
            }
            // A phase that was committed cannot be gone on from, because nothing proves that no more was.
            (Ok(Finding::Unproven { void, .. }), Outcome::Retryable(why)) if void.point.is_none() => {
                (Outcome::Retryable(why), first)
            }
            (Ok(Finding::Voided(void)), ended) => {
                // An answer of the service's own, such as a 500, is passed on, and tells by itself what happened.
                if let Outcome::Unknown(unsure) = &ended {
                    operation.log_found_at_end(&unsure.why, FindResult::Voided);
                }
                let why = format!("{}, and committed nothing", words(&ended));
                (Outcome::Voided { void, why }, released(first))
            }
            (Ok(Finding::DoneNotKept(why)), _) => {
                (Outcome::done_not_kept(why), Err(Problem::AnswerNotStored))
            }
            (
                Ok(
                    Finding::Ambiguous(found)
                    | Finding::Inconclusive(found)
                    | Finding::StillOpen(found)
                    | Finding::Unproven { why: found, .. },
                )
                | Err(found),
                ended,
            ) => (unknown(&ended, &found), Err(unsure(&ended, first))),
            (Ok(Finding::Absent | Finding::AbsentAndVoided(_)), ended) => {
                (unknown(&ended, "there is no trace of it"), Err(unsure(&ended, first)))
            }
        }
    }
}

/// Whether only the row tells what was committed. A request that was never sent has committed nothing, and a row cannot say more
/// than a whole answer that says that the work was done. Work that may go on must not be kept from committing yet.
fn needs_receipt(outcome: &Outcome, says: Says) -> bool {
    match outcome {
        Outcome::Completed(_) => says != Says::Done,
        Outcome::Unknown(unsure) => unsure.find_after.is_zero(),
        Outcome::Retryable(_) => true,
        Outcome::Voided { .. } => false,
    }
}

/// How the execution ended, in words.
fn words(ended: &Outcome) -> String {
    match ended {
        Outcome::Completed(reply) => format!("the service answered {}", reply.status),
        Outcome::Retryable(why) | Outcome::Voided { why, .. } | Outcome::Unknown(Unsure { why, .. }) => {
            why.clone()
        }
    }
}

fn unknown(ended: &Outcome, found: &str) -> Outcome {
    let cause = match ended {
        Outcome::Completed(_) | Outcome::Retryable(_) | Outcome::Voided { .. } => Cause::Said,
        Outcome::Unknown(unsure) => unsure.cause,
    };
    let why = format!("{}; {found}", words(ended));
    Outcome::Unknown(Unsure { find_after: ASK_AGAIN_AFTER, ..Unsure::new(cause, why) })
}

fn unsure(ended: &Outcome, first: FirstAnswer) -> Problem {
    let status = match (ended, first) {
        (_, Err(problem)) => return problem,
        (Outcome::Completed(reply), Ok(_)) => {
            StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_GATEWAY)
        }
        (Outcome::Retryable(_) | Outcome::Voided { .. } | Outcome::Unknown(_), Ok(response)) => {
            response.status()
        }
    };
    Problem::UpstreamUnsure { upstream_status: status }
}

/// The answer of work that committed nothing: as it came, or why there is none.
fn released(first: FirstAnswer) -> FirstAnswer {
    let mut response =
        first.map_err(|problem| Problem::NotCommitted { upstream_status: problem.upstream_status() })?;
    response.headers_mut().insert(OUTCOME, HeaderValue::from_static(Class::Retryable.name()));
    Ok(response)
}
