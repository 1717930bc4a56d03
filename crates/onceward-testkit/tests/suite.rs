//! The suite is worth what it notices: stores with one thing wrong, and the case that fails for each.
//!
//! Only cases that fail for certain are named: a race that a defect loses most of the time is no evidence.

#![allow(clippy::wildcard_enum_match_arm, reason = "a defect changes one thing, and nothing else")]

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use onceward::store::{Page, Scan, Seen, Store, StoreError, StoreFuture, Swapped, Version};
use onceward::{MemoryStore, Record, RecordId, Timestamp};
use onceward_testkit::VirtualClock;
use onceward_testkit::conformance::{self, Bench, Specimen};

/// What a driver could get wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    ReadsThenWrites,
    IgnoresTheVersion,
    NeverWrites,
    HidesTheWinner,
    TakesUnreadableForAbsent,
    ForgetsAnyVersion,
    CountsWhatWasAskedFor,
    HasItsOwnTime,
    LosesTheRestOfALongList,
    RepeatsTheFirstPage,
    ListsTheLatestFirst,
    ListsEverything,
    DropsHeaders,
    AcceptsAnyCursor,
}

struct Defective {
    inner: MemoryStore,
    defect: Defect,
}

impl Defective {
    async fn version(&self, id: RecordId) -> Option<Version> {
        self.inner.load(id).await.ok()?.record.map(|stamped| stamped.version)
    }

    const fn now(&self, now: Timestamp) -> Timestamp {
        match self.defect {
            Defect::HasItsOwnTime => Timestamp::from_micros(now.as_micros() / 2),
            _ => now,
        }
    }
}

impl Store for Defective {
    fn load(&self, id: RecordId) -> StoreFuture<'_, Seen> {
        Box::pin(async move {
            match (self.inner.load(id).await, self.defect) {
                (Err(StoreError::Unreadable { .. }), Defect::TakesUnreadableForAbsent) => {
                    Ok(Seen { now: Timestamp::from_micros(0), record: None })
                }
                (seen, _) => seen.map(|seen| Seen { now: self.now(seen.now), ..seen }),
            }
        })
    }

    fn swap(&self, id: RecordId, mut expect: Option<Version>, mut next: Record) -> StoreFuture<'_, Swapped> {
        Box::pin(async move {
            match self.defect {
                Defect::ReadsThenWrites if self.version(id).await == expect => {
                    tokio::task::yield_now().await;
                    expect = self.version(id).await;
                }
                Defect::IgnoresTheVersion if expect.is_some() => expect = self.version(id).await,
                Defect::NeverWrites => {
                    let seen = self.inner.load(id).await?;
                    return Ok(Swapped::Applied { version: Version::from_number(1), now: seen.now });
                }
                Defect::DropsHeaders => {
                    if let onceward::record::State::Completed { reply, .. } = &mut next.state {
                        Arc::make_mut(reply).headers.dedup_by(|a, b| a.0 == b.0);
                        Arc::make_mut(reply).headers.truncate(2);
                    }
                }
                _ => {}
            }
            match self.inner.swap(id, expect, next).await? {
                Swapped::Conflict(seen) if self.defect == Defect::HidesTheWinner => {
                    Ok(Swapped::Conflict(Seen { record: None, ..seen }))
                }
                swapped => Ok(swapped),
            }
        })
    }

    fn scan(&self, mut scan: Scan) -> StoreFuture<'_, Page> {
        Box::pin(async move {
            match self.defect {
                Defect::RepeatsTheFirstPage => scan.after = None,
                Defect::AcceptsAnyCursor => {
                    scan.after = scan.after.filter(|after| after.as_bytes().len() == 24)
                }
                Defect::ListsEverything => {
                    scan.which = onceward::store::Which::Filter(onceward::store::Filter::default());
                }
                _ => {}
            }
            let mut page = self.inner.scan(scan).await?;
            match self.defect {
                Defect::LosesTheRestOfALongList => page.next = None,
                Defect::ListsTheLatestFirst => page.entries.reverse(),
                _ => {}
            }
            Ok(page)
        })
    }

    fn forget(&self, mut records: Vec<(RecordId, Version)>) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let asked = records.len();
            if self.defect == Defect::ForgetsAnyVersion {
                for (id, version) in &mut records {
                    *version = self.version(*id).await.unwrap_or(*version);
                }
            }
            let count = self.inner.forget(records).await?;
            Ok(if self.defect == Defect::CountsWhatWasAskedFor { asked } else { count })
        })
    }
}

/// Whether a case fails for a store with this defect. What it panics with is shown only if this test fails.
fn notices<C: Future<Output = ()>>(defect: Defect, case: impl FnOnce(Bench) -> C) -> bool {
    let constructor = async |clock: Arc<VirtualClock>| {
        let inner = MemoryStore::with_clock(clock);
        let disk = inner.clone();
        Specimen::new(Defective { inner, defect }).damaged_by(move |id| {
            disk.damage(id, |bytes| bytes[9] ^= 4);
            std::future::ready(())
        })
    };
    catch_unwind(AssertUnwindSafe(|| conformance::run(constructor, case))).is_err()
}

macro_rules! noticed {
    ($($test:ident: $defect:ident, $case:ident;)*) => {
        $(
            #[test]
            fn $test() {
                assert!(notices(Defect::$defect, conformance::$case), "the suite does not notice it");
            }
        )*
    };
}

noticed! {
    a_store_that_reads_and_then_writes_is_noticed:
        ReadsThenWrites, two_swaps_of_one_id_that_wait_together_have_one_winner;
    a_store_that_ignores_the_version_is_noticed:
        IgnoresTheVersion, a_swap_at_a_stale_version_meets_the_current_record;
    a_store_that_ignores_the_version_is_noticed_by_random_histories:
        IgnoresTheVersion, random_histories_agree_with_the_model;
    a_store_that_answers_and_has_not_written_is_noticed:
        NeverWrites, an_acknowledged_swap_is_seen_by_whoever_reads_next;
    a_store_that_never_writes_is_noticed:
        NeverWrites, a_first_swap_is_applied_and_read_back_exactly;
    a_store_that_hides_the_winner_is_noticed:
        HidesTheWinner, a_swap_that_expects_absence_meets_the_very_record_that_is_there;
    a_store_that_takes_an_unreadable_record_for_absent_is_noticed:
        TakesUnreadableForAbsent, a_damaged_record_is_unreadable_and_never_absent;
    a_store_that_forgets_any_version_is_noticed:
        ForgetsAnyVersion, forget_deletes_only_what_is_still_at_its_version_and_counts_it;
    a_store_whose_sweeper_deletes_a_new_claim_is_noticed:
        ForgetsAnyVersion, a_version_never_comes_back_after_the_record_was_forgotten;
    a_store_that_counts_what_was_asked_for_is_noticed:
        CountsWhatWasAskedFor, forgetting_what_is_absent_is_no_error_and_counts_nothing;
    a_store_with_a_time_of_its_own_is_noticed:
        HasItsOwnTime, every_answer_tells_the_time_of_the_stores_clock;
    a_store_that_loses_the_rest_of_a_long_list_is_noticed:
        LosesTheRestOfALongList, pages_of_due_records_lose_and_repeat_nothing;
    a_store_that_repeats_the_first_page_is_noticed:
        RepeatsTheFirstPage, pages_of_filtered_records_lose_and_repeat_nothing;
    a_store_that_lists_the_latest_first_is_noticed:
        ListsTheLatestFirst, the_longest_overdue_comes_first;
    a_store_that_lists_what_is_not_due_is_noticed:
        ListsEverything, what_is_due_exactly_now_is_listed_and_a_microsecond_later_is_not;
    a_store_that_lists_dead_letters_as_due_is_noticed:
        ListsEverything, dead_letters_and_soft_expired_records_are_never_due;
    a_store_that_drops_repeated_headers_is_noticed:
        DropsHeaders, a_first_swap_is_applied_and_read_back_exactly;
    a_store_that_accepts_any_cursor_is_noticed:
        AcceptsAnyCursor, a_cursor_that_the_store_never_gave_is_refused;
}
