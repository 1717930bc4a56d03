//! Handlers that leave out their row, and gateways that look for it in the wrong place.

use onceward_testkit::wait::{self, seen};

use crate::control::Point;
use crate::handler::Language;
use crate::harness::Response;
use crate::shop::Shop;
use crate::world::{PATIENT, ROUTE, Setup, World, is_of_receipt, operation_of, order_of};

const FORGOTTEN: &str = "a request was answered as done without a receipt";

/// Finds that decide nothing end soon.
const IMPATIENT: &str = r#"
timeout = "60s"
[routes.reconcile]
attempts = 3
backoff = "10ms"
"#;

fn is_unknown(answer: &Response) -> bool {
    answer.code() == "idempotency_outcome_unknown"
}

/// An order whose handler is killed at a point, and which nothing finds out.
async fn lost(world: &World, key: &str, point: Point) -> String {
    let mut led = world.led(key, point).await;
    led.delivery.signal("KILL");
    let answer = led.answer().await;
    assert!(is_unknown(&answer), "{key}: {answer:?}");
    operation_of(&answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_forgets_its_row_on_one_path_suspends_the_voids_until_an_operator_resumes_them() {
    for setup in Setup::all() {
        let world = setup.start(PATIENT).await;
        let forgot = world.gateway.send(order_of("forgot").header("x-forget", "yes")).await;
        assert_eq!(forgot.status, 201);
        let line = world.gateway.logged(FORGOTTEN);
        assert!(line.contains(&operation_of(&forgot)) && line.contains("--resume-voids"), "{line}");
        world.gateway.until_metric("api_idempotency_receipt_voids_controlled", 1.0).await;
        world.gateway.until_metric("api_idempotency_receipt_voids_suspended", 1.0).await;
        let (is_well, checked) = world.run(&["check"]);
        assert!(!is_well && checked.contains(FORGOTTEN), "{checked}");

        // Nothing is released: this order may have been taken without a row as well.
        let early = lost(&world, "early", Point::Written).await;
        world.until_found(&early, "voids of its route are suspended").await;
        let shown = world.shown(&early).await;
        assert!(shown["next"].as_str().unwrap().starts_with("it waits for a person"), "{shown}");
        assert!(is_unknown(&world.order("early").await));
        // Its handler had ended, and must not commit behind an answer that is kept.
        assert!(world.shop.fence_of(&early).await.is_some());
        // What has a row is found out as before.
        let mut led = world.led("kept", Point::Committed).await;
        led.delivery.signal("KILL");
        assert!(is_of_receipt(&led.answer().await));

        let (resumed, printed) = world.run(&["receipts", "--resume-voids", ROUTE]);
        assert!(resumed && printed.contains("release again"), "{printed}");
        // The gateway hears of it when it checks a completion.
        let mut orders = 0;
        wait::until("a row of the corrected handler is seen", async || {
            orders += 1;
            assert_eq!(world.order(&format!("corrected-{orders}")).await.status, 201);
            seen(world.shop.first_rows().await, |notes| !notes.is_empty())
        })
        .await;
        // The order from before stays unproven, and waits for a person.
        let refused = world.order("early").await;
        assert_eq!((is_unknown(&refused), refused.header("x-should-retry")), (true, "false"), "{refused:?}");
        assert_eq!(world.shop.orders_of("early").await, 0);
        let mut led = world.led("late", Point::Written).await;
        led.delivery.signal("KILL");
        assert_eq!(led.answer().await.code(), "idempotency_not_executed");
        assert_eq!(world.order("late").await.status, 201);
        assert_eq!(world.shop.orders_of("late").await, 1);
    }
}

/// A gateway whose configuration names a database with the right tables, which no handler writes.
async fn with_the_wrong_database(setup: Setup) -> World {
    let folder = tempfile::tempdir().unwrap();
    let shop = Shop::create(setup.shop, folder.path()).await;
    let handlers_database = shop.url.clone();
    let wrong_folder = folder.path().join("wrong");
    std::fs::create_dir(&wrong_folder).unwrap();
    let wrong = Shop::create(setup.shop, &wrong_folder).await;
    let mut world = setup.start_with(folder, wrong, &handlers_database, IMPATIENT).await;
    world.shop = shop;
    world
}

async fn is_a_dead_letter(world: &World, key: &str, operation: &str) {
    let line = world.gateway.logged("an unknown outcome was given up");
    assert!(
        line.contains(operation) && line.contains(&format!("/v1/operations/{operation}/resolve")),
        "{line}"
    );
    assert!(line.contains("cause=\"the request was sent") && line.contains("finding=\""), "{line}");
    let shown = world.shown(operation).await;
    assert!(shown["next"].as_str().unwrap().starts_with("it waits for a person: "), "{shown}");
    let refused = world.order(key).await;
    assert!(is_unknown(&refused), "{refused:?}");
    assert_eq!(
        (refused.header("x-should-retry"), &refused.json()["next_action"]),
        ("false", &"contact".into())
    );
    assert_eq!(world.shown(operation).await["dead_lettered"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_released_by_a_table_that_nobody_writes() {
    for setup in Setup::all().into_iter().filter(|setup| setup.handler == Language::Python) {
        let world = with_the_wrong_database(setup).await;
        // Committed, and its row is elsewhere.
        let operation = lost(&world, "before", Point::Committed).await;
        is_a_dead_letter(&world, "before", &operation).await;
        // The first success shows that rows are missing.
        assert_eq!(world.order("success").await.status, 201);
        world.gateway.logged(FORGOTTEN);
        let operation = lost(&world, "after", Point::Committed).await;
        is_a_dead_letter(&world, "after", &operation).await;
        for key in ["before", "success", "after"] {
            assert_eq!(world.shop.orders_of(key).await, 1, "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_bound_to_another_store_is_refused_at_the_start() {
    for setup in Setup::all().into_iter().filter(|setup| setup.handler == Language::Python) {
        let world = setup.start(PATIENT).await;
        let other = tempfile::tempdir().unwrap();
        for file in ["onceward.toml", "onceward.db.token"] {
            std::fs::copy(world.folder.path().join(file), other.path().join(file)).unwrap();
        }
        let serving = crate::world::Serving {
            store: setup.store.url(),
            upstream: world.serving.upstream.clone(),
            shop: world.serving.shop.clone(),
        };
        let (code, printed) = crate::harness::Gateway::refused(&mut serving.command(other.path()));
        assert_eq!(code, Some(1), "{printed}");
        assert!(printed.contains("the receipt table is bound to store-"), "{printed}");
        assert!(printed.contains("give each store a table of its own"), "{printed}");
        // The store that it is bound to is not disturbed.
        assert!(world.order("first").await.is_replayed());
    }
}
