//! Unknown outcomes that receipt rows decide, with handlers that have transactions in a database of their own.

use std::sync::Arc;
use std::time::Duration;

use onceward::engine::Resolve;
use onceward::event::Resolution;
use onceward::plumbing::time::sleep;
use onceward::receipts::{ReceiptFinder, ReceiptTable as _};
use onceward::reconcile::{FindTerms, Reconciling};
use onceward::record::{Letter, Receipts, State};
use onceward::store::Clock as _;
use onceward::{
    Claim, Engine, Fence, Identity, MemoryStore, OpenError, Operation, Outcome, Ran, Refusal, Reply,
};
use onceward_testkit::VirtualClock;
use onceward_testkit::receipts::{Answer, Handler as _, MemoryHandler, MemoryReceipts, Step};

use super::{SECOND, builder, claim_of, clock, identity_of_tests};

pub const ROUTE: &str = "orders";

/// An engine whose work on one route commits receipts.
pub struct Shop {
    pub engine: Engine,
    pub table: MemoryReceipts,
    pub finder: Arc<ReceiptFinder>,
    pub store: MemoryStore,
    pub clock: Arc<VirtualClock>,
}

/// Where a handler stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// It answers, and the answer arrives.
    Whole,
    /// It dies before its commit.
    BeforeCommit,
    /// It dies after its commit.
    AfterCommit,
    /// It answers 2xx, and wrote no row.
    WithoutRow,
    /// It dies after it committed its first phase.
    AfterPhase,
    /// It dies after it began an outside call.
    AfterEntering,
}

impl Shop {
    pub async fn open() -> Self {
        let clock = clock();
        Self::on(MemoryStore::with_clock(clock.clone()), MemoryReceipts::with_clock(clock.clone()), clock)
            .await
            .unwrap()
    }

    pub async fn on(
        store: MemoryStore,
        table: MemoryReceipts,
        clock: Arc<VirtualClock>,
    ) -> Result<Self, OpenError> {
        let terms = FindTerms::default().attempts(3).backoff(SECOND).max_backoff(SECOND * 4);
        let finder = ReceiptFinder::new(Identity::in_namespace("tests"), &Reconciling::default()).route(
            ROUTE,
            Arc::new(table.clone()),
            terms,
        );
        let finder = Arc::new(finder);
        let builder = builder(Arc::new(store.clone()), 1).clock(clock.clone()).reconciler(finder.clone());
        let engine = builder.open(identity_of_tests()).await?;
        Ok(Self { engine, table, finder, store, clock })
    }

    pub fn claim(key: &str) -> Claim {
        claim_of(key, "body").route(ROUTE).unwrap().receipts(Receipts::Kept)
    }

    pub async fn order(&self, key: &str, ends: Ends) -> Ran {
        let table = self.table.clone();
        let work = async move |operation| handle(table.handler(), operation, ends).await;
        self.engine.run(Self::claim(key), work).await.unwrap()
    }

    /// A first order that arrives, after which voids are controlled.
    pub async fn first_order(&self) {
        assert!(matches!(self.order("first", Ends::Whole).await, Ran::Executed { .. }));
        // The check of its receipt runs in a task.
        sleep(SECOND).await;
        assert!(self.finder.statuses()[0].controlled);
    }

    /// An operator says that the handler is corrected now.
    pub async fn resume_voids(&self) {
        self.finder.resume_voids(ROUTE, self.clock.now()).await.unwrap().unwrap();
    }

    pub async fn state(&self, key: &str) -> State {
        self.record(key).await.state
    }
}

pub async fn handle(mut database: MemoryHandler, operation: Operation, ends: Ends) -> Outcome {
    let step = Step::first(operation.operation_id(), operation.fence());
    database.begin().await.unwrap();
    match ends {
        Ends::WithoutRow => return Outcome::completed(Reply::new("forgot").with_status(201)),
        Ends::AfterPhase => {
            database.checkpoint(step, "packed", Some("{\"box\":7}")).await.unwrap();
            database.commit().await.unwrap();
            return Outcome::lost("the handler died after its first phase");
        }
        Ends::AfterEntering => {
            database.enter(step, "charged", None).await.unwrap();
            database.commit().await.unwrap();
            return Outcome::lost("the handler died in an outside call");
        }
        Ends::Whole | Ends::BeforeCommit | Ends::AfterCommit => {}
    }
    if let Err(error) = database.complete(step, Answer::json(201, b"{\"order\":1}")).await {
        return Outcome::lost(format!("the handler's transaction failed: {error:?}"));
    }
    if ends == Ends::BeforeCommit {
        return Outcome::lost("the handler died before its commit");
    }
    database.commit().await.unwrap();
    match ends {
        Ends::AfterCommit => Outcome::lost("the handler died after its commit"),
        _ => Outcome::completed(Reply::new("{\"order\":1}").with_status(201)),
    }
}

pub fn is_unknown(ran: &Ran, expected: Letter) -> bool {
    matches!(ran, Ran::Refused(Refusal::Unknown { letter, .. }) if *letter == expected)
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_died_before_its_commit_is_released_within_a_second() {
    let shop = Shop::open().await;
    shop.first_order().await;
    assert!(matches!(shop.order("k", Ends::BeforeCommit).await, Ran::Unknown(_)));
    sleep(SECOND).await;
    assert!(matches!(shop.state("k").await, State::FailedRetryable { .. }));
    assert!(matches!(shop.order("k", Ends::Whole).await, Ran::Executed { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_died_after_its_commit_is_completed_with_the_rows_answer() {
    let shop = Shop::open().await;
    // The row is the proof, whether others were seen before or not.
    assert!(matches!(shop.order("k", Ends::AfterCommit).await, Ran::Unknown(_)));
    sleep(SECOND).await;
    match shop.order("k", Ends::Whole).await {
        Ran::Replayed { reply, .. } => {
            assert_eq!((reply.status, &reply.body[..]), (201, &b"{\"order\":1}"[..]))
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_waits_gets_what_the_find_brings() {
    let shop = Shop::open().await;
    let table = shop.table.clone();
    let work = async move |operation: Operation| {
        let mut database = table.handler();
        let step = Step::first(operation.operation_id(), operation.fence());
        database.begin().await.unwrap();
        database.complete(step, Answer::json(201, b"{\"order\":1}")).await.unwrap();
        // Its transaction stays open behind its lost answer, and the void waits for it.
        tokio::spawn(async move {
            sleep(SECOND).await;
            database.commit().await.unwrap();
        });
        Outcome::lost("the connection to the handler broke")
    };
    assert!(matches!(shop.engine.run(Shop::claim("k"), work).await.unwrap(), Ran::Unknown(_)));
    let waiting = Shop::claim("k").attach(SECOND * 10).unwrap();
    let ran = shop.engine.run(waiting, async |_| panic!("a retry must not execute")).await.unwrap();
    assert!(matches!(ran, Ran::Replayed { .. }), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn work_that_goes_on_after_its_timeout_is_found_out_when_it_ends_or_when_its_time_is_over() {
    for (works_for, found_after) in [(SECOND * 3, SECOND * 4), (SECOND * 900, SECOND * 25)] {
        let shop = Shop::open().await;
        shop.first_order().await;
        let claim = Shop::claim("k").timeout(SECOND).unwrap().resume_after(SECOND * 20).unwrap();
        let work = async move |_| {
            sleep(works_for).await;
            Outcome::lost("the handler died at last")
        };
        assert!(matches!(shop.engine.run(claim, work).await.unwrap(), Ran::Unknown(_)));
        sleep(SECOND).await;
        assert!(
            is_unknown(&shop.order("k", Ends::Whole).await, Letter::Live),
            "it was voided while it went on"
        );
        sleep(found_after).await;
        assert!(matches!(shop.order("k", Ends::Whole).await, Ran::Executed { .. }), "{works_for:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_row_of_any_handler_nothing_is_released_and_a_person_decides() {
    let shop = Shop::open().await;
    shop.order("k", Ends::BeforeCommit).await;
    sleep(SECOND).await;
    // Its fence was raised, so no later find could tell more.
    assert!(is_unknown(&shop.order("k", Ends::Whole).await, Letter::Dead));
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_older_than_the_first_row_is_not_released() {
    let shop = Shop::open().await;
    shop.order("k", Ends::BeforeCommit).await;
    shop.first_order().await;
    sleep(SECOND * 15).await;
    assert!(is_unknown(&shop.order("k", Ends::Whole).await, Letter::Dead));
    // The handler's row of this very operation would have been proof.
    shop.order("l", Ends::BeforeCommit).await;
    sleep(SECOND).await;
    assert!(matches!(shop.order("l", Ends::Whole).await, Ran::Executed { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_row_of_a_later_execution_is_not_taken_for_this_ones_answer() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let table = shop.table.clone();
    let work = async move |operation: Operation| {
        let mut database = table.handler();
        let later = Fence::from_number(operation.fence().as_number() + 1_000_000);
        database.begin().await.unwrap();
        let step = Step::first(operation.operation_id(), later);
        database.complete(step, Answer::json(201, b"{\"order\":2}")).await.unwrap();
        database.commit().await.unwrap();
        Outcome::lost("the connection to the handler broke")
    };
    shop.engine.run(Shop::claim("k"), work).await.unwrap();
    sleep(SECOND).await;
    assert!(is_unknown(&shop.order("k", Ends::Whole).await, Letter::Dead));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_forgets_its_row_suspends_the_voids_of_its_route() {
    let shop = Shop::open().await;
    shop.first_order().await;
    assert!(matches!(shop.order("forgotten", Ends::WithoutRow).await, Ran::Executed { .. }));
    sleep(SECOND).await;
    assert!(shop.finder.statuses()[0].suspended);
    let voids = shop.table.voids().len();
    shop.order("k", Ends::BeforeCommit).await;
    sleep(SECOND * 20).await;
    assert!(is_unknown(&shop.order("k", Ends::Whole).await, Letter::Dead));
    assert_eq!(shop.table.voids().len(), voids, "a void was made while they are suspended");
    // A row with an answer is proof all the same.
    shop.order("l", Ends::AfterCommit).await;
    sleep(SECOND).await;
    assert!(matches!(shop.order("l", Ends::Whole).await, Ran::Replayed { .. }));
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_row_that_comes_after_its_timeout_suspends_the_voids_too() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let claim = Shop::claim("late").timeout(SECOND).unwrap().resume_after(SECOND * 20).unwrap();
    let table = shop.table.clone();
    let work = async move |operation| {
        sleep(SECOND * 3).await;
        handle(table.handler(), operation, Ends::WithoutRow).await
    };
    assert!(matches!(shop.engine.run(claim, work).await.unwrap(), Ran::Unknown(_)));
    sleep(SECOND * 5).await;
    assert!(shop.finder.statuses()[0].suspended);
}

#[tokio::test(start_paused = true)]
async fn resumed_voids_release_only_what_is_begun_after_the_next_row() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.order("forgotten", Ends::WithoutRow).await;
    sleep(SECOND).await;
    shop.order("old", Ends::BeforeCommit).await;
    shop.resume_voids().await;
    assert!(!shop.finder.statuses()[0].suspended && !shop.finder.statuses()[0].controlled);
    sleep(SECOND).await;
    shop.order("second", Ends::Whole).await;
    sleep(SECOND * 20).await;
    assert!(is_unknown(&shop.order("old", Ends::Whole).await, Letter::Dead));
    shop.order("new", Ends::BeforeCommit).await;
    sleep(SECOND).await;
    assert!(matches!(shop.order("new", Ends::Whole).await, Ran::Executed { .. }));
    assert!(shop.finder.resume_voids("no such route", shop.clock.now()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_row_from_before_the_voids_were_resumed_is_not_the_next_one() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.order("forgotten", Ends::WithoutRow).await;
    sleep(SECOND).await;
    shop.table.set_outage(Some("it is away"));
    shop.order("kept", Ends::AfterCommit).await;
    sleep(SECOND).await;
    // This handler may have committed its effects without a row.
    shop.order("lost", Ends::BeforeCommit).await;
    shop.table.set_outage(None);
    shop.resume_voids().await;
    sleep(SECOND * 20).await;
    assert!(matches!(shop.order("kept", Ends::Whole).await, Ran::Replayed { .. }));
    assert!(is_unknown(&shop.order("lost", Ends::Whole).await, Letter::Dead));
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_away_is_no_finding_and_decides_when_it_is_back() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.table.set_outage(Some("it is away"));
    let table = shop.table.clone();
    let died = async move |_| {
        drop(table);
        Outcome::lost("the handler died with its database")
    };
    shop.engine.run(Shop::claim("k"), died).await.unwrap();
    sleep(SECOND * 600).await;
    assert!(is_unknown(&shop.order_refused("k").await, Letter::Live), "an outage must not make dead letters");
    shop.table.set_outage(None);
    sleep(SECOND * 10).await;
    assert!(matches!(shop.order("k", Ends::Whole).await, Ran::Executed { .. }));
}

#[tokio::test(start_paused = true)]
async fn an_outside_call_that_was_begun_is_never_released_by_a_void() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.order("k", Ends::AfterEntering).await;
    sleep(SECOND).await;
    assert!(is_unknown(&shop.order("k", Ends::Whole).await, Letter::Dead));
    let record = shop.record("k").await;
    assert!(record.finding.unwrap().text.contains("\"charged\""));
}

#[tokio::test(start_paused = true)]
async fn work_that_committed_a_phase_goes_on_after_it() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.order("k", Ends::AfterPhase).await;
    sleep(SECOND).await;
    let ran = shop.engine.run(Shop::claim("k"), async |operation| {
        let point = operation.recovery_point().unwrap();
        assert_eq!((point.name(), &point.data()[..]), ("packed", &b"{\"box\":7}"[..]));
        Outcome::completed(Reply::new("packed before"))
    });
    assert!(matches!(ran.await.unwrap(), Ran::Executed { .. }));
}

#[tokio::test(start_paused = true)]
async fn the_table_of_another_store_is_refused() {
    let shop = Shop::open().await;
    // A second gateway on the same store shares the table, also after a restart.
    Shop::on(shop.store.clone(), shop.table.clone(), shop.clock.clone()).await.unwrap();
    let clock = clock();
    sleep(SECOND).await;
    let other = Shop::on(MemoryStore::with_clock(clock.clone()), shop.table.clone(), clock).await;
    let refused = other.err().unwrap().to_string();
    assert!(refused.contains("bound to store-"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn work_that_was_claimed_before_its_route_had_receipts_is_left_to_a_person() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let before = claim_of("k", "body").route(ROUTE).unwrap();
    shop.engine.run(before, async |_| Outcome::lost("hung up")).await.unwrap();
    sleep(SECOND).await;
    assert!(is_unknown(&shop.order("k", Ends::Whole).await, Letter::Dead));
    assert!(shop.table.voids().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_operator_who_comes_first_wins_and_the_finder_changes_nothing() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.table.set_outage(Some("it is away"));
    shop.order_refused("k").await;
    let id = shop.id("k");
    let verdict = Resolution::Completed(Arc::new(Reply::new("seen in the books")));
    let resolve = Resolve { verdict, by: "ann", reason: "seen", seen: None };
    shop.engine.resolve(id, resolve).await.unwrap();
    shop.table.set_outage(None);
    sleep(SECOND * 30).await;
    match shop.order("k", Ends::Whole).await {
        Ran::Replayed { reply, .. } => assert_eq!(reply.body, "seen in the books"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn rows_are_deleted_when_their_record_is_gone_and_no_handler_can_make_them_again() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let kept = Duration::from_secs(3 * 86_400);
    let terms = onceward::Terms { retention: kept, ..onceward::Terms::default() };
    let claim = Shop::claim("long").terms(terms).unwrap();
    let table = shop.table.clone();
    shop.engine
        .run(claim, async move |operation| handle(table.handler(), operation, Ends::Whole).await)
        .await
        .unwrap();
    assert_eq!(shop.table.len(), 2);
    // The record of the first is swept after a day and its grace.
    sleep(Duration::from_secs(47 * 3600)).await;
    assert_eq!(shop.finder.delete_old_rows(&shop.engine).await.unwrap(), 0);
    sleep(Duration::from_secs(2 * 3600)).await;
    assert_eq!(shop.finder.delete_old_rows(&shop.engine).await.unwrap(), 1);
    assert_eq!(shop.finder.delete_old_rows(&shop.engine).await.unwrap(), 0);
    sleep(Duration::from_secs(3 * 86_400)).await;
    assert_eq!(shop.finder.delete_old_rows(&shop.engine).await.unwrap(), 1);
    // Onceward's own notes are no rows.
    assert!(shop.table.noted("store").await.unwrap().is_some());
}

impl Shop {
    pub fn id(&self, key: &str) -> onceward::RecordId {
        self.engine.id_of(&onceward::Scope::new("acme").unwrap(), &onceward::Key::new(key).unwrap())
    }

    pub async fn record(&self, key: &str) -> onceward::Record {
        self.engine.load(self.id(key)).await.unwrap().unwrap().record
    }

    /// A request whose work cannot reach the database.
    pub async fn order_refused(&self, key: &str) -> Ran {
        let work = async |_| Outcome::lost("the handler's database is away");
        self.engine.run(Self::claim(key), work).await.unwrap()
    }
}
