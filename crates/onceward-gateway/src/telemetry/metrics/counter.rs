//! The counters with their names, and the counter of each observation.

use onceward::engine::{FindResult, Observation};

macro_rules! counters {
    ($($counter:ident, $name:literal, $help:literal;)*) => {
        /// A counter that every route has. Its number is its index in a route's row.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Counter { $($counter,)* }

        /// Every counter with its name and its help text. The exporter adds `_total` to the name.
        pub(super) const COUNTERS: [(Counter, &str, &str); [$($name),*].len()] =
            [$((Counter::$counter, concat!("api_idempotency_", $name), $help)),*];
    };
}

counters! {
    Created, "reserve_created", "New operations that were claimed";
    Replay, "reserve_replay", "Stored answers that were given again";
    InProgress, "reserve_in_progress", "Requests refused because the first one was still being executed";
    KeyMisuse, "reserve_key_misuse", "Requests refused because their key names another request";
    FailedRetry, "reserve_failed_retry", "Operations claimed again that had failed without being executed";
    Unknown, "reserve_unknown", "Requests refused because it is unknown whether the first one was executed";
    Resumed, "reserve_resumed", "Operations taken over from their last recovery point";
    Uncompared, "reserve_uncompared", "Answers given to requests whose fingerprint was made under other settings";
    Completed, "settle_completed", "Executions that ended with an answer";
    Released, "settle_retryable", "Executions that ended with the proof that nothing was done";
    Lost, "settle_unknown", "Executions whose outcome is unknown";
    Panicked, "panicked", "Executions that panicked";
    TooLate, "too_late", "Claims whose work was not begun because too much time had passed";
    GivenBack, "given_back", "Claims that were released because their work was not begun";
    LostClaimDropped, "lost_claim_dropped", "Claims whose answer was lost and that are not searched for because too many are already";
    Attached, "attached", "Requests that waited for another execution and were woken by its end";
    StoreError, "store_error", "Calls to the store that failed or whose answer was lost";
    Zombie, "zombie_key", "Leases that lapsed before an outcome was stored";
    Pruned, "ttl_pruned", "Records past their window that were swept";
    Scheduled, "reconcile_scheduled", "Outcomes that became unknown and are to be reconciled";
    Resolved, "reconcile_resolved", "Unknown outcomes that became known";
    Failed, "reconcile_failed", "Unknown outcomes that were given up and wait for an operator";
    Fenced, "fenced", "Writes refused because the writer's tenure was over";
    Contradiction, "contradiction", "Results that contradict what was decided: something may have happened twice";
    SuspiciousKey, "suspicious_key", "Keys that are short, or look like an e-mail address or a phone number";
    KeyMissing, "key_missing", "Requests without the key that their route requires";
    KeyInvalid, "key_invalid", "Requests whose key cannot be used";
    ScopeMissing, "scope_missing", "Keyed requests that do not say whose key it is";
    ExpirySuspended, "expiry_suspended", "Sweeps that removed nothing because the store's clock runs ahead";
}

/// Where an observation is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    As(Counter),
    /// As a find, under the label of its result.
    Find(FindResult),
}

/// Where an observation is counted.
pub(super) const fn counted_as(what: Observation) -> Counted {
    Counted::As(match what {
        Observation::Found(result) => return Counted::Find(result),
        Observation::Created => Counter::Created,
        Observation::Reclaimed => Counter::FailedRetry,
        Observation::Resumed => Counter::Resumed,
        Observation::Replayed | Observation::ReplayedFromCache => Counter::Replay,
        Observation::Mismatch => Counter::KeyMisuse,
        Observation::InProgress => Counter::InProgress,
        Observation::Unknown => Counter::Unknown,
        Observation::Uncompared => Counter::Uncompared,
        Observation::Contradiction => Counter::Contradiction,
        Observation::DeadLettered => Counter::Failed,
        Observation::Fenced => Counter::Fenced,
        Observation::Lapsed => Counter::Zombie,
        Observation::Swept => Counter::Pruned,
        Observation::Completed => Counter::Completed,
        Observation::Released => Counter::Released,
        Observation::Lost => Counter::Lost,
        Observation::ReconcileScheduled => Counter::Scheduled,
        Observation::Reconciled => Counter::Resolved,
        Observation::Panicked => Counter::Panicked,
        Observation::TooLate => Counter::TooLate,
        Observation::AmbiguousClaim | Observation::AmbiguousWrite | Observation::StoreError => {
            Counter::StoreError
        }
        Observation::GivenBack => Counter::GivenBack,
        Observation::LostClaimDropped => Counter::LostClaimDropped,
        Observation::AttachWoken => Counter::Attached,
        Observation::ExpirySuspended => Counter::ExpirySuspended,
        Observation::KeyMissing => Counter::KeyMissing,
        Observation::KeyInvalid => Counter::KeyInvalid,
        Observation::ScopeMissing => Counter::ScopeMissing,
        Observation::SuspiciousKey => Counter::SuspiciousKey,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_stands_at_its_own_index() {
        for (index, (counter, name, _)) in COUNTERS.into_iter().enumerate() {
            assert_eq!(counter as usize, index, "{name}");
        }
        for (index, result) in FindResult::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, index, "{result:?}");
        }
    }
}
