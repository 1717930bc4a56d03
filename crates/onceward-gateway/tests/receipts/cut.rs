//! Handlers whose connection to their database is cut around the commit. They do not know what became of it, and the row does.

use futures_util::future::join_all;
use onceward_testkit::servers::{Cut, Wire};

use crate::control::Point;
use crate::shop::{Database, Shop};
use crate::world::{PATIENT, Setup, UNKNOWN, World, is_of_receipt, operation_of};

/// A world whose handlers reach their database through a proxy.
async fn wired(setup: Setup) -> (World, Wire) {
    let folder = tempfile::tempdir().unwrap();
    let shop = Shop::create(Database::Postgres, folder.path()).await;
    let wire = Wire::to(shop.port()).await;
    let handlers_database = shop.url_at(wire.port());
    let world = setup.start_with(folder, shop, &handlers_database, PATIENT).await;
    world.take_first_order().await;
    (world, wire)
}

async fn worlds() -> Vec<(World, Wire)> {
    let mut worlds = Vec::new();
    for setup in Setup::with_postgres_shop() {
        worlds.push(wired(setup).await);
    }
    worlds
}

/// The confirmation of a commit has 12 bytes, and 6 more say that the connection is ready for the next statement.
const CUTS: [(&str, Cut); 5] = [
    ("never-sent", Cut::Before),
    ("sent", Cut::Sent),
    ("committed", Cut::Answered { bytes: 0 }),
    ("half-confirmed", Cut::Answered { bytes: 5 }),
    ("confirmed", Cut::Answered { bytes: 12 }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_answer_to_a_commit_is_lost_the_row_says_whether_it_was_made() {
    let worlds = worlds().await;
    join_all(worlds.iter().map(async |(world, wire)| {
        for (made, (key, cut)) in (1..).zip(CUTS) {
            let mut led = world.led(key, Point::Written).await;
            wire.arm("COMMIT", cut);
            led.delivery.say("go").await;
            wire.made(made).await;
            let end = led.delivery.ended().await.unwrap();
            assert!(end != "committed" && end != "refused", "{key}: {end}");
            let first = led.answer().await;
            if cut == Cut::Before {
                assert_eq!((first.status, first.header("onceward-outcome")), (500, "retryable"), "{first:?}");
                assert_eq!(world.shop.orders_of(key).await, 0);
            } else {
                assert!(is_of_receipt(&first) && !first.is_replayed(), "{key}: {first:?}");
            }
            let retry = world.order(key).await;
            assert_eq!((retry.status, retry.is_replayed()), (201, cut != Cut::Before), "{key}: {retry:?}");
            assert_eq!(world.shop.orders_of(key).await, 1, "{key}");
        }
    }))
    .await;
}

/// What becomes of a commit that is still in the network.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    IsLost,
}

async fn dies_with_its_commit_in_the_network((world, wire): &(World, Wire), (made, fate): (u64, Fate)) {
    let key = format!("{fate:?}");
    let mut led = world.led(&key, Point::Written).await;
    wire.arm("COMMIT", Cut::Stall);
    led.delivery.say("go").await;
    wire.made(made).await;
    led.delivery.signal("KILL");
    // The database still waits for the handler, and so does the void.
    let first = led.answer().await;
    assert_eq!(first.code(), UNKNOWN, "{key}: {first:?}");
    let operation = operation_of(&first);
    world.until_found(&operation, "transaction of the handler that is still open").await;
    match fate {
        Fate::Arrives => {
            wire.release();
            world.gateway.until_state(&operation, "completed").await;
            assert!(is_of_receipt(&world.order(&key).await));
        }
        Fate::IsLost => {
            wire.cut();
            world.gateway.until_state(&operation, "failed_retryable").await;
            assert_eq!(world.shop.orders_of(&key).await, 0);
            let retry = world.order(&key).await;
            assert!(retry.status == 201 && !retry.is_replayed(), "{retry:?}");
        }
    }
    assert!(world.order(&key).await.is_replayed());
    assert_eq!(world.shop.orders_of(&key).await, 1, "{key}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_outlives_its_handler_in_the_network_is_waited_for() {
    let worlds = worlds().await;
    join_all(worlds.iter().map(async |world| {
        for (made, fate) in (1..).zip([Fate::Arrives, Fate::IsLost]) {
            dies_with_its_commit_in_the_network(world, (made, fate)).await;
        }
    }))
    .await;
}
