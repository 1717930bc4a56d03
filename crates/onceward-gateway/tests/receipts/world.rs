//! A gateway, a handler behind it, and the handler's database.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;
use std::process::Command;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use onceward_testkit::servers::{RedisServer, Wire, shared_postgres};
use onceward_testkit::wait::{self, seen};
use serde_json::Value;
use tempfile::TempDir;

use crate::control::{Control, Delivery, Point};
use crate::handler::{Handler, Language};
use crate::harness::{Client, Gateway, Request, Response, onceward};
use crate::shop::{Database, Shop};

/// The route, as the configuration and the command line name it.
pub const ROUTE: &str = "POST /orders";

/// Executions take as long as they need, and a find that decided nothing is soon repeated.
pub const PATIENT: &str = r#"
timeout = "60s"
lease = "5s"
[routes.reconcile]
attempts = 1000
backoff = "50ms"
max_backoff = "200ms"
"#;

/// An execution that takes long is answered as unknown, and soon asked about.
pub const HASTY: &str = r#"
timeout = "1s"
lease = "2s"
resume_after = "100ms"
[routes.reconcile]
attempts = 1000
backoff = "50ms"
max_backoff = "200ms"
"#;

/// Onceward's own store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Sqlite,
    Postgres,
    /// Only where a test chooses it.
    Redis,
}

impl Store {
    /// A new one. In Redis it is the server of a world.
    pub fn url(self) -> String {
        match self {
            Self::Sqlite => "sqlite:onceward.db".to_owned(),
            Self::Postgres => shared_postgres(),
            Self::Redis => panic!("the world starts a server"),
        }
    }
}

/// The code of an outcome that is unknown.
pub const UNKNOWN: &str = "idempotency_outcome_unknown";

/// What only the statement of a void in PostgreSQL has.
pub const VOID: &str = "SET fence = greatest(";

/// Which of each there is.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub store: Store,
    /// The handler's database.
    pub shop: Database,
    pub handler: Language,
}

impl Setup {
    /// Each store with each database, and each language with each database.
    pub fn all() -> Vec<Self> {
        use Language::{Python, Rust};
        let all = [
            (Store::Sqlite, Database::Sqlite, Python),
            (Store::Sqlite, Database::Postgres, Python),
            (Store::Postgres, Database::Sqlite, Python),
            (Store::Postgres, Database::Postgres, Python),
            (Store::Sqlite, Database::Sqlite, Rust),
            (Store::Postgres, Database::Postgres, Rust),
        ];
        let setups = all.map(|(store, shop, handler)| Self { store, shop, handler });
        setups.into_iter().filter(|setup| setup.handler.is_installed()).collect()
    }

    /// Those whose handlers use PostgreSQL.
    pub fn with_postgres_shop() -> Vec<Self> {
        Self::all().into_iter().filter(|setup| setup.shop == Database::Postgres).collect()
    }

    /// Starts everything, and takes a first order, so that voids may release.
    pub async fn start(self, rules: &str) -> World {
        let world = self.start_unproven(rules).await;
        world.take_first_order().await;
        world
    }

    /// Starts everything. No handler has written a row yet.
    pub async fn start_unproven(self, rules: &str) -> World {
        let folder = tempfile::tempdir().unwrap();
        let shop = Shop::create(self.shop, folder.path()).await;
        let handlers_database = shop.url.clone();
        self.start_with(folder, shop, &handlers_database, rules).await
    }

    /// Starts everything else around a database, which the handlers reach by another URL.
    pub async fn start_with(
        self,
        folder: TempDir,
        shop: Shop,
        handlers_database: &str,
        rules: &str,
    ) -> World {
        println!("{self:?}");
        let control = Control::start().await;
        let handler = Handler::start(self.handler, handlers_database, control.address);
        configure(folder.path(), rules);
        let redis = (self.store == Store::Redis).then(|| RedisServer::start(&[]));
        let store = match &redis {
            Some(redis) => redis.url(),
            None => self.store.url(),
        };
        let serving =
            Serving { store, upstream: format!("http://{}", handler.address), shop: shop.url.clone() };
        let gateway = Gateway::spawn(&mut serving.command(folder.path()));
        World { gateway, handler, shop, control, serving, folder, _redis: redis }
    }
}

/// Plays a test in several worlds at once, because most of its time is spent on waiting.
pub async fn in_each<F: Future<Output = ()>>(setups: Vec<Setup>, rules: &str, play: impl Fn(World) -> F) {
    let mut worlds = Vec::new();
    for setup in setups {
        worlds.push((setup, setup.start(rules).await));
    }
    join_all(worlds.into_iter().map(async |(setup, world)| {
        if let Err(panic) = AssertUnwindSafe(play(world)).catch_unwind().await {
            println!("It failed in {setup:?}.");
            resume_unwind(panic);
        }
    }))
    .await;
}

/// Writes the configuration. The token is where the harness of the gateway's tests expects it.
fn configure(folder: &Path, rules: &str) {
    let file = format!(
        "[[admin.tokens]]\nname = \"ada\"\nrole = \"operator\"\ntoken = {{ file = \"onceward.db.token\" }}\n\
         [[routes]]\nmatch = \"{ROUTE}\"\nkey = \"required\"\nreceipts = {{ url = {{ env = \"SHOP\" }} }}\n{rules}"
    );
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    std::fs::write(folder.join("onceward.db.token"), "the-token-of-ada").unwrap();
}

/// What a gateway is started with, beside the file.
pub struct Serving {
    pub store: String,
    pub upstream: String,
    /// The database that it believes to be the handlers'.
    pub shop: String,
}

impl Serving {
    pub fn command(&self, folder: &Path) -> Command {
        let mut command = self.words(folder, &["serve"]);
        command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
        command
    }

    /// Another command with the same configuration.
    pub fn words(&self, folder: &Path, words: &[&str]) -> Command {
        let mut command = onceward(folder);
        command.args(words).args(["--config", "onceward.toml", "--store", &self.store]);
        command.args(["--upstream", &self.upstream, "--scope", "fixed:test"]).env("SHOP", &self.shop);
        command
    }
}

pub struct World {
    // Ended before the others go.
    pub gateway: Gateway,
    pub handler: Handler,
    pub shop: Shop,
    pub control: Control,
    pub serving: Serving,
    pub folder: TempDir,
    _redis: Option<RedisServer>,
}

/// An order whose handler a test leads.
pub struct Led {
    client: Client,
    pub delivery: Delivery,
}

impl Led {
    /// The answer of the gateway.
    pub async fn answer(&mut self) -> Response {
        self.client.read().await.unwrap_or_else(|| panic!("the gateway gave no answer"))
    }
}

/// Sends an order whose handler the test leads.
pub async fn talk(gateway: &Gateway, request: Request<'_>) -> Client {
    let mut client = gateway.connect().await;
    client.write(&request.header("x-talk", "yes").bytes()).await;
    client
}

/// Retries an order until this gateway has a final answer for it.
pub async fn retried_through(gateway: &Gateway, key: &str) -> Response {
    let awaited = format!("a final answer for {key:?}");
    wait::until(&awaited, async || seen(gateway.send(order_of(key)).await, is_final)).await
}

/// An order with a key.
pub fn order_of(key: &str) -> Request<'_> {
    Request::new("POST", "/orders").header("idempotency-key", key).body("{}")
}

impl World {
    /// Sends an order, and returns its answer.
    pub async fn order(&self, key: &str) -> Response {
        self.gateway.send(order_of(key)).await
    }

    /// Takes an order, so that voids may release. On a slow machine the first ones may be given up.
    pub async fn take_first_order(&self) {
        let mut keys =
            (0..).map(|number| if number == 0 { "first".to_owned() } else { format!("first-{number}") });
        wait::until("an order is taken", async || {
            seen(self.order(&keys.next().unwrap()).await.status, |&status| status == 201)
        })
        .await;
        self.shop.until_first_row_is_seen().await;
    }

    /// Sends an order whose handler waits at a point.
    pub async fn led(&self, key: &str, point: Point) -> Led {
        self.led_with(order_of(key), key, point).await
    }

    /// The same, with more headers.
    pub async fn led_with(&self, request: Request<'_>, key: &str, point: Point) -> Led {
        self.led_through(&self.gateway, request, key, point).await
    }

    /// The same, through this gateway.
    pub async fn led_through(&self, gateway: &Gateway, request: Request<'_>, key: &str, point: Point) -> Led {
        let client = talk(gateway, request).await;
        let mut delivery = self.control.delivery(key).await;
        delivery.until(point).await;
        Led { client, delivery }
    }

    /// Retries an order until the gateway has a final answer for it.
    pub async fn retried(&self, key: &str) -> Response {
        retried_through(&self.gateway, key).await
    }

    /// Starts the gateway again, after it has ended.
    pub fn restart_gateway(&mut self) {
        self.gateway = self.another_gateway();
    }

    /// One more gateway on the same store.
    pub fn another_gateway(&self) -> Gateway {
        Gateway::spawn(&mut self.serving.command(self.folder.path()))
    }

    /// Lets a handler go on from its beginning until it waits for the transaction of another one, which has written its row.
    pub async fn until_it_waits_for_another(&self, delivery: &mut Delivery) {
        match self.shop.database {
            Database::Postgres => {
                delivery.until(Point::Ordered).await;
                delivery.say("go").await;
                self.shop.until_waiting("application_name <> 'onceward'").await;
            }
            // Its first write waits, and nothing shows when.
            Database::Sqlite => {
                delivery.at(Point::Begun).await;
                delivery.say("go").await;
            }
        }
    }

    /// Ends the gateway, and starts one that reaches the handlers' database through a proxy.
    pub fn lead_gateway_through(&mut self, wire: &Wire) {
        self.serving.shop = self.shop.url_at(wire.port());
        self.gateway.kill();
        self.restart_gateway();
    }

    /// Returns once a void of the gateway waits for a handler's transaction.
    pub async fn until_a_void_waits(&self) {
        wait::until("a void waits for a transaction", async || {
            let waits = match self.shop.database {
                Database::Postgres => self.shop.waiting("application_name = 'onceward'").await > 0,
                // The file is opened for each call, and none but a void takes long.
                Database::Sqlite => has_open(self.gateway.child.id(), "shop.db"),
            };
            seen(waits, |&waits| waits)
        })
        .await;
    }

    /// Runs another command: whether it succeeded, and what it printed.
    pub fn run(&self, words: &[&str]) -> (bool, String) {
        let output = self.serving.words(self.folder.path(), words).output().unwrap();
        let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (output.status.success(), printed)
    }

    /// What an operator sees of the operation that an answer named.
    pub async fn shown(&self, operation: &str) -> Value {
        self.gateway.ask_admin(Request::new("GET", &format!("/v1/operations/{operation}"))).await.json()
    }

    /// Returns once a find has brought these words about an operation.
    pub async fn until_found(&self, operation: &str, words: &str) {
        wait::until(&format!("a find about {operation} brings {words:?}"), async || {
            let shown = self.shown(operation).await;
            let has = shown["last_finding"]["text"].as_str().is_some_and(|text| text.contains(words));
            seen(shown, |_| has)
        })
        .await;
    }
}

/// Whether a process has a file of this name open.
fn has_open(pid: u32, name: &str) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|path| path.ends_with(name)))
}

/// The name of the operation that an answer is about.
pub fn operation_of(answer: &Response) -> String {
    let operation = answer.header("onceward-operation");
    assert_ne!(operation, "", "{answer:?}");
    operation.to_owned()
}

/// Whether an answer is the handler's own and kept: no client need retry it.
pub fn is_final(answer: &Response) -> bool {
    let is_retryable = answer.header("onceward-outcome") == "retryable";
    (200..500).contains(&answer.status)
        && answer.header("content-type") == "application/json"
        && !is_retryable
}

/// Whether an answer came from a receipt row, and not from the handler.
pub fn is_of_receipt(answer: &Response) -> bool {
    answer.status == 201 && answer.header("x-answer-of") == "receipt"
}
