//! Five hundred orders, many at once, each with a fate drawn at random. Their clients retry until they have a final answer.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use onceward::plumbing::time::{instant, sleep};
use onceward_testkit::Random;

use crate::control::Point;
use crate::handler::Language;
use crate::harness::{Request, Response, within};
use crate::shop::Database;
use crate::world::{Led, Setup, Store, World, is_final};

const ROUNDS: usize = 500;
const AT_ONCE: usize = 12;
/// One seed, so that a run draws what the last one drew.
const SEED: u64 = 13;

const RULES: &str = r#"
timeout = "1s"
lease = "2s"
resume_after = "0s"
in_progress = "wait"
wait = "10s"
[routes.reconcile]
attempts = 1000
backoff = "50ms"
max_backoff = "200ms"
"#;

/// How long a client waits between two tries.
const CLIENTS_PAUSE: Duration = Duration::from_millis(100);

/// An operation is known this soon after the end of its transaction, although 500 share two processors with their database.
const SOON: Duration = Duration::from_secs(15);

/// What becomes of the first execution of an order. Later ones are left alone.
#[derive(Debug, Clone, Copy)]
enum Fate {
    LeftAlone,
    KilledAt(Point),
    KilledInCommit {
        seconds: f64,
    },
    AnswersAt(Point, u16),
    /// It is still at work when its client is answered that nobody knows. Then it goes on.
    SlowAt(Point),
    /// The same, and it rolls back.
    SlowAndRollsBack,
    /// It sleeps until its order has a final answer. Then it goes on.
    Overtaken,
}

impl Fate {
    fn draw(random: &mut Random) -> Self {
        let point = *random.pick(&Point::ALL);
        match random.below(100) {
            0..24 => Self::LeftAlone,
            24..50 => Self::KilledAt(point),
            50..64 => Self::KilledInCommit { seconds: random.millis(0, 4).as_secs_f64() / 2.0 },
            64..74 => Self::AnswersAt(point, 500),
            74..82 => Self::AnswersAt(point, 503),
            82..88 => Self::AnswersAt(point, 429),
            88..94 => Self::AnswersAt(Point::Begun, 402),
            94 => Self::SlowAt(Point::Written),
            95..97 => Self::SlowAt(Point::Committed),
            97 => Self::SlowAndRollsBack,
            _ => Self::Overtaken,
        }
    }

    /// What is counted together.
    fn name(self) -> String {
        match self {
            Self::LeftAlone => "left alone".to_owned(),
            Self::KilledAt(point) => format!("killed when {}", point.name()),
            Self::KilledInCommit { .. } => "killed in its commit".to_owned(),
            Self::AnswersAt(point, status) => format!("answered {status} when {}", point.name()),
            Self::SlowAt(point) => format!("late when {}", point.name()),
            Self::SlowAndRollsBack => "late and rolled back".to_owned(),
            Self::Overtaken => "asleep until overtaken".to_owned(),
        }
    }

    /// Where the handler is led before its fate overtakes it.
    const fn point(self) -> Point {
        match self {
            Self::LeftAlone | Self::Overtaken => Point::Begun,
            Self::KilledAt(point) | Self::AnswersAt(point, _) | Self::SlowAt(point) => point,
            Self::KilledInCommit { .. } | Self::SlowAndRollsBack => Point::Written,
        }
    }

    /// Plays it with the first execution, up to the client's first answer and the end of the transaction.
    async fn play(self, led: &mut Led) -> Response {
        let handler = &mut led.delivery;
        match self {
            Self::LeftAlone => drop(handler.end_with("go").await),
            Self::KilledAt(_) => handler.signal("KILL"),
            Self::KilledInCommit { seconds } => {
                assert_eq!(handler.end_with(&format!("die-in-commit {seconds}")).await, None);
            }
            Self::AnswersAt(_, status) => drop(handler.end_with(&status.to_string()).await),
            Self::SlowAt(_) | Self::SlowAndRollsBack | Self::Overtaken => {}
        }
        let first = led.answer().await;
        match self {
            Self::SlowAt(_) => drop(led.delivery.end_with("go").await),
            Self::SlowAndRollsBack => drop(led.delivery.end_with("500").await),
            Self::LeftAlone | Self::KilledAt(_) | Self::KilledInCommit { .. } => {}
            Self::AnswersAt(..) | Self::Overtaken => {}
        }
        first
    }
}

/// One order, from its first request to its final answer.
struct Played {
    key: String,
    fate: String,
    answer: Response,
    /// How long after the first answer, and the end of the first transaction, the client had the final answer.
    known_after: Duration,
}

async fn play(world: &World, number: usize, fate: Fate) -> Played {
    let key = format!("round-{number}");
    let mut led = world.led(&key, Point::Begun).await;
    // Other transactions may hold the database for so long that the order is given up before.
    let reached = led.delivery.reaches(fate.point()).await;
    let mut answer = if reached.is_ok() { fate.play(&mut led).await } else { led.answer().await };
    let ended = instant();
    while !is_final(&answer) {
        sleep(CLIENTS_PAUSE).await;
        answer = world.order(&key).await;
    }
    let known_after = ended.elapsed();
    if reached.is_ok() && matches!(fate, Fate::Overtaken) {
        assert_eq!(led.delivery.end_with("go").await.as_deref(), Some("OW001"), "{key}");
    }
    let fate = reached.map_or_else(|_| "voided before its fate".to_owned(), |()| fate.name());
    Played { key, fate, answer, known_after }
}

/// What became of the orders of one fate.
#[derive(Debug, Default)]
struct Count {
    answered_201: usize,
    answered_402: usize,
    slowest: Duration,
}

async fn rounds(setup: Setup) {
    let world = setup.start(RULES).await;
    let mut random = Random::seeded(SEED);
    let fates: Vec<Fate> = (0..ROUNDS).map(|_| Fate::draw(&mut random)).collect();
    let begun = instant();
    let played = futures_util::stream::iter(fates.into_iter().enumerate()).map(|(number, fate)| {
        let what = format!("round {number}, {fate:?}, has a final answer");
        let world = &world;
        async move { within(&what, play(world, number, fate)).await }
    });
    let played: Vec<Played> = played.buffer_unordered(AT_ONCE).collect().await;
    let took = begun.elapsed();
    let orders = world.shop.orders().await;
    let mut counts = BTreeMap::<String, Count>::new();
    for Played { key, fate, answer, known_after } in played {
        let taken = orders.get(&key).copied().unwrap_or(0);
        assert_eq!(taken, usize::from(answer.status == 201), "{key}, {fate}: {answer:?}");
        assert!(known_after < SOON, "{key}, {fate}: known after {known_after:?}");
        let replay = world.order(&key).await;
        assert!(replay.is_replayed() && replay.body == answer.body, "{key}, {fate}: {replay:?}");
        let count = counts.entry(fate).or_default();
        match answer.status {
            201 => count.answered_201 += 1,
            402 => count.answered_402 += 1,
            _ => panic!("{key}: {answer:?}"),
        }
        count.slowest = count.slowest.max(known_after);
    }
    for state in ["unknown", "in_progress", "failed_retryable"] {
        let target = format!("/v1/operations?state={state}");
        let listed = world.gateway.ask_admin(Request::new("GET", &target)).await.json();
        assert_eq!(listed["operations"].as_array().unwrap().len(), 0, "{state}: {listed}");
    }
    println!("{ROUNDS} rounds in {took:.1?}");
    for (fate, count) in counts {
        println!("  {fate:28} {count:?}");
    }
}

fn in_python(store: Store, shop: Database) -> Option<Setup> {
    Language::Python.is_installed().then_some(Setup { store, shop, handler: Language::Python })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_orders_of_any_fate_are_each_known_soon_and_taken_once_in_sqlite() {
    let Some(setup) = in_python(Store::Sqlite, Database::Sqlite) else { return };
    rounds(setup).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_orders_of_any_fate_are_each_known_soon_and_taken_once_in_postgresql() {
    let Some(setup) = in_python(Store::Postgres, Database::Postgres) else { return };
    rounds(setup).await;
}
