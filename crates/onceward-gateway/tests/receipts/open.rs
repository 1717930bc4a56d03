//! Transactions that stay open: their operations stay unknown for as long, and no longer.

use futures_util::future::join_all;
use onceward_testkit::wait::{self, seen};

use crate::control::Point;
use crate::harness::Response;
use crate::world::{Setup, UNKNOWN, World, operation_of};

/// One find that is answered, and decides nothing, would make a dead letter.
const ONE_ATTEMPT: &str = r#"
timeout = "1s"
lease = "2s"
resume_after = "100ms"
[routes.reconcile]
attempts = 1
backoff = "50ms"
max_backoff = "200ms"
"#;

#[derive(Debug, Clone, Copy)]
enum End {
    Commits,
    RollsBack,
    Dies,
}

/// The seconds after which a refused client is to ask again.
fn retry_after(refused: &Response) -> u64 {
    assert_eq!(refused.status_and_code(), (409, UNKNOWN.to_owned()), "{refused:?}");
    assert_eq!(refused.header("x-should-retry"), "true", "{refused:?}");
    refused.header("retry-after").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_keeps_its_operation_unknown_with_later_and_later_retries_until_it_ends() {
    let mut worlds = Vec::new();
    let ends = [End::Commits, End::RollsBack, End::Dies].into_iter().cycle();
    for (setup, end) in Setup::all().into_iter().zip(ends) {
        worlds.push((setup.start(ONE_ATTEMPT).await, end));
    }
    join_all(worlds.iter().map(|(world, end)| stays_open(world, *end))).await;
}

async fn stays_open(world: &World, end: End) {
    let mut led = world.led("k", Point::Written).await;
    let first = led.answer().await;
    assert_eq!(first.status_and_code(), (504, UNKNOWN.to_owned()));
    let operation = operation_of(&first);
    let mut pauses = vec![retry_after(&world.order("k").await)];
    for _ in 0..2 {
        let before = pauses[pauses.len() - 1];
        let longer = wait::until("a later retry is asked for", async || {
            seen(retry_after(&world.order("k").await), |&seconds| seconds > before)
        });
        pauses.push(longer.await);
    }
    // A database that keeps the void waiting was not asked, so this is no answered find.
    world.until_found(&operation, "transaction of the handler that is still open").await;
    let shown = world.shown(&operation).await;
    assert_eq!((&shown["state"], &shown["probes"]), (&"unknown".into(), &0.into()), "{pauses:?} {shown}");
    assert_eq!(world.shop.orders_of("k").await, 0);
    match end {
        End::Commits => {
            assert_eq!(led.delivery.end_with("go").await.as_deref(), Some("committed"));
            world.gateway.until_state(&operation, "completed").await;
            assert_eq!(world.order("k").await.status, 201);
        }
        End::RollsBack | End::Dies => {
            match end {
                End::RollsBack => assert_eq!(led.delivery.end_with("500").await.as_deref(), Some("refused")),
                End::Commits | End::Dies => led.delivery.signal("KILL"),
            }
            world.gateway.until_state(&operation, "failed_retryable").await;
            assert_eq!(world.retried("k").await.status, 201);
        }
    }
    assert!(world.order("k").await.is_replayed());
    assert_eq!(world.shop.orders_of("k").await, 1, "{end:?}");
}
