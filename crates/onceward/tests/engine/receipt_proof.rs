//! Limits of receipt rows: handlers that leave rows out, verdicts of operators, and the log lines about both.

use std::sync::Arc;

use onceward::engine::{IdentityChange, Operated, Resolve};
use onceward::event::Resolution;
use onceward::plumbing::time::sleep;
use onceward::receipts::ReceiptFinder;
use onceward::reconcile::{FindTerms, Finding, Reconciling};
use onceward::record::Letter;
use onceward::store::Clock as _;
use onceward::{EngineError, Fence, Identity, OpenError, Operation, Outcome, Ran, Reply};
use onceward_testkit::receipts::{Answer, Handler as _, Step};

use super::log::Log;
use super::receipts::{Ends, ROUTE, Shop, handle, is_unknown};
use super::{SECOND, builder, identity_of_tests};

/// Work that has an effect and leaves out its row, and dies.
async fn forgets_and_dies(shop: &Shop, key: &str) -> Ran {
    shop.engine.run(Shop::claim(key), async |_| Outcome::lost("it died after its effect")).await.unwrap()
}

async fn resolve_as_retryable(shop: &Shop, key: &str) -> Result<Operated, EngineError> {
    let resolve =
        Resolve { verdict: Resolution::Retryable, by: "ann", reason: "it did not happen", seen: None };
    shop.engine.resolve(shop.id(key), resolve).await
}

#[tokio::test(start_paused = true)]
async fn a_row_of_work_that_was_begun_before_the_voids_were_resumed_proves_nothing_of_later_work() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.order("forgotten", Ends::WithoutRow).await;
    sleep(SECOND).await;
    let (engine, table) = (shop.engine.clone(), shop.table.clone());
    let slow = tokio::spawn(async move {
        let work = async move |operation| {
            sleep(SECOND * 4).await;
            handle(table.handler(), operation, Ends::Whole).await
        };
        engine.run(Shop::claim("slow"), work).await.unwrap()
    });
    sleep(SECOND / 2).await;
    forgets_and_dies(&shop, "k").await;
    sleep(SECOND).await;
    shop.finder.resume_voids(ROUTE, shop.clock.now()).await.unwrap().unwrap();
    assert!(matches!(slow.await.unwrap(), Ran::Executed { .. }));
    sleep(SECOND * 20).await;
    assert!(is_unknown(&shop.order("k", Ends::Whole).await, Letter::Dead));
}

#[tokio::test(start_paused = true)]
async fn a_row_in_a_window_that_is_older_than_the_handlers_receipts_proves_nothing_of_later_windows() {
    let shop = Shop::open().await;
    // The handler writes no rows yet.
    shop.engine.run(Shop::claim("old"), async |_| Outcome::Retryable("429".to_owned())).await.unwrap();
    sleep(SECOND).await;
    forgets_and_dies(&shop, "k").await;
    sleep(SECOND).await;
    // The next version of it does.
    assert!(matches!(shop.order("old", Ends::Whole).await, Ran::Executed { .. }));
    sleep(SECOND * 20).await;
    assert!(is_unknown(&shop.order("k", Ends::Whole).await, Letter::Dead));
}

#[tokio::test(start_paused = true)]
async fn rows_of_another_namespace_prove_nothing() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let namespace = Identity::in_namespace("other");
    let finder = ReceiptFinder::new(namespace, &Reconciling::default());
    let finder = Arc::new(finder.route(ROUTE, Arc::new(shop.table.clone()), FindTerms::default()));
    let refused =
        builder(Arc::new(shop.store.clone()), 2).clock(shop.clock.clone()).reconciler(finder.clone());
    let refused = refused.open(identity_of_tests()).await;
    assert!(matches!(&refused, Err(OpenError::Reconciler(_))), "{refused:?}");
    let other = builder(Arc::new(shop.store.clone()), 2).clock(shop.clock.clone()).reconciler(finder);
    let other =
        other.identity_change(IdentityChange::Accept).open(namespace.scoped_by("fixed").unwrap()).await;
    let ran = other.unwrap().run(Shop::claim("k"), async |_| Outcome::lost("it died")).await.unwrap();
    assert!(matches!(ran, Ran::Unknown(_)), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_success_without_a_row_suspends_the_voids_and_below_a_void_is_an_alarm() {
    for resume_after in [100, 1] {
        let shop = Shop::open().await;
        shop.first_order().await;
        let claim = Shop::claim("k").timeout(SECOND).unwrap().resume_after(SECOND * resume_after).unwrap();
        let table = shop.table.clone();
        let work = async move |operation| {
            sleep(SECOND * 6).await;
            handle(table.handler(), operation, Ends::WithoutRow).await
        };
        assert!(matches!(shop.engine.run(claim, work).await.unwrap(), Ran::Unknown(_)));
        sleep(SECOND * 4).await;
        assert!(!shop.finder.statuses()[0].suspended);
        sleep(SECOND * 4).await;
        assert!(shop.finder.statuses()[0].suspended, "{resume_after}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_of_another_execution_is_no_receipt_of_this_one() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let table = shop.table.clone();
    let work = async move |operation: Operation| {
        let mut database = table.handler();
        let earlier = Fence::from_number(operation.fence().as_number() - 1_000_000);
        database.begin().await.unwrap();
        let step = Step::first(operation.operation_id(), earlier);
        database.complete(step, Answer::json(201, b"{\"order\":1}")).await.unwrap();
        database.commit().await.unwrap();
        Outcome::completed(Reply::new("it caught OW002").with_status(201))
    };
    shop.engine.run(Shop::claim("k"), work).await.unwrap();
    sleep(SECOND).await;
    assert!(shop.finder.statuses()[0].suspended);
}

#[tokio::test(start_paused = true)]
async fn every_one_of_the_first_completions_is_checked_however_many_come_at_once() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let orders = (0..200).map(|n| {
        let (engine, table) = (shop.engine.clone(), shop.table.clone());
        let ends = if n == 150 { Ends::WithoutRow } else { Ends::Whole };
        tokio::spawn(async move {
            let work = async move |operation| handle(table.handler(), operation, ends).await;
            engine.run(Shop::claim(&format!("{n}")), work).await.unwrap()
        })
    });
    for order in orders.collect::<Vec<_>>() {
        order.await.unwrap();
    }
    sleep(SECOND * 2).await;
    assert!(shop.finder.statuses()[0].suspended);
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_checked_when_the_database_answers_again() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let table = shop.table.clone();
    let work = async move |operation| {
        let outcome = handle(table.handler(), operation, Ends::WithoutRow).await;
        table.set_outage(Some("a restart"));
        outcome
    };
    shop.engine.run(Shop::claim("k"), work).await.unwrap();
    sleep(SECOND * 3).await;
    assert!(!shop.finder.statuses()[0].suspended);
    shop.table.set_outage(None);
    sleep(SECOND * 10).await;
    assert!(shop.finder.statuses()[0].suspended);
}

#[tokio::test(start_paused = true)]
async fn a_person_who_releases_lets_the_next_execution_begin() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.order("k", Ends::AfterEntering).await;
    sleep(SECOND * 3).await;
    assert!(is_unknown(&shop.order("k", Ends::Whole).await, Letter::Dead));
    assert!(matches!(resolve_as_retryable(&shop, "k").await, Ok(Operated::Applied(_))));
    assert!(matches!(shop.order("k", Ends::Whole).await, Ran::Executed { .. }));
    // The former owner wakes up, and can commit nothing.
    let record = shop.record("k").await;
    assert!(record.voided.is_some() || record.fence > record.opened);
}

#[tokio::test(start_paused = true)]
async fn a_person_cannot_release_what_the_row_shows_to_be_done_or_what_cannot_be_voided() {
    let shop = Shop::open().await;
    shop.table.set_outage(Some("it is down"));
    shop.order("k", Ends::BeforeCommit).await;
    let away = resolve_as_retryable(&shop, "k").await;
    assert!(matches!(&away, Err(EngineError::NotVoided { .. })), "{away:?}");
    shop.table.set_outage(None);
    let operation = shop.record("k").await.operation(shop.id("k"));
    let mut late = shop.table.handler();
    late.begin().await.unwrap();
    let step = Step::first(operation, shop.record("k").await.fence);
    late.complete(step, Answer::json(201, b"{\"order\":1}")).await.unwrap();
    late.commit().await.unwrap();
    assert!(matches!(resolve_as_retryable(&shop, "k").await, Ok(Operated::Conflict(Some(_)))));
    assert!(matches!(shop.order("k", Ends::Whole).await, Ran::Replayed { .. }));
}

#[tokio::test(start_paused = true)]
async fn the_first_operation_of_a_route_is_released_by_a_person_after_the_phase_that_it_committed() {
    let shop = Shop::open().await;
    shop.order("k", Ends::AfterPhase).await;
    sleep(SECOND * 15).await;
    assert!(is_unknown(&shop.order("k", Ends::Whole).await, Letter::Dead));
    assert!(matches!(resolve_as_retryable(&shop, "k").await, Ok(Operated::Applied(_))));
    assert_eq!(shop.record("k").await.recovery_point.unwrap().name(), "packed");
}

#[tokio::test(start_paused = true)]
async fn work_whose_phase_proves_nothing_is_released_by_a_person_and_keeps_its_phase() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.order("forgotten", Ends::WithoutRow).await;
    sleep(SECOND).await;
    let table = shop.table.clone();
    let work = async move |operation: Operation| {
        handle(table.handler(), operation.clone(), Ends::AfterPhase).await;
        match operation.find().await.unwrap() {
            Finding::Unproven { void, why } if void.point.is_some() => Outcome::lost(why),
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(shop.engine.run(Shop::claim("k"), work).await.unwrap(), Ran::Unknown(_)));
    sleep(SECOND).await;
    assert!(matches!(resolve_as_retryable(&shop, "k").await, Ok(Operated::Applied(_))));
    assert_eq!(shop.record("k").await.recovery_point.unwrap().name(), "packed");
}

#[tokio::test(start_paused = true)]
async fn the_log_tells_each_step_of_an_outcome_that_is_found_out_and_what_comes_next() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let log = Log::listen();
    assert!(matches!(shop.order("released", Ends::BeforeCommit).await, Ran::Unknown(_)));
    sleep(SECOND).await;
    assert!(matches!(shop.order("completed", Ends::AfterCommit).await, Ran::Unknown(_)));
    sleep(SECOND).await;
    let lines = log.lines();
    let [lost, released, _, completed] = &lines[..] else { panic!("{lines:#?}") };
    assert_eq!(lost["cause"], "the handler died before its commit");
    let next = lost["next"].as_str().unwrap();
    assert!(next.starts_with("nothing: it is asked about within"), "{next}");
    for (line, state, reason, next) in [
        (
            released,
            "failed_retryable",
            "its execution had committed nothing, and cannot commit any more",
            "nothing: the next retry executes",
        ),
        (
            completed,
            "completed",
            "it had happened, and the find brought its answer",
            "nothing: every retry gets the answer",
        ),
    ] {
        assert_eq!(line["message"], "an unknown outcome is known now: retries are no longer refused");
        assert_eq!((&line["state"], &line["by"]), (&state.into(), &"reconciliation".into()), "{line}");
        assert_eq!((&line["reason"], &line["next"]), (&reason.into(), &next.into()), "{line}");
    }
    assert_eq!(lost["operation"], released["operation"]);
}

#[tokio::test(start_paused = true)]
async fn a_database_that_cannot_be_asked_is_logged_once_until_it_can_be() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let log = Log::listen();
    shop.table.set_outage(Some("the disk is full"));
    for key in ["a", "b"] {
        assert!(matches!(shop.order(key, Ends::BeforeCommit).await, Ran::Unknown(_)));
        sleep(SECOND * 10).await;
    }
    shop.table.set_outage(None);
    sleep(SECOND * 60).await;
    let about = |line: &serde_json::Value| line["message"].as_str().unwrap().contains("of a route can");
    let lines: Vec<_> = log.lines().into_iter().filter(about).collect();
    let [begin, end] = &lines[..] else { panic!("{lines:#?}") };
    assert_eq!((&begin["level"], &begin["route"]), (&"ERROR".into(), &ROUTE.into()));
    assert!(begin["cause"].as_str().unwrap().contains("the disk is full"), "{begin}");
    assert_eq!(end["message"], "unknown outcomes of a route can be found out again");
}

#[tokio::test(start_paused = true)]
async fn a_late_success_after_a_release_is_evidence_where_the_handler_is_not_known_to_write_rows() {
    for suspended in [false, true] {
        let shop = Shop::open().await;
        if suspended {
            shop.first_order().await;
            shop.order("forgotten", Ends::WithoutRow).await;
            sleep(SECOND).await;
        }
        let claim = Shop::claim("k").timeout(SECOND).unwrap().resume_after(SECOND * 60).unwrap();
        let work = async |_| {
            sleep(SECOND * 6).await;
            Outcome::completed(Reply::new("it was done").with_status(201))
        };
        assert!(matches!(shop.engine.run(claim, work).await.unwrap(), Ran::Unknown(_)));
        assert!(matches!(resolve_as_retryable(&shop, "k").await, Ok(Operated::Applied(_))));
        sleep(SECOND * 8).await;
        let retry = shop.order("k", Ends::Whole).await;
        assert!(matches!(&retry, Ran::Replayed { reply, .. } if reply.body == "it was done"), "{retry:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_verdict_that_was_not_stored_leaves_the_outside_call_in_its_row() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.order("k", Ends::AfterEntering).await;
    sleep(SECOND * 3).await;
    let operation = shop.record("k").await.operation(shop.id("k"));
    shop.table.lose_answers(1);
    let refused = resolve_as_retryable(&shop, "k").await;
    assert!(matches!(&refused, Err(EngineError::NotVoided { .. })), "{refused:?}");
    assert!(shop.table.committed(operation).unwrap().entered.is_some());
    assert!(matches!(resolve_as_retryable(&shop, "k").await, Ok(Operated::Applied(_))));
    assert!(shop.table.committed(operation).unwrap().entered.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_ends_after_its_timeout_is_voided_although_the_voids_are_suspended() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.order("forgotten", Ends::WithoutRow).await;
    sleep(SECOND).await;
    let claim = Shop::claim("k").timeout(SECOND).unwrap().resume_after(SECOND * 60).unwrap();
    let work = async |operation: Operation| {
        sleep(SECOND * 3).await;
        assert!(matches!(operation.find().await, Ok(Finding::Unproven { .. })));
        Outcome::completed(Reply::new("no such item").with_status(404))
    };
    assert!(matches!(shop.engine.run(claim, work).await.unwrap(), Ran::Unknown(_)));
    sleep(SECOND * 5).await;
    let record = shop.record("k").await;
    let row = shop.table.committed(record.operation(shop.id("k"))).unwrap();
    assert_eq!(row.fence, record.fence.above());
}

#[tokio::test(start_paused = true)]
async fn of_many_completions_at_once_one_asks_whether_suspended_voids_were_resumed() {
    let shop = Shop::open().await;
    shop.first_order().await;
    shop.order("forgotten", Ends::WithoutRow).await;
    sleep(SECOND).await;
    shop.table.set_outage(Some("it must not be asked"));
    let log = Log::listen();
    for key in ["a", "b", "c"] {
        let work = async |_| Outcome::completed(Reply::new("forgot").with_status(201));
        assert!(matches!(shop.engine.run(Shop::claim(key), work).await.unwrap(), Ran::Executed { .. }));
    }
    sleep(SECOND * 120).await;
    assert_eq!(log.lines().len(), 1, "{:?}", log.lines());
}

#[tokio::test(start_paused = true)]
async fn a_settlement_from_another_window_suspends_nothing() {
    let shop = Shop::open().await;
    shop.first_order().await;
    let outcome = Outcome::completed(Reply::new("of long ago").with_status(201));
    shop.engine.settle(shop.id("first"), Fence::from_number(7), outcome).await.unwrap();
    sleep(SECOND * 3).await;
    assert!(!shop.finder.statuses()[0].suspended);
}
