//! Requests that a proxy between the gateway and the handler delivers twice.

use crate::control::{Delivery, Point};
use crate::harness::{Client, Response};
use crate::repeater::{Deliver, Repeater, SECOND};
use crate::shop::Database;
use crate::world::{PATIENT, Setup, World, in_each, is_of_receipt, order_of, talk};

/// Puts the proxy before the handlers of a world.
async fn with_repeater(mut world: World) -> (World, Repeater) {
    let repeater = Repeater::before(world.handler.address).await;
    world.serving.upstream = format!("http://{}", repeater.address);
    world.gateway.kill();
    world.restart_gateway();
    (world, repeater)
}

/// An order with both of its deliveries.
struct Twice {
    client: Client,
    first: Delivery,
    second: Delivery,
}

impl Twice {
    /// Its deliveries are at their beginning.
    async fn begin(world: &World, key: &str, deliver: Deliver, isolation: &str) -> Self {
        let request = order_of(key).header("x-deliver", deliver.name()).header("x-isolation", isolation);
        let client = talk(&world.gateway, request).await;
        let first = world.control.delivery(key).await;
        let second = world.control.delivery(&format!("{key}{SECOND}")).await;
        Self { client, first, second }
    }

    /// The first has written its row, and the second waits for what becomes of it.
    async fn meet(&mut self, world: &World) {
        self.first.until(Point::Written).await;
        world.until_it_waits_for_another(&mut self.second).await;
    }

    async fn answer(&mut self) -> Response {
        self.client.read().await.unwrap()
    }
}

/// The order was taken once, and its retry gets this answer.
async fn was_taken_once(world: &World, key: &str, answer: &Response) {
    assert_eq!(answer.json(), serde_json::json!({ "ordered": key }));
    let retry = world.order(key).await;
    assert!(retry.status == 201 && retry.is_replayed() && retry.body == answer.body, "{key}: {retry:?}");
    assert_eq!(world.shop.orders_of(key).await, 1, "{key}");
}

fn isolations(database: Database) -> &'static [&'static str] {
    match database {
        Database::Sqlite => &["none"],
        Database::Postgres => &["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_deliveries_at_once_one_commits_and_the_client_gets_its_answer_whichever_is_answered() {
    in_each(Setup::all(), PATIENT, async |world| {
        let (world, _repeater) = with_repeater(world).await;
        for (number, isolation) in isolations(world.shop.database).iter().enumerate() {
            for deliver in [Deliver::AnswerFirst, Deliver::AnswerSecond] {
                let key = format!("{}-{number}", deliver.name());
                let mut twice = Twice::begin(&world, &key, deliver, isolation).await;
                twice.meet(&world).await;
                assert_eq!(twice.first.end_with("go").await.as_deref(), Some("committed"), "{key}");
                assert_eq!(twice.second.ended().await.as_deref(), Some("OW002"), "{key}");
                let answer = twice.answer().await;
                assert_eq!(answer.status, 201, "{key}: {answer:?}");
                // The second delivery's own answer is an error, and the row decides.
                assert_eq!(is_of_receipt(&answer), deliver == Deliver::AnswerSecond, "{key}: {answer:?}");
                was_taken_once(&world, &key, &answer).await;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_after_the_commit_of_the_first_fails_and_the_client_gets_the_answer_of_the_row() {
    in_each(Setup::all(), PATIENT, async |world| {
        let (world, _repeater) = with_repeater(world).await;
        let mut client = talk(&world.gateway, order_of("k").header("x-deliver", Deliver::After.name())).await;
        let mut first = world.control.delivery("k").await;
        assert_eq!(first.ended().await.as_deref(), Some("committed"));
        let mut second = world.control.delivery(&format!("k{SECOND}")).await;
        assert_eq!(second.ended().await.as_deref(), Some("OW002"));
        let answer = client.read().await.unwrap();
        assert!(is_of_receipt(&answer), "{answer:?}");
        was_taken_once(&world, "k", &answer).await;
    })
    .await;
}

/// The void and the second delivery wait for the same row, and either may get it first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_that_waits_for_one_that_dies_commits_or_is_voided() {
    in_each(Setup::all(), PATIENT, async |world| {
        let (world, _repeater) = with_repeater(world).await;
        for deliver in [Deliver::AnswerFirst, Deliver::AnswerSecond] {
            let key = deliver.name();
            let mut twice = Twice::begin(&world, key, deliver, "").await;
            twice.meet(&world).await;
            twice.first.signal("KILL");
            let end = twice.second.ended().await.unwrap();
            let answer = twice.answer().await;
            println!("the second delivery: {end}");
            let orders = world.shop.orders_of(key).await;
            match end.as_str() {
                "committed" => {
                    assert_eq!(orders, 1, "{key}: {answer:?}");
                    // A void that met the open transaction may have given up once.
                    let answer = world.retried(key).await;
                    was_taken_once(&world, key, &answer).await;
                }
                // Nothing voids an execution whose answer is awaited.
                "OW001" if deliver == Deliver::AnswerFirst => {
                    assert_eq!(answer.status_and_code(), (502, "idempotency_not_executed".to_owned()));
                    assert_eq!(orders, 0, "{key}");
                    let retry = world.retried(key).await;
                    was_taken_once(&world, key, &retry).await;
                }
                other => panic!("{key}: {other}, {answer:?}"),
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_that_comes_late_cannot_commit_whatever_became_of_the_order() {
    in_each(Setup::all(), PATIENT, async |world| {
        let (world, repeater) = with_repeater(world).await;
        let later = |key| order_of(key).header("x-deliver", Deliver::Later.name());
        let late = async |key: &str| {
            repeater.deliver_again(key);
            world.control.delivery(&format!("{key}{SECOND}")).await.ended().await
        };
        let mut led = world.led_with(later("done"), "done", Point::Committed).await;
        assert_eq!(led.delivery.end_with("go").await.as_deref(), Some("committed"));
        let answer = led.answer().await;
        assert_eq!(late("done").await.as_deref(), Some("OW002"));
        was_taken_once(&world, "done", &answer).await;

        let mut led = world.led_with(later("lost"), "lost", Point::Written).await;
        led.delivery.signal("KILL");
        let answer = led.answer().await;
        assert_eq!(answer.status_and_code(), (502, "idempotency_not_executed".to_owned()));
        assert_eq!(late("lost").await.as_deref(), Some("OW001"), "released");
        let retry = world.order("lost").await;
        assert!(retry.status == 201 && !retry.is_replayed(), "{retry:?}");
        assert_eq!(late("lost").await.as_deref(), Some("OW001"), "taken under a later fence");
        was_taken_once(&world, "lost", &retry).await;
    })
    .await;
}
