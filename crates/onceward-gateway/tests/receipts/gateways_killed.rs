//! Gateways that are killed while they find out what became of an order, and those that go on in their place.

use onceward_testkit::servers::{Cut, Wire};
use onceward_testkit::wait::{self, seen};

use crate::control::Point;
use crate::handler::Language;
use crate::shop::Database;
use crate::world::{HASTY, PATIENT, Setup, Store, UNKNOWN, VOID, World, is_of_receipt, operation_of};

/// What is logged when an outcome was found out.
const KNOWN: &str = "an unknown outcome is known now";

/// What becomes of the transaction that the void waits for.
#[derive(Debug, Clone, Copy)]
enum End {
    Commits,
    Dies,
}

/// Each store and each database with each end. The languages make no difference here.
fn setups() -> impl Iterator<Item = (Setup, End)> {
    let ends = [
        (Store::Sqlite, Database::Sqlite, End::Commits),
        (Store::Sqlite, Database::Postgres, End::Dies),
        (Store::Postgres, Database::Sqlite, End::Dies),
        (Store::Postgres, Database::Postgres, End::Commits),
    ];
    let setups = ends.map(|(store, shop, end)| (Setup { store, shop, handler: Language::Python }, end));
    setups.into_iter().filter(|(setup, _)| setup.handler.is_installed())
}

/// Most of the time is spent on waiting for the dead gateway's hold to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_void_whose_gateway_is_killed_while_it_waits_is_made_again_by_the_next_gateway() {
    let mut worlds = Vec::new();
    for (setup, end) in setups() {
        worlds.push(killed_in_a_void(setup.start(HASTY).await, end).await);
    }
    for (world, operation, end) in worlds {
        world.gateway.logged(KNOWN);
        let (state, orders) = match end {
            End::Commits => ("completed", 1),
            End::Dies => ("failed_retryable", 0),
        };
        assert_eq!(world.gateway.state(&operation).await, state, "{end:?}");
        assert_eq!(world.shop.orders_of("k").await, orders, "{end:?}");
        let retry = world.retried("k").await;
        match end {
            End::Commits => assert!(retry.is_replayed() && is_of_receipt(&retry), "{retry:?}"),
            End::Dies => assert_eq!(retry.status, 201, "{retry:?}"),
        }
        let replay = world.order("k").await;
        assert!(replay.is_replayed() && replay.body == retry.body, "{replay:?}");
        assert_eq!(world.shop.orders_of("k").await, 1, "{end:?}");
    }
}

/// A handler whose transaction is still open, so that its outcome is unknown.
async fn killed_in_a_void(mut world: World, end: End) -> (World, String, End) {
    let mut led = world.led("k", Point::Written).await;
    let first = led.answer().await;
    assert_eq!(first.status_and_code(), (504, UNKNOWN.to_owned()));
    world.until_a_void_waits().await;
    world.gateway.kill();
    world.restart_gateway();
    let early = world.order("k").await;
    assert_eq!(early.status_and_code(), (409, UNKNOWN.to_owned()), "{early:?}");
    match end {
        End::Commits => assert_eq!(led.delivery.end_with("go").await.as_deref(), Some("committed")),
        End::Dies => led.delivery.signal("KILL"),
    }
    (world, operation_of(&first), end)
}

/// The database has it, and the record does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_void_that_was_made_by_a_gateway_that_did_not_live_to_know_releases_all_the_same() {
    for setup in Setup::with_postgres_shop() {
        let mut world = setup.start(PATIENT).await;
        let wire = Wire::to(world.shop.port()).await;
        world.lead_gateway_through(&wire);
        let led = world.led("k", Point::Written).await;
        wire.arm(VOID, Cut::Unanswered);
        led.delivery.signal("KILL");
        wire.made(1).await;
        wait::until("the void is committed", async || {
            let voids = "SELECT operation FROM onceward_receipts WHERE status IS NULL AND operation NOT LIKE 'onceward:%'";
            seen(world.shop.texts(voids).await, |voids| voids.len() == 1)
        })
        .await;
        world.gateway.kill();
        world.restart_gateway();
        world.gateway.logged(KNOWN);
        assert_eq!(world.shop.orders_of("k").await, 0);
        let retry = world.order("k").await;
        assert!(retry.status == 201 && !retry.is_replayed(), "{retry:?}");
        assert!(world.order("k").await.is_replayed());
        assert_eq!(world.shop.orders_of("k").await, 1);
    }
}
