//! The suite: what a driver hands to it, and what its cases work with.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use onceward::receipts::{ReceiptRow, ReceiptTable};
use onceward::store::{Clock, SystemClock};
use onceward::{Fence, OperationId};

use super::{Handler, HandlerError, Step};
use crate::sample;

/// Runs every case against the receipt table that a constructor makes.
///
/// The constructor is an `async fn() -> Specimen` whose table is empty and whose database has the machine's clock.
///
/// ```
/// use onceward_testkit::receipts::{MemoryReceipts, Specimen};
///
/// async fn memory() -> Specimen {
///     let table = MemoryReceipts::new();
///     Specimen::new(table.clone(), move || {
///         let handler = table.handler();
///         async { handler }
///     })
/// }
///
/// onceward_testkit::receipt_conformance!(memory);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! receipt_conformance {
    ($constructor:path) => {
        $crate::receipt_conformance!(@each $constructor:
            a_void_makes_a_row_and_its_owner_can_no_longer_commit,
            a_void_raises_the_fence_and_never_lowers_it,
            a_void_leaves_the_answer_and_the_phases_as_they_are,
            a_release_is_a_void_that_removes_the_outside_call_that_was_begun,
            a_transaction_that_stays_open_holds_the_void_and_its_commit_wins,
            a_transaction_that_rolls_back_leaves_the_void_to_win,
            a_void_that_waits_sees_what_was_committed_meanwhile,
            a_void_that_is_dropped_while_it_waits_does_no_harm,
            a_void_and_an_owner_that_race_have_one_winner,
            a_fence_that_fits_no_column_is_refused_and_the_largest_one_is_not,
            an_answer_is_read_back_as_it_was_committed,
            an_answer_that_no_client_could_get_is_said_to_be_unusable,
            what_was_rolled_back_is_not_there,
            a_handler_that_dies_leaves_nothing_and_holds_nothing,
            the_same_request_twice_is_committed_once,
            a_second_delivery_waits_for_the_first_and_then_fails,
            a_second_delivery_succeeds_where_the_first_was_rolled_back,
            a_fence_above_the_rows_takes_the_operation_over,
            steps_follow_one_another_and_only_in_order,
            an_outside_call_is_seen_from_its_beginning_to_its_end,
            a_row_is_made_only_by_a_young_fence_and_kept_by_any,
            a_handler_that_fails_once_cannot_commit_its_other_writes,
            a_note_stands_from_the_first_write_until_it_is_erased,
            a_note_is_no_row,
            old_rows_are_listed_in_pages_and_young_ones_are_not,
            only_a_row_that_still_has_its_fence_is_deleted,
        );
    };
    (@each $constructor:path: $($case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::receipts::run($constructor, $crate::receipts::cases::$case);
            }
        )*
    };
}

type Connect = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Box<dyn Handler>> + Send>> + Send + Sync>;

/// What a driver hands to the suite: a table, how its handlers connect, and what must live as long.
pub struct Specimen {
    table: Arc<dyn ReceiptTable>,
    connect: Connect,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl Specimen {
    /// A new, empty table, and what connects a new handler.
    pub fn new<F, H>(table: impl ReceiptTable, connect: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = H> + Send + 'static,
        H: Handler + 'static,
    {
        let connect: Connect = Box::new(move || {
            let connected = connect();
            Box::pin(async move { Box::new(connected.await) as Box<dyn Handler> })
        });
        Self { table: Arc::new(table), connect, kept: Vec::new() }
    }

    /// Keeps a thing, such as a temporary directory, until the case is over.
    pub fn keeping(mut self, thing: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(thing));
        self
    }
}

impl fmt::Debug for Specimen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Specimen").field("kept", &self.kept.len()).finish_non_exhaustive()
    }
}

/// Runs one case against a new table, on a runtime with two workers so that races are races.
pub fn run<S, C>(constructor: impl FnOnce() -> S, case: impl FnOnce(Bench) -> C)
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
        let Specimen { table, connect, kept } = constructor().await;
        case(Bench { table, connect, now: Now(SystemClock.now().as_micros()) }).await;
        drop(kept);
    });
}

struct Now(u64);

/// What a case works with.
pub struct Bench {
    /// The table under test.
    pub table: Arc<dyn ReceiptTable>,
    connect: Connect,
    now: Now,
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench").finish_non_exhaustive()
    }
}

impl Bench {
    pub(super) async fn handler(&self) -> Box<dyn Handler> {
        (self.connect)().await
    }

    /// A handler with an open transaction.
    pub(super) async fn begun(&self) -> Box<dyn Handler> {
        let mut handler = self.handler().await;
        handler.begin().await.expect("a healthy database begins a transaction");
        handler
    }

    /// The n-th operation, and a fence of the time when the case began.
    pub(super) fn operation(&self, n: u64) -> (OperationId, Fence) {
        let fence = Fence::from_number(self.now.0 + n);
        (OperationId::windowed(sample::id(n), fence), fence)
    }

    /// The first step of the n-th operation.
    pub(super) fn step(&self, n: u64) -> Step<'static> {
        let (operation, fence) = self.operation(n);
        Step::first(operation, fence)
    }

    /// A fence of this long before the case began.
    pub(super) fn fence_aged(&self, age: Duration) -> Fence {
        Fence::from_number(self.now.0 - u64::try_from(age.as_micros()).expect("an age of days fits"))
    }

    pub(super) async fn void(&self, operation: OperationId, fence: Fence) -> ReceiptRow {
        self.table.void(operation, fence).await.expect("a healthy table voids")
    }

    pub(super) async fn read(&self, operation: OperationId) -> Option<ReceiptRow> {
        self.table.read(operation).await.expect("a healthy table reads")
    }
}

/// The call failed as it had to. A database that reports a conflict of transactions instead is as safe.
#[track_caller]
pub(super) fn assert_refused(
    answer: &Result<(), HandlerError>,
    is_expected: impl FnOnce(&HandlerError) -> bool,
) {
    match answer {
        Err(HandlerError::Serialization(_)) => {}
        Err(error) if is_expected(error) => {}
        other => panic!("it was not refused as it should have been: {other:?}"),
    }
}

pub(super) fn is_fenced(error: &HandlerError) -> bool {
    matches!(error, HandlerError::Fenced(_))
}

pub(super) fn is_completed(error: &HandlerError) -> bool {
    matches!(error, HandlerError::Completed(_))
}

pub(super) fn is_moved(error: &HandlerError) -> bool {
    matches!(error, HandlerError::Moved(_))
}

/// The status of a row's answer.
#[track_caller]
pub(super) fn status(row: &ReceiptRow) -> Option<u16> {
    row.reply.as_ref().map(|reply| reply.as_ref().expect("the answer can be used").status)
}
