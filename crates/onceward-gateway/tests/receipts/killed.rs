//! Handlers that are killed around their commit.

use crate::control::Point;
use crate::world::{PATIENT, Setup, is_final, is_of_receipt, operation_of};

const FOUND_AT_END: &str =
    "an execution ended without a usable answer, and it was found out at once what it did";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_killed_before_its_commit_is_released_at_once_and_the_retry_orders_once() {
    for setup in Setup::all() {
        let world = setup.start(PATIENT).await;
        for point in [Point::Begun, Point::Ordered, Point::Written] {
            let key = point.name();
            let mut led = world.led(key, point).await;
            led.delivery.signal("KILL");
            let first = led.answer().await;
            assert_eq!(first.status_and_code(), (502, "idempotency_not_executed".to_owned()), "{key}");
            assert_eq!(first.header("x-should-retry"), "true", "{key}");
            let line = world.gateway.logged(FOUND_AT_END);
            assert!(line.contains("found=\"voided\"") && line.contains(&operation_of(&first)), "{line}");
            assert!(line.contains("cause=\"the request was sent, and no whole answer came"), "{line}");
            assert_eq!(world.shop.orders_of(key).await, 0, "{key}");
            let retry = world.order(key).await;
            assert!(retry.status == 201 && !retry.is_replayed(), "{key}: {retry:?}");
            assert!(world.order(key).await.is_replayed(), "{key}");
            assert_eq!(world.shop.orders_of(key).await, 1, "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_killed_after_its_commit_is_answered_for_by_its_row() {
    for setup in Setup::all() {
        let world = setup.start(PATIENT).await;
        let mut led = world.led("k", Point::Committed).await;
        led.delivery.signal("KILL");
        let first = led.answer().await;
        assert!(is_of_receipt(&first) && !first.is_replayed(), "{first:?}");
        assert_eq!(first.json(), serde_json::json!({ "ordered": "k" }));
        let line = world.gateway.logged(FOUND_AT_END);
        assert!(line.contains("found=\"completed\"") && line.contains(&operation_of(&first)), "{line}");
        let retry = world.order("k").await;
        assert!(retry.is_replayed() && retry.body == first.body, "{retry:?}");
        assert_eq!(world.shop.orders_of("k").await, 1);
    }
}

/// How long after it was sent the commit is cut off: less than a commit takes, about as long, and longer.
const CUTS_SECONDS: [f64; 8] = [0.0, 0.0002, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.02];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_killed_during_its_commit_has_committed_if_and_only_if_its_answer_is_given() {
    let mut committed = 0;
    for setup in Setup::all() {
        let world = setup.start(PATIENT).await;
        for (number, seconds) in CUTS_SECONDS.into_iter().enumerate() {
            let key = format!("k{number}");
            let mut led = world.led(&key, Point::Written).await;
            assert_eq!(led.delivery.end_with(&format!("die-in-commit {seconds}")).await, None);
            let first = led.answer().await;
            // Nothing can commit it any more, or it is committed.
            let orders = world.shop.orders_of(&key).await;
            match first.status_and_code() {
                (201, _) => assert!(is_of_receipt(&first) && orders == 1, "{seconds}: {orders}, {first:?}"),
                (502, code) => {
                    assert!(code == "idempotency_not_executed" && orders == 0, "{seconds}: {orders}")
                }
                _ => panic!("{seconds}: {first:?}"),
            }
            committed += orders;
            let retry = world.order(&key).await;
            assert!(is_final(&retry) && retry.is_replayed() == (orders == 1), "{seconds}: {retry:?}");
            assert_eq!(world.shop.orders_of(&key).await, 1, "{seconds}");
        }
    }
    println!("{committed} of the commits that were cut off had been made");
}
