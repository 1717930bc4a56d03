//! What is counted, under which name, and which observation counts where.

use onceward::Observation;

/// Something that is counted for every route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counter {
    /// Where its number stands in a route's row.
    pub index: usize,
    /// Its name, without `_total`, which the exporter adds.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
}

macro_rules! counters {
    ($($constant:ident, $name:literal, $help:literal;)*) => {
        #[expect(non_camel_case_types, reason = "these only number the constants")]
        enum Index { $($constant,)* }
        $(const $constant: Counter = Counter {
            index: Index::$constant as usize,
            name: concat!("api_idempotency_", $name),
            help: $help,
        };)*
        /// Everything that is counted, each at its own index.
        pub(super) const COUNTERS: [Counter; [$($name),*].len()] = [$($constant),*];
    };
}

counters! {
    CREATED, "reserve_created", "New operations that were claimed";
    REPLAY, "reserve_replay", "Stored answers that were given again";
    IN_PROGRESS, "reserve_in_progress", "Requests refused because the first one was still being executed";
    KEY_MISUSE, "reserve_key_misuse", "Requests refused because their key names another request";
    FAILED_RETRY, "reserve_failed_retry", "Operations claimed again that had failed without being executed";
    UNKNOWN, "reserve_unknown", "Requests refused because nobody knows whether the first one was executed";
    RESUMED, "reserve_resumed", "Operations taken over from their last recovery point";
    UNCOMPARED, "reserve_uncompared", "Answers given to requests whose fingerprint was made under other settings";
    COMPLETED, "settle_completed", "Executions that ended with an answer";
    RELEASED, "settle_retryable", "Executions that ended with the proof that nothing was done";
    LOST, "settle_unknown", "Executions that ended without anybody knowing";
    PANICKED, "panicked", "Executions that panicked";
    TOO_LATE, "too_late", "Claims whose work was not begun because too much time had passed";
    GIVEN_BACK, "given_back", "Claims that nobody began and that were given back";
    ATTACHED, "attached", "Requests that waited for another execution and were woken by its end";
    STORE_ERROR, "store_error", "Calls to the store that failed or whose answer was lost";
    ZOMBIE, "zombie_key", "Leases that lapsed while nobody had settled them";
    PRUNED, "ttl_pruned", "Records past their window that were swept";
    SCHEDULED, "reconcile_scheduled", "Outcomes that became unknown and are to be reconciled";
    RESOLVED, "reconcile_resolved", "Unknown outcomes that became known";
    FAILED, "reconcile_failed", "Unknown outcomes that were given up and wait for an operator";
    FENCED, "fenced", "Writes refused because the writer's tenure was over";
    CONTRADICTION, "contradiction", "Results that contradict what was decided: something may have happened twice";
    SUSPICIOUS_KEY, "suspicious_key", "Keys that are short, or look like an e-mail address or a phone number";
    KEY_MISSING, "key_missing", "Requests without the key that their route requires";
    KEY_INVALID, "key_invalid", "Requests whose key cannot be used";
    SCOPE_MISSING, "scope_missing", "Keyed requests that do not say whose key it is";
    EXPIRY_SUSPENDED, "expiry_suspended", "Sweeps that removed nothing because the store's clock runs ahead";
}

/// Where an observation is counted.
pub(super) const fn counter_of(what: Observation) -> Counter {
    match what {
        Observation::Created => CREATED,
        Observation::Reclaimed => FAILED_RETRY,
        Observation::Resumed => RESUMED,
        Observation::Replayed | Observation::ReplayedFromCache => REPLAY,
        Observation::Mismatch => KEY_MISUSE,
        Observation::InProgress => IN_PROGRESS,
        Observation::Unknown => UNKNOWN,
        Observation::Uncompared => UNCOMPARED,
        Observation::Contradiction => CONTRADICTION,
        Observation::DeadLettered => FAILED,
        Observation::Fenced => FENCED,
        Observation::Lapsed => ZOMBIE,
        Observation::Swept => PRUNED,
        Observation::Completed => COMPLETED,
        Observation::Released => RELEASED,
        Observation::Lost => LOST,
        Observation::ReconcileScheduled => SCHEDULED,
        Observation::Reconciled => RESOLVED,
        Observation::Panicked => PANICKED,
        Observation::TooLate => TOO_LATE,
        Observation::AmbiguousClaim | Observation::AmbiguousWrite | Observation::StoreError => STORE_ERROR,
        Observation::GivenBack => GIVEN_BACK,
        Observation::AttachWoken => ATTACHED,
        Observation::ExpirySuspended => EXPIRY_SUSPENDED,
        Observation::KeyMissing => KEY_MISSING,
        Observation::KeyInvalid => KEY_INVALID,
        Observation::ScopeMissing => SCOPE_MISSING,
        Observation::SuspiciousKey => SUSPICIOUS_KEY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_stands_at_its_own_index() {
        for (index, counter) in COUNTERS.iter().enumerate() {
            assert_eq!(counter.index, index, "{}", counter.name);
        }
    }
}
