//! Two gateways on one store: both find out what became of orders, and never about the same order at the same time.

use futures_util::future::join_all;
use onceward_testkit::wait::{self, seen};

use crate::control::Point;
use crate::handler::Language;
use crate::harness::Gateway;
use crate::shop::Database;
use crate::world::{HASTY, Led, Setup, Store, UNKNOWN, World, is_of_receipt, order_of, retried_through};

/// The stores that gateways can share.
fn setups() -> Vec<Setup> {
    let all = [
        (Store::Postgres, Database::Postgres),
        (Store::Postgres, Database::Sqlite),
        (Store::Redis, Database::Postgres),
        (Store::Redis, Database::Sqlite),
    ];
    let setups = all.map(|(store, shop)| Setup { store, shop, handler: Language::Python });
    setups.into_iter().filter(|setup| setup.handler.is_installed()).collect()
}

/// Counts the voids of each gateway, and those of an order that overlap. Sequences count what is rolled back too.
const WATCH_VOIDS: &str = "
    CREATE SEQUENCE voids_of_onceward; CREATE SEQUENCE voids_of_other; CREATE SEQUENCE doubles;
    CREATE FUNCTION watch_void() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      PERFORM nextval('voids_of_' || current_setting('application_name'));
      IF NOT pg_try_advisory_xact_lock(hashtext(NEW.operation)) THEN PERFORM nextval('doubles'); END IF;
      RETURN NEW; END $$;
    CREATE TRIGGER watch_void BEFORE INSERT ON onceward_receipts FOR EACH ROW
      WHEN (NEW.status IS NULL AND NEW.operation NOT LIKE 'onceward:%') EXECUTE FUNCTION watch_void();";

/// Of the transactions that handlers have left open.
const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
    WHERE datname = current_database() AND state = 'idle in transaction'";

async fn counted(world: &World, sequence: &str) -> usize {
    let sql = format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END::text FROM {sequence}");
    world.shop.texts(&sql).await[0].parse().unwrap()
}

/// More than one gateway asks about at once, so that the other one has a share.
const ORDERS: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_find_at_once_and_each_order_is_asked_about_by_one_of_them() {
    for setup in setups().into_iter().filter(|setup| setup.shop == Database::Postgres) {
        let mut world = setup.start(HASTY).await;
        world.shop.run(WATCH_VOIDS).await;
        world.serving.shop += "?application_name=other";
        let other = world.another_gateway();
        let gateways = [&world.gateway, &other];
        let keys: Vec<String> = (0..ORDERS).map(|number| format!("k{number}")).collect();
        let led = keys.iter().zip(gateways.into_iter().cycle()).map(async |(key, gateway)| {
            let mut led = world.led_through(gateway, order_of(key), key, Point::Written).await;
            assert_eq!(led.answer().await.status_and_code(), (504, UNKNOWN.to_owned()), "{key}");
            led
        });
        let mut all_led: Vec<Led> = join_all(led).await;
        // Every transaction is open, so every void waits.
        wait::until("both gateways have asked", async || {
            let voids = (counted(&world, "voids_of_onceward").await, counted(&world, "voids_of_other").await);
            seen(voids, |&(one, other)| one > 0 && other > 0)
        })
        .await;
        assert_eq!(counted(&world, "doubles").await, 0);
        for (number, led) in all_led.iter_mut().enumerate() {
            // No handler answers, so that only finds decide: half of them commit, and the database ends the others' sessions.
            if number.is_multiple_of(2) {
                led.delivery.say("go").await;
                led.delivery.at(Point::Committed).await;
            }
        }
        world.shop.run(END_SESSIONS).await;
        join_all(keys.iter().enumerate().map(async |(number, key)| {
            let answer = the_same_through_both(gateways, key).await;
            assert!(number % 2 == 1 || is_of_receipt(&answer), "{key}: {answer:?}");
        }))
        .await;
        assert_eq!(counted(&world, "doubles").await, 0);
        let orders = world.shop.orders().await;
        for key in &keys {
            assert_eq!(orders.get(key), Some(&1), "{key}");
        }
    }
}

/// The final answer to an order, which clients of both gateways ask for at once.
async fn the_same_through_both([one, other]: [&Gateway; 2], key: &str) -> crate::harness::Response {
    let (answer, same) = tokio::join!(retried_through(one, key), retried_through(other, key));
    assert_eq!((answer.status, &answer.body), (201, &same.body), "{key}: {answer:?} {same:?}");
    for gateway in [one, other] {
        let replay = gateway.send(order_of(key)).await;
        assert!(replay.is_replayed() && replay.body == answer.body, "{key}: {replay:?}");
    }
    answer
}

/// Where the handlers of the killed gateway are. SQLite has one open transaction that writes.
fn points(database: Database) -> Vec<Point> {
    match database {
        Database::Sqlite => {
            vec![Point::Committed, Point::Begun, Point::Committed, Point::Begun, Point::Written]
        }
        Database::Postgres => Point::ALL.into_iter().chain(Point::ALL).collect(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_orders_of_a_gateway_that_is_killed_are_found_out_by_the_others_together() {
    for setup in setups() {
        let mut world = setup.start(HASTY).await;
        let others = [world.another_gateway(), world.another_gateway()];
        let points: Vec<(String, Point)> =
            points(setup.shop).into_iter().enumerate().map(|(n, point)| (format!("k{n}"), point)).collect();
        // One after the other, because a transaction that writes keeps the others of SQLite out.
        let mut led = Vec::new();
        for (key, point) in &points {
            led.push(world.led(key, *point).await);
        }
        world.gateway.kill();
        let [one, other] = &others;
        if setup.shop == Database::Postgres {
            // The others' transactions are open, which keeps only their own voids waiting.
            for (key, _) in points.iter().filter(|(_, point)| *point == Point::Committed) {
                assert!(is_of_receipt(&the_same_through_both([one, other], key).await), "{key}");
            }
        }
        // The last one first: in SQLite it keeps the others waiting.
        for (led, (key, point)) in led.iter_mut().zip(&points).rev() {
            let end = led.delivery.end_with("go").await.unwrap();
            match point {
                Point::Written | Point::Committed => assert_eq!(end, "committed", "{key}"),
                Point::Begun | Point::Ordered => {
                    assert!(["committed", "OW001"].contains(&end.as_str()), "{key}: {end}")
                }
            }
        }
        for (key, _) in &points {
            the_same_through_both([one, other], key).await;
            assert_eq!(world.shop.orders_of(key).await, 1, "{key}");
        }
    }
}
