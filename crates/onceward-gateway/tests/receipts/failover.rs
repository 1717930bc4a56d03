//! The handlers' database is lost, and its synchronous standby takes its place.

use futures_util::future::join_all;
use onceward_testkit::servers::{Cut, Postgres, Wire};
use onceward_testkit::wait::{self, seen};

use crate::control::Point;
use crate::handler::{Handler, Language};
use crate::shop::{Database, Shop};
use crate::world::{Led, Setup, Store, World, is_of_receipt};

/// A find that met no database is soon repeated, and an execution may take as long as the failover does.
const RULES: &str = r#"
timeout = "60s"
lease = "5s"
[routes.reconcile]
attempts = 1000
backoff = "50ms"
max_backoff = "500ms"
"#;

fn setups() -> Vec<Setup> {
    let all = [(Store::Sqlite, Language::Python), (Store::Postgres, Language::Rust)];
    let setups = all.map(|(store, handler)| Setup { store, shop: Database::Postgres, handler });
    setups.into_iter().filter(|setup| setup.handler.is_installed()).collect()
}

/// A world whose database is on this server. Handlers and gateway reach it at an address that moves.
async fn world_on(server: &Postgres, wire: &Wire, setup: Setup) -> World {
    let folder = tempfile::tempdir().unwrap();
    let url =
        server.create_database().replace(&format!(":{}/", server.port()), &format!(":{}/", wire.port()));
    let shop = Shop::create_at(Database::Postgres, url.clone(), folder.path()).await;
    let world = setup.start_with(folder, shop, &url, RULES).await;
    world.take_first_order().await;
    world
}

/// An order in the middle of its execution.
struct Order {
    key: String,
    point: Point,
    led: Led,
}

impl Order {
    async fn at(world: &World, name: &str, point: Point) -> Self {
        let key = format!("{name}-{}", point.name());
        let led = world.led(&key, point).await;
        Self { key, point, led }
    }

    fn is_at(&self, point: Point) -> bool {
        self.point == point
    }
}

/// Orders that were answered before, and orders at every point.
async fn orders_in_the_middle(world: &World) -> Vec<Order> {
    for number in 0..4 {
        assert_eq!(world.order(&format!("kept-{number}")).await.status, 201);
    }
    let names = ["a", "b"].into_iter().flat_map(|name| Point::ALL.map(|point| (name, point)));
    join_all(names.map(|(name, point)| Order::at(world, name, point))).await
}

/// Every order is known, and was taken once by the database that there is now.
async fn each_is_taken_once(world: &World, keys: impl IntoIterator<Item = String>) {
    for key in keys {
        let answer = world.retried(&key).await;
        assert_eq!(answer.status, 201, "{key}: {answer:?}");
        assert!(world.order(&key).await.is_replayed(), "{key}");
        assert_eq!(world.shop.orders_of(&key).await, 1, "{key}");
    }
    for number in 0..4 {
        let key = format!("kept-{number}");
        assert!(world.order(&key).await.is_replayed(), "{key}");
        assert_eq!(world.shop.orders_of(&key).await, 1, "{key}");
    }
}

/// Returns once an order is committed, as others see it: the standby has it then.
async fn until_taken(world: &World, key: &str) {
    wait::until("the order is committed", async || {
        seen(world.shop.orders_of(key).await, |&orders| orders == 1)
    })
    .await;
}

/// Some of the commits are on their way when the primary is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_knows_every_order_that_was_answered_and_the_others_are_taken_once() {
    let mut primary = Postgres::start();
    let wire = Wire::to(primary.port()).await;
    let mut worlds = Vec::new();
    for setup in setups() {
        worlds.push(world_on(&primary, &wire, setup).await);
    }
    let standby = primary.start_standby();
    let mut orders = Vec::new();
    let mut cuts = 0;
    for world in &worlds {
        let waiting = orders_in_the_middle(world).await;
        let committing =
            (0..6).map(async |number| Order::at(world, &format!("commits-{number}"), Point::Written).await);
        let mut unanswered = Vec::new();
        for number in 0..2 {
            let mut order = Order::at(world, &format!("unanswered-{number}"), Point::Written).await;
            wire.arm("COMMIT", Cut::Unanswered);
            order.led.delivery.say("go").await;
            cuts += 1;
            wire.made(cuts).await;
            until_taken(world, &order.key).await;
            unanswered.push(order);
        }
        orders.push((waiting, unanswered, join_all(committing).await));
    }
    for (number, order) in orders.iter_mut().flat_map(|(.., committing)| committing).enumerate() {
        order.led.delivery.say("go").await;
        // The first ones have their commits answered, and the last ones hardly sent.
        if number == 3 {
            order.led.delivery.at(Point::Committed).await;
        }
    }
    primary.lose();
    let promoted = standby.promote();
    wire.lead_to(promoted.port());
    wire.cut();
    for (world, (waiting, unanswered, committing)) in worlds.iter().zip(orders) {
        let mut keys = Vec::new();
        for mut order in unanswered {
            assert_ne!(order.led.delivery.ended().await.as_deref(), Some("committed"), "{}", order.key);
            let answer = world.retried(&order.key).await;
            assert!(is_of_receipt(&answer), "{}: {answer:?}", order.key);
            keys.push(order.key);
        }
        let mut committed = 0;
        for mut order in waiting.into_iter().chain(committing) {
            let ended = order.led.delivery.end_with("go").await.unwrap();
            let answer = order.led.answer().await;
            // A handler that knows of its commit has answered so, and this is never lost.
            if ended == "committed" {
                committed += 1;
                assert_eq!(answer.status, 201, "{}: {answer:?}", order.key);
                assert_eq!(world.shop.orders_of(&order.key).await, 1, "{}", order.key);
            }
            keys.push(order.key);
        }
        println!("{committed} of {} handlers knew of their commits", keys.len());
        each_is_taken_once(world, keys).await;
        assert_eq!(world.order("after").await.status, 201);
    }
}

/// Commits that wait for a standby which is away are on one machine only, and are lost with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_comes_back_with_orders_that_nobody_was_promised_decides_nothing() {
    let mut primary = Postgres::start();
    let wire = Wire::to(primary.port()).await;
    let mut worlds = Vec::new();
    for setup in setups() {
        worlds.push(world_on(&primary, &wire, setup).await);
    }
    let mut standby = primary.start_standby();
    let mut orders = Vec::new();
    for world in &worlds {
        orders.push(orders_in_the_middle(world).await);
    }
    standby.stop();
    for (world, orders) in worlds.iter().zip(&mut orders) {
        let written: Vec<_> = orders.iter_mut().filter(|order| order.is_at(Point::Written)).collect();
        let count = written.len();
        for order in written {
            order.led.delivery.say("go").await;
        }
        until_commits_wait(&primary, world, count).await;
    }
    primary.lose();
    standby.restart();
    let promoted = standby.promote();
    wire.lead_to(promoted.port());
    primary.restart();
    for ((world, setup), orders) in worlds.iter_mut().zip(setups()).zip(orders) {
        let mut keys = Vec::new();
        for mut order in orders {
            if order.is_at(Point::Written) {
                let sql = format!("SELECT count(*) FROM orders WHERE key = '{}'", order.key);
                assert_eq!(primary.sql(world.shop.name(), &sql), "1", "the old primary has {}", order.key);
            }
            let ended = order.led.delivery.end_with("go").await.unwrap();
            let was_confirmed = order.is_at(Point::Committed);
            assert_eq!(ended == "committed", was_confirmed, "{}: {ended}", order.key);
            drop(order.led.answer().await);
            keys.push(order.key);
        }
        each_is_taken_once(world, keys).await;
        nothing_is_taken_by(&primary, world, setup.handler).await;
    }
}

/// Returns once so many commits in a world's database wait for the standby.
async fn until_commits_wait(server: &Postgres, world: &World, count: usize) {
    let database = world.shop.name();
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT' AND datname = '{database}'"
    );
    wait::until("the commits wait for the standby", async || {
        seen(server.sql("postgres", &sql), |waiting| *waiting == count.to_string())
    })
    .await;
}

/// A handler that still uses the old primary is never told that it has committed, because no standby confirms it. The gateway
/// asks the new one, and the retry is taken there.
async fn nothing_is_taken_by(old: &Postgres, world: &mut World, language: Language) {
    let handler = Handler::start(language, &world.shop.url_at(old.port()), world.control.address);
    let upstream = std::mem::replace(&mut world.serving.upstream, format!("http://{}", handler.address));
    world.gateway.kill();
    world.restart_gateway();
    let mut led = world.led("stale", Point::Written).await;
    led.delivery.say("go").await;
    until_commits_wait(old, world, 1).await;
    led.delivery.signal("KILL");
    let first = led.answer().await;
    assert_eq!(first.status_and_code(), (502, "idempotency_not_executed".to_owned()), "{first:?}");
    world.serving.upstream = upstream;
    world.gateway.kill();
    world.restart_gateway();
    each_is_taken_once(world, ["stale".to_owned()]).await;
}
