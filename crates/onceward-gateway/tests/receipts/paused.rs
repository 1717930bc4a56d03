//! Handlers that are stopped, as by a machine that hangs, and wake up after others have decided.

use onceward_testkit::wait::{self, seen};

use crate::control::Point;
use crate::shop::Database;
use crate::world::{HASTY, Led, Setup, is_of_receipt, operation_of};

/// Where a stopped handler keeps no void waiting: a row that is written is locked, and in SQLite the whole file is.
fn unlocked(database: Database) -> Vec<Point> {
    match database {
        Database::Sqlite => vec![Point::Begun],
        Database::Postgres => vec![Point::Begun, Point::Ordered],
    }
}

/// When a stopped handler wakes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Only the void keeps it from committing.
    Retry,
    /// The retry has a row of its own, under a later fence.
    Replay,
}

async fn wakes_up_in_vain(led: &mut Led) {
    led.delivery.signal("CONT");
    assert_eq!(led.delivery.ended().await.as_deref(), Some("OW001"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_wakes_up_after_the_void_cannot_commit_and_its_answer_is_not_taken() {
    for setup in Setup::all() {
        let world = setup.start(HASTY).await;
        for (point, wakes_up) in unlocked(setup.shop)
            .into_iter()
            .flat_map(|point| [(point, Before::Retry), (point, Before::Replay)])
        {
            let key = &format!("{}-{wakes_up:?}", point.name());
            let mut led = world.led(key, point).await;
            led.delivery.signal("STOP");
            led.delivery.say("go").await;
            let first = led.answer().await;
            assert_eq!(first.status_and_code(), (504, "idempotency_outcome_unknown".to_owned()));
            world.gateway.until_state(&operation_of(&first), "failed_retryable").await;
            if wakes_up == Before::Retry {
                wakes_up_in_vain(&mut led).await;
                assert_eq!(world.shop.orders_of(key).await, 0, "{key}");
            }
            let retry = world.retried(key).await;
            assert_eq!(retry.status, 201, "{retry:?}");
            if wakes_up == Before::Replay {
                wakes_up_in_vain(&mut led).await;
            }
            let replay = world.order(key).await;
            assert!(replay.is_replayed() && replay.body == retry.body, "{replay:?}");
            assert_eq!(world.shop.orders_of(key).await, 1, "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_is_stopped_with_its_row_written_keeps_the_void_waiting_and_then_commits() {
    for setup in Setup::all() {
        let world = setup.start(HASTY).await;
        let mut led = world.led("k", Point::Written).await;
        led.delivery.signal("STOP");
        let first = led.answer().await;
        let operation = operation_of(&first);
        world.until_found(&operation, "transaction of the handler that is still open").await;
        assert_eq!(world.gateway.state(&operation).await, "unknown");
        led.delivery.signal("CONT");
        assert_eq!(led.delivery.end_with("go").await.as_deref(), Some("committed"));
        world.gateway.until_state(&operation, "completed").await;
        let retry = world.order("k").await;
        assert!(retry.is_replayed() && retry.status == 201, "{retry:?}");
        assert_eq!(world.shop.orders_of("k").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_is_stopped_after_its_commit_is_answered_for_by_its_row() {
    for setup in Setup::all() {
        let world = setup.start(HASTY).await;
        let mut led = world.led("k", Point::Committed).await;
        led.delivery.signal("STOP");
        let first = led.answer().await;
        assert_eq!(first.status_and_code(), (504, "idempotency_outcome_unknown".to_owned()));
        let retry = world.retried("k").await;
        assert!(is_of_receipt(&retry), "{retry:?}");
        led.delivery.signal("CONT");
        assert_eq!(led.delivery.end_with("go").await.as_deref(), Some("committed"));
        wait::until("the late answer changes nothing", async || {
            seen(world.order("k").await, |late| late.is_replayed() && is_of_receipt(late))
        })
        .await;
        assert_eq!(world.shop.orders_of("k").await, 1);
    }
}
