//! What the statuses of a handler mean where its row tells whether it committed.

use crate::control::Point;
use crate::world::{PATIENT, Setup, is_of_receipt, operation_of};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_4xx_without_a_row_is_kept_and_replayed_because_its_handler_can_commit_nothing_more() {
    for setup in Setup::all() {
        let world = setup.start(PATIENT).await;
        let mut led = world.led("k", Point::Begun).await;
        assert_eq!(led.delivery.end_with("402").await.as_deref(), Some("refused"));
        let first = led.answer().await;
        assert_eq!((first.status, first.is_replayed()), (402, false), "{first:?}");
        let retry = world.order("k").await;
        assert_eq!((retry.status, retry.is_replayed(), &retry.body), (402, true, &first.body));
        // The void came before the answer was kept.
        assert!(world.shop.fence_of(&operation_of(&first)).await.is_some());
        assert_eq!(world.shop.orders_of("k").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_500_that_committed_nothing_is_passed_on_and_its_retry_executes_once() {
    for setup in Setup::all() {
        let world = setup.start(PATIENT).await;
        for point in [Point::Begun, Point::Ordered, Point::Written] {
            let key = point.name();
            let mut led = world.led(key, point).await;
            assert_eq!(led.delivery.end_with("500").await.as_deref(), Some("refused"));
            let first = led.answer().await;
            assert_eq!((first.status, first.header("onceward-outcome")), (500, "retryable"), "{first:?}");
            assert_eq!(world.shop.orders_of(key).await, 0);
            let retry = world.order(key).await;
            assert_eq!((retry.status, retry.is_replayed()), (201, false), "{retry:?}");
            assert_eq!(world.shop.orders_of(key).await, 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_503_that_committed_nothing_is_retried_safely() {
    for setup in Setup::all() {
        let world = setup.start(PATIENT).await;
        let mut led = world.led("k", Point::Written).await;
        assert_eq!(led.delivery.end_with("503").await.as_deref(), Some("refused"));
        let first = led.answer().await;
        assert_eq!(first.status_and_code(), (502, "idempotency_not_executed".to_owned()), "{first:?}");
        assert_eq!(first.header("x-should-retry"), "true");
        let retry = world.order("k").await;
        assert_eq!((retry.status, retry.is_replayed()), (201, false), "{retry:?}");
        assert_eq!(world.shop.orders_of("k").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_handler_answers_after_its_commit_the_row_is_the_answer() {
    for setup in Setup::all() {
        let world = setup.start(PATIENT).await;
        for status in ["503", "500", "429", "402", "409"] {
            let mut led = world.led(status, Point::Committed).await;
            assert_eq!(led.delivery.end_with(status).await.as_deref(), Some("refused"));
            let first = led.answer().await;
            assert!(is_of_receipt(&first), "{status}: {first:?}");
            assert_eq!(first.json(), serde_json::json!({ "ordered": status }));
            let retry = world.order(status).await;
            assert!(retry.is_replayed() && is_of_receipt(&retry), "{status}: {retry:?}");
            assert_eq!(world.shop.orders_of(status).await, 1, "{status}");
        }
    }
}
