//! What every store must do, as tests that a driver gets by naming a constructor.
//!
//! ```
//! use std::sync::Arc;
//! use onceward::MemoryStore;
//! use onceward_testkit::conformance::Specimen;
//! use onceward_testkit::VirtualClock;
//!
//! async fn memory(clock: Arc<VirtualClock>) -> Specimen {
//!     Specimen::new(MemoryStore::with_clock(clock))
//! }
//!
//! onceward_testkit::conformance!(memory);
//! # fn main() {}
//! ```
//!
//! Each case gets a new, empty store and has it to itself.

mod damage;
mod find;
mod history;
mod race;
mod scan;
mod swap;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use onceward::store::{Scan, Seen, Stamped, Store, Swapped, Version, Which};
use onceward::{Record, RecordId};

use crate::{VirtualClock, sample};

pub use damage::*;
pub use find::*;
pub use history::*;
pub use race::*;
pub use scan::*;
pub use swap::*;

/// Runs every case, and every scenario script, against the store that a constructor makes.
///
/// The constructor is an `async fn(Arc<VirtualClock>) -> Specimen` whose store is empty and uses that clock. If
/// the specimen can damage a row, `conformance!(constructor, with damage)` adds the cases about unreadable records.
#[macro_export]
macro_rules! conformance {
    ($constructor:path) => {
        $crate::conformance!(@each $constructor:
            an_id_that_was_never_written_is_absent,
            a_first_swap_is_applied_and_read_back_exactly,
            a_later_swap_replaces_every_field,
            a_swap_that_expects_absence_meets_the_very_record_that_is_there,
            a_swap_at_a_stale_version_meets_the_current_record,
            a_swap_that_expects_a_record_meets_absence,
            a_version_rises_with_every_write,
            a_version_never_comes_back_after_the_record_was_forgotten,
            forget_deletes_only_what_is_still_at_its_version_and_counts_it,
            forgetting_what_is_absent_is_no_error_and_counts_nothing,
            every_answer_tells_the_time_of_the_stores_clock,
            an_acknowledged_swap_is_seen_by_whoever_reads_next,
            reads_leave_records_as_they_are,
            of_many_concurrent_swaps_of_one_id_exactly_one_is_applied,
            concurrent_swaps_of_different_ids_are_all_applied,
            two_swaps_of_one_id_that_wait_together_have_one_winner,
            swaps_that_wait_together_each_get_their_own_answer,
            of_a_racing_swap_and_forget_exactly_one_takes_place,
            concurrent_increments_are_never_lost,
            a_swap_dropped_midway_leaves_the_old_record_or_the_new_one,
            each_due_scan_lists_its_own_kind,
            what_is_due_exactly_now_is_listed_and_a_microsecond_later_is_not,
            dead_letters_and_soft_expired_records_are_never_due,
            the_longest_overdue_comes_first,
            pages_of_due_records_lose_and_repeat_nothing,
            a_sweeper_that_changes_what_it_lists_still_meets_every_record,
            a_due_scan_follows_what_a_swap_changed,
            a_filter_lists_what_agrees_with_every_field_given,
            pages_of_filtered_records_lose_and_repeat_nothing,
            a_cursor_that_the_store_never_gave_is_refused,
            a_limit_of_nothing_lists_nothing_and_a_limit_of_one_lists_one,
            random_histories_agree_with_the_model,
            an_unknown_outcome_is_asked_about_by_one_engine_at_a_time_until_it_is_found,
            an_unknown_outcome_that_no_find_decides_is_a_dead_letter_and_is_asked_about_no_more,
        );
        mod scenarios {
            use super::*;
            $crate::each_scenario!(store_scenario_tests, $constructor);
        }
    };
    ($constructor:path, with damage) => {
        $crate::conformance!($constructor);
        $crate::conformance!(@each $constructor:
            a_damaged_record_is_unreadable_and_never_absent,
            a_damaged_record_is_not_claimed_anew,
            a_damaged_record_can_be_replaced_or_forgotten_at_its_version,
            a_damaged_record_is_listed_and_does_not_hide_its_neighbours,
        );
    };
    (@each $constructor:path: $($case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::run($constructor, $crate::conformance::$case);
            }
        )*
    };
}

type Damage = Box<dyn Fn(RecordId) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What a driver hands to the suite: a store, and what must live as long as it.
pub struct Specimen {
    store: Arc<dyn Store>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
    damage: Option<Damage>,
}

impl Specimen {
    /// A new, empty store.
    pub fn new(store: impl Store) -> Self {
        Self { store: Arc::new(store), kept: Vec::new(), damage: None }
    }

    /// Keeps a thing, such as a temporary directory, until the case is over.
    pub fn keeping(mut self, thing: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(thing));
        self
    }

    /// Sets how to flip a bit in the stored bytes of a record, without the store's knowledge.
    pub fn damaged_by<F>(mut self, damage: impl Fn(RecordId) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.damage = Some(Box::new(move |id| Box::pin(damage(id))));
        self
    }
}

impl fmt::Debug for Specimen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Specimen").field("kept", &self.kept.len()).finish_non_exhaustive()
    }
}

/// Runs one case against a new store, on a runtime with two workers so that races are races.
pub fn run<S, C>(constructor: impl FnOnce(Arc<VirtualClock>) -> S, case: impl FnOnce(Bench) -> C)
where
    S: Future<Output = Specimen>,
    C: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the operating system starts two threads");
    runtime.block_on(async {
        let clock = Arc::new(VirtualClock::standing_at(sample::START));
        let specimen = constructor(clock.clone()).await;
        let (store, kept, damage) = (specimen.store, specimen.kept, specimen.damage);
        case(Bench { store, clock, damage }).await;
        drop(kept);
    });
}

/// What a case works with. Its methods expect that the store does not fail: no case but those about damage may.
pub struct Bench {
    /// The store under test.
    pub store: Arc<dyn Store>,
    /// The clock that it uses.
    pub clock: Arc<VirtualClock>,
    damage: Option<Damage>,
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl Bench {
    async fn seen(&self, id: RecordId) -> Seen {
        self.store.load(id).await.expect("a healthy store loads")
    }

    async fn load(&self, id: RecordId) -> Option<Stamped> {
        self.seen(id).await.record
    }

    async fn swap(&self, id: RecordId, expect: Option<Version>, next: &Record) -> Swapped {
        self.store.swap(id, expect, next.clone()).await.expect("a healthy store swaps")
    }

    /// Writes a record that must be applied.
    async fn put(&self, id: RecordId, expect: Option<Version>, next: &Record) -> Version {
        match self.swap(id, expect, next).await {
            Swapped::Applied { version, .. } => version,
            Swapped::Conflict(seen) => {
                panic!("the swap of {id} expected {expect:?}, but the store has {seen:?}")
            }
        }
    }

    async fn forget(&self, records: &[(RecordId, Version)]) -> usize {
        self.store.forget(records.to_vec()).await.expect("a healthy store forgets")
    }

    /// Follows the cursors of a scan to its end, and gives every page.
    async fn pages(&self, which: Which, limit: usize) -> Vec<onceward::store::Page> {
        let mut pages: Vec<onceward::store::Page> = Vec::new();
        let mut after = None;
        loop {
            let page = self
                .store
                .scan(Scan { which: which.clone(), after, limit })
                .await
                .expect("a healthy store scans");
            assert!(page.entries.len() <= limit, "a page of at most {limit} has {}", page.entries.len());
            after = page.next.clone();
            pages.push(page);
            // Far more pages than any case has records: a cursor that leads in circles fails instead of hanging.
            assert!(pages.len() < 1000, "the cursors of {which:?} never end");
            if after.is_none() {
                return pages;
            }
        }
    }

    /// The ids of a whole scan, in its order.
    async fn listed(&self, which: Which, limit: usize) -> Vec<RecordId> {
        self.pages(which, limit)
            .await
            .into_iter()
            .flat_map(|page| page.entries)
            .map(|entry| entry.id)
            .collect()
    }

    async fn damage(&self, id: RecordId) {
        let damage =
            self.damage.as_ref().expect("`with damage` needs a specimen that says how: `damaged_by`");
        damage(id).await;
    }
}

/// The record that a conflict carried.
#[track_caller]
fn conflict(swapped: Swapped) -> Option<Stamped> {
    match swapped {
        Swapped::Conflict(seen) => seen.record,
        Swapped::Applied { version, .. } => {
            panic!("the swap was applied as {version}, and must not have been")
        }
    }
}
