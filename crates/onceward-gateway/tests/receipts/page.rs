//! docs/receipts.md as a test: its configuration, its handler in Python and its handler in Rust, behind the real gateway.
//!
//! The Rust block stands here once more, between two markers, and a test compares the two.

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use onceward_testkit::servers::shared_postgres;
use tokio::net::TcpListener;

use crate::handler::installed;
use crate::harness::{Gateway, Output, Request, onceward};
use crate::shop::{Database, Shop};

const PAGE: &str = include_str!("../../../../docs/receipts.md");
const THIS_FILE: &str = include_str!("page.rs");

/// The table that the page takes for granted.
const ORDERS: &str = "CREATE TABLE orders (number bigint GENERATED ALWAYS AS IDENTITY, item text NOT NULL)";

/// What its block of a language holds.
fn block(language: &str) -> String {
    let blocks = PAGE.split(&format!("```{language}\n")).nth(1).unwrap();
    blocks.split("```").next().unwrap().to_owned()
}

/// The same, of a block within a list.
fn indented(language: &str) -> String {
    block(language).lines().map(|line| format!("{}\n", line.trim_start())).collect()
}

#[tokio::test]
async fn the_handler_in_python_commits_one_order_with_its_answer() {
    let Some(python) = installed() else { return };
    let (folder, shop) = shop().await;
    std::fs::write(folder.path().join("handler.py"), block("python")).unwrap();
    let serve = "from werkzeug.serving import make_server; from handler import app; \
                 server = make_server('127.0.0.1', 0, app); print('at', server.port, flush=True); server.serve_forever()";
    let mut command = Command::new(python);
    command.args(["-c", serve]).env("SHOP_DATABASE", &shop.url).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut handler =
        KilledOnDrop(command.current_dir(folder.path()).stdout(Stdio::piped()).spawn().unwrap());
    let printed = Output::of(handler.0.stdout.take().unwrap());
    let port = printed.find(|line| Some(line.strip_prefix("at ")?.to_owned())).unwrap();
    takes_one_order(folder.path(), &shop, &format!("http://127.0.0.1:{port}")).await;
}

#[tokio::test]
async fn the_handler_in_rust_commits_one_order_with_its_answer() {
    let (folder, shop) = shop().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = crate::shop::connect(&shop.url).await;
    let app = block_of_the_page::app(client);
    // It ends with the test's runtime.
    tokio::spawn(async move { axum::serve(listener, app).await });
    takes_one_order(folder.path(), &shop, &format!("http://{address}")).await;
}

#[test]
fn the_rust_block_of_the_page_and_its_copy_here_are_the_same() {
    let copied = THIS_FILE.split("    // The block begins\n").nth(1).unwrap();
    let copied = copied.split("    // The block ends\n").next().unwrap();
    let copied: String =
        copied.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line))).collect();
    assert_eq!(block("rust"), copied);
}

async fn shop() -> (tempfile::TempDir, Shop) {
    let folder = tempfile::tempdir().unwrap();
    let shop = Shop { database: Database::Postgres, url: shared_postgres() };
    shop.run(ORDERS).await;
    shop.run(&crate::shop::receipt_table(Database::Postgres, folder.path())).await;
    (folder, shop)
}

/// Sends an order and its retry through a gateway with the page's configuration.
async fn takes_one_order(folder: &Path, shop: &Shop, upstream: &str) {
    let settings = indented("toml");
    assert!(settings.contains("http://127.0.0.1:3000"), "{settings}");
    std::fs::write(folder.join("onceward.toml"), settings.replace("http://127.0.0.1:3000", upstream))
        .unwrap();
    let mut serve = onceward(folder);
    serve.args([
        "serve",
        "--config",
        "onceward.toml",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
    ]);
    let gateway = Gateway::spawn(serve.env("RECEIPTS_DATABASE", &shop.url));
    let order = || {
        Request::new("POST", "/orders")
            .header("authorization", "Bearer sk_1")
            .header("idempotency-key", "cart-1")
            .header("content-type", "application/json")
            .body(r#"{"item": "book"}"#)
    };
    let first = gateway.send(order()).await;
    assert_eq!(
        (first.status, first.json()["order"].as_i64(), first.is_replayed()),
        (201, Some(1), false),
        "{first:?}"
    );
    let retry = gateway.send(order()).await;
    assert_eq!((retry.status, &retry.body, retry.is_replayed()), (201, &first.body, true));
    assert_eq!(shop.texts("SELECT item FROM orders").await, ["book"]);
    let answer = "SELECT concat(status, ' ', convert_from(body, 'UTF8')) FROM onceward_receipts WHERE status IS NOT NULL";
    let expected = format!("201 {}", String::from_utf8(first.body).unwrap());
    assert_eq!(shop.texts(answer).await, [expected]);
}

/// A process that is killed with the test.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.0.kill();
        let _waited = self.0.wait();
    }
}

mod block_of_the_page {
    use std::sync::Arc;

    use axum::body::Bytes;
    use axum::extract::State;
    use axum::http::header::CONTENT_TYPE;
    use axum::http::{HeaderMap, StatusCode};
    use axum::response::{IntoResponse, Response};
    use axum::{Router, routing::post};
    use serde::Deserialize;
    use serde_json::json;
    use tokio::sync::Mutex;

    use super::Failed;

    pub fn app(client: tokio_postgres::Client) -> Router {
        Router::new().route("/orders", post(order)).with_state(Arc::new(Mutex::new(client)))
    }

    // The block begins
    type Shop = Arc<Mutex<tokio_postgres::Client>>;

    #[derive(Deserialize)]
    struct Order {
        item: String,
    }

    async fn order(State(shop): State<Shop>, headers: HeaderMap, body: Bytes) -> Result<Response, Failed> {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (operation, fence) = (header("onceward-operation"), header("onceward-fence").parse::<i64>()?);
        let Order { item } = serde_json::from_slice(&body)?;
        let mut shop = shop.lock().await;
        // Dropped without a commit, it is rolled back.
        let transaction = shop.transaction().await?;
        let insert = "INSERT INTO orders (item) VALUES ($1) RETURNING number";
        let number: i64 = transaction.query_one(insert, &[&item]).await?.get(0);
        let answer = json!({ "order": number }).to_string();
        let complete = "SELECT onceward_complete($1, $2, 201, $3, $4)";
        let kept = r#"[["content-type", "application/json"]]"#;
        transaction.execute(complete, &[&operation, &fence, &kept, &answer.as_bytes()]).await?;
        transaction.commit().await?;
        Ok((StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], answer).into_response())
    }
    // The block ends
}

/// Answers 500.
struct Failed(Box<dyn Error>);

impl<E: Error + 'static> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        (axum::http::StatusCode::INTERNAL_SERVER_ERROR, self.0.to_string()).into_response()
    }
}
