//! Handlers whose transactions are REPEATABLE READ or SERIALIZABLE: some of them fail where others would wait, or see the void.

use futures_util::future::join_all;

use crate::control::Point;
use crate::harness::Request;
use crate::world::{HASTY, PATIENT, Setup, UNKNOWN, World, in_each, operation_of, order_of};

const STRICTER: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

/// PostgreSQL's code for a transaction that may succeed if it is tried again.
const SERIALIZATION: &str = "40001";

/// What a handler does when its transaction could be tried again.
#[derive(Debug, Clone, Copy)]
enum Then {
    TriesAgain,
    Answers500,
}

/// An order under a level of isolation.
fn order<'a>(key: &'a str, isolation: &'a str, then: Then) -> Request<'a> {
    let request = order_of(key).header("x-isolation", isolation);
    match then {
        Then::TriesAgain => request,
        Then::Answers500 => request.header("x-gives-up", "yes"),
    }
}

async fn was_taken_once(world: &World, key: &str) {
    let replay = world.order(key).await;
    assert!(replay.status == 201 && replay.is_replayed(), "{key}: {replay:?}");
    assert_eq!(world.shop.orders_of(key).await, 1, "{key}");
}

/// The snapshot is made before the first point. A void that it does not have is a conflict.
async fn voided_behind_its_snapshot(world: &World, (isolation, point, then): (&str, Point, Then)) {
    let key = format!("{}-{}-{then:?}", isolation.replace(' ', "-"), point.name());
    let mut led = world.led_with(order(&key, isolation, then), &key, point).await;
    let first = led.answer().await;
    assert_eq!(first.status_and_code(), (504, UNKNOWN.to_owned()), "{key}");
    world.gateway.until_state(&operation_of(&first), "failed_retryable").await;
    if point == Point::Begun {
        // The retry comes first, and has its own row under a later fence.
        assert_eq!(world.retried(&key).await.status, 201, "{key}");
        led.delivery.on_to(Point::Ordered).await;
    }
    led.delivery.say("go").await;
    match then {
        Then::TriesAgain => {
            led.delivery.tries_again().await;
            assert_eq!(led.delivery.ended().await.as_deref(), Some("OW001"), "{key}");
        }
        Then::Answers500 => {
            assert_eq!(led.delivery.ended().await.as_deref(), Some(SERIALIZATION), "{key}");
        }
    }
    assert_eq!(world.retried(&key).await.status, 201, "{key}");
    was_taken_once(world, &key).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_void_between_the_snapshot_and_the_commit_of_a_handler_keeps_it_from_committing() {
    in_each(Setup::with_postgres_shop(), HASTY, async |world| {
        // One after the other under each level, because serializable ones would be in each other's way.
        join_all(STRICTER.map(async |isolation| {
            for point in [Point::Begun, Point::Ordered] {
                for then in [Then::TriesAgain, Then::Answers500] {
                    voided_behind_its_snapshot(&world, (isolation, point, then)).await;
                }
            }
        }))
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_void_waits_for_the_commit_of_a_stricter_transaction_that_has_written_its_row() {
    in_each(Setup::with_postgres_shop(), HASTY, async |world| {
        for isolation in STRICTER {
            let key = isolation.replace(' ', "-");
            let request = order(&key, isolation, Then::TriesAgain);
            let mut led = world.led_with(request, &key, Point::Written).await;
            let first = led.answer().await;
            assert_eq!(first.status_and_code(), (504, UNKNOWN.to_owned()), "{key}");
            world.until_a_void_waits().await;
            assert_eq!(led.delivery.end_with("go").await.as_deref(), Some("committed"), "{key}");
            world.gateway.until_state(&operation_of(&first), "completed").await;
            was_taken_once(&world, &key).await;
        }
    })
    .await;
}

/// Each has counted the orders before the other wrote its own, so the later commit fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_fails_because_of_another_one_is_released_and_its_retry_orders_once() {
    in_each(Setup::with_postgres_shop(), PATIENT, async |world| {
        for then in [Then::TriesAgain, Then::Answers500] {
            let (earlier, later) = (format!("earlier-{then:?}"), format!("later-{then:?}"));
            let one = world.led_with(order(&earlier, "SERIALIZABLE", then), &earlier, Point::Written);
            let other = world.led_with(order(&later, "SERIALIZABLE", then), &later, Point::Written);
            let (mut one, mut other) = tokio::join!(one, other);
            assert_eq!(one.delivery.end_with("go").await.as_deref(), Some("committed"));
            assert_eq!(one.answer().await.status, 201);
            other.delivery.say("go").await;
            match then {
                Then::TriesAgain => {
                    other.delivery.tries_again().await;
                    assert_eq!(other.delivery.ended().await.as_deref(), Some("committed"));
                    assert_eq!(other.answer().await.status, 201);
                }
                Then::Answers500 => {
                    assert_eq!(other.delivery.ended().await.as_deref(), Some(SERIALIZATION));
                    let first = other.answer().await;
                    assert_eq!(
                        (first.status, first.header("onceward-outcome")),
                        (500, "retryable"),
                        "{first:?}"
                    );
                    assert_eq!(world.shop.orders_of(&later).await, 0);
                    let retry = world.gateway.send(order(&later, "SERIALIZABLE", then)).await;
                    assert!(retry.status == 201 && !retry.is_replayed(), "{retry:?}");
                }
            }
            was_taken_once(&world, &earlier).await;
            was_taken_once(&world, &later).await;
        }
    })
    .await;
}
