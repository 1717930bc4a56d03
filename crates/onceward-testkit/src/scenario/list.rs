//! The scripts that everything runs.

use super::{MachineDoor, Script, StoreDoor, run};
use crate::conformance::Bench;

/// Makes a test of every script: `scenarios!(run)`, where `run` is a `fn(&Script)` that panics where it fails.
///
/// What everything runs is listed here once; a test finds scripts that are not.
#[macro_export]
macro_rules! scenarios {
    ($run:path) => {
        $crate::each_scenario!(scenario_tests, $run);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! each_scenario {
    ($then:ident, $with:path) => {
        $crate::$then! {
            $with:
            a_changed_fingerprint_rule_replays_and_is_counted,
            a_claim_whose_answer_was_lost_recognises_itself,
            a_clock_that_jumps_ahead_lapses_leases_and_suspends_expiry,
            a_declared_resume_goes_on_from_the_last_recovery_point,
            a_failure_stops_mattering_after_an_hour,
            a_fenced_owner_that_did_the_work_keeps_its_successor_from_releasing_it,
            a_fenced_result_keeps_the_key_from_being_released,
            a_fenced_result_of_resumed_work_counts_when_its_successor_fails,
            a_fenced_result_that_comes_after_the_release_still_counts,
            a_find_is_about_the_tenure_that_was_asked_about,
            a_lapsed_lease_makes_the_outcome_unknown,
            a_late_owner_after_a_second_execution_is_fenced,
            a_late_owner_is_believed_while_its_fence_stands,
            a_lease_lapses_at_its_end_and_not_before,
            a_mismatch_beats_every_other_answer,
            a_result_from_an_earlier_window_is_not_this_operations_answer,
            a_resume_whose_answer_was_lost_goes_on_and_does_not_begin_anew,
            a_retry_gets_the_first_answer,
            a_retryable_failure_after_a_recovery_point_is_resumed,
            a_retryable_failure_lets_the_next_claim_execute,
            a_settlement_whose_answer_was_lost_is_told_that_it_was_settled,
            a_soft_sweep_keeps_the_row_without_its_body,
            a_sweeper_that_read_too_early_changes_nothing,
            a_verdict_does_not_release_what_evidence_shows_to_be_done,
            a_void_releases_what_its_owner_did_not_commit,
            a_webhook_before_the_lapse_is_kept_and_used,
            a_webhook_completes_what_nobody_knew,
            a_webhook_is_heard_beside_a_fenced_owners_result,
            what_one_tenure_did_settles_the_lapse_of_the_next,
            an_attempt_after_a_lapse_that_proves_nothing_sent_stays_unknown,
            an_inconclusive_find_backs_off_and_ends_among_the_dead_letters,
            an_operator_ends_the_window_early,
            an_owner_that_asks_again_with_another_content_is_refused,
            an_unknown_outcome_is_resolved_once,
            at_the_end_of_the_window_there_is_a_replay_or_a_new_execution,
            nobody_takes_over_later_than_was_agreed,
            nothing_can_be_done_to_what_is_absent,
            one_key_on_two_targets_is_a_mismatch_whatever_their_rules,
            renewing_and_checkpointing_keep_the_lease_alive,
            the_process_slept_between_claim_and_dispatch,
            the_sweeper_does_not_wait_for_an_attempt_that_is_not_left,
            the_sweeper_finds_a_lapsed_lease_before_any_retry,
            the_sweeper_leaves_a_resumable_lapse_to_the_completer_for_a_while,
            the_sweeper_takes_only_what_is_past_its_window,
            two_claims_that_both_found_nothing_execute_once,
            two_tenants_never_meet,
            where_resuming_was_not_agreed_a_recovery_point_is_no_licence,
            without_a_recovery_point_there_is_nothing_to_resume,
            work_begun_under_other_rules_is_not_continued,
            work_that_was_done_and_not_kept_is_released_by_a_person_alone,
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! scenario_tests {
    ($run:path: $($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                $run(&$crate::scenario::named(stringify!($name)));
            }
        )*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_scenario_tests {
    ($constructor:path: $($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                let script = $crate::scenario::named(stringify!($name));
                $crate::conformance::run($constructor, |bench| $crate::scenario::on_store(script, bench));
            }
        )*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! scenario_texts {
    ($with:path: $($name:ident),* $(,)?) => {
        [$((stringify!($name), include_str!(concat!("../../scenarios/", stringify!($name), ".txt")))),*]
    };
}

/// The names and the texts of all scripts.
pub const SCRIPTS: &[(&str, &str)] = &each_scenario!(scenario_texts, self);

/// The script of this name.
pub fn named(name: &str) -> Script {
    let text = SCRIPTS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
    let text = text.unwrap_or_else(|| panic!("there is no script {name}"));
    text.parse().unwrap_or_else(|error| panic!("scenarios/{name}.txt: {error}"))
}

/// Runs a script against the pure machine.
pub fn on_machine(script: &Script) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without threads");
    runtime.block_on(run(script, &mut MachineDoor::default())).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Runs a script against a store.
pub async fn on_store(script: Script, bench: Bench) {
    let mut door = StoreDoor::new(bench.store, bench.clock);
    run(&script, &mut door).await.unwrap_or_else(|failure| panic!("{failure}"));
}
