//! The database of the handlers: the table of orders, which alone proves how often something was done, and the receipt table.

use std::collections::BTreeMap;
use std::path::Path;

use onceward_testkit::servers::shared_postgres;
use onceward_testkit::wait::{self, seen};
use tokio_postgres::NoTls;

use crate::harness::onceward;

/// No constraint keeps an order from being taken twice.
const ORDERS: &str = "CREATE TABLE orders (key text NOT NULL, operation text NOT NULL)";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    Sqlite,
    Postgres,
}

/// A database with both tables.
pub struct Shop {
    pub database: Database,
    /// As the gateway and the handlers are given it.
    pub url: String,
}

impl Shop {
    /// A new one: in the folder, or on the server that all tests share.
    pub async fn create(database: Database, folder: &Path) -> Self {
        let url = match database {
            Database::Sqlite => format!("sqlite:{}", folder.join("shop.db").display()),
            Database::Postgres => shared_postgres(),
        };
        Self::create_at(database, url, folder).await
    }

    pub async fn create_at(database: Database, url: String, folder: &Path) -> Self {
        let shop = Self { database, url };
        if database == Database::Sqlite {
            // The connections of handlers and voids meet as little as possible.
            shop.run("PRAGMA journal_mode = wal").await;
        }
        shop.run(ORDERS).await;
        shop.run(&receipt_table(database, folder)).await;
        shop
    }

    /// Runs statements.
    pub async fn run(&self, sql: &str) {
        match self.database {
            Database::Sqlite => self.file().execute_batch(sql).unwrap(),
            Database::Postgres => connect(&self.url).await.batch_execute(sql).await.unwrap(),
        }
    }

    /// The first column of every row, which is a text.
    pub async fn texts(&self, sql: &str) -> Vec<String> {
        match self.database {
            Database::Sqlite => {
                let file = self.file();
                let mut statement = file.prepare(sql).unwrap();
                statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
            }
            Database::Postgres => {
                let rows = connect(&self.url).await.query(sql, &[]).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
        }
    }

    fn file(&self) -> rusqlite::Connection {
        let file = rusqlite::Connection::open(self.url.trim_start_matches("sqlite:")).unwrap();
        file.busy_timeout(crate::harness::LONGEST_WAIT).unwrap();
        file
    }

    /// The port of its server.
    pub fn port(&self) -> u16 {
        let (_, rest) = self.url.rsplit_once(':').unwrap();
        rest.split_once('/').unwrap().0.parse().unwrap()
    }

    /// Its name on that server.
    pub fn name(&self) -> &str {
        self.url.rsplit_once('/').unwrap().1
    }

    /// The same database at another port.
    pub fn url_at(&self, port: u16) -> String {
        self.url.replace(&format!(":{}/", self.port()), &format!(":{port}/"))
    }

    /// How many sessions wait for a lock in PostgreSQL, of those that a condition chooses.
    pub async fn waiting(&self, which: &str) -> usize {
        let sql = format!(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND {which}"
        );
        self.texts(&sql).await.len()
    }

    /// Returns once one of these sessions waits.
    pub async fn until_waiting(&self, which: &str) {
        wait::until("a session waits for a lock", async || {
            seen(self.waiting(which).await, |&waiting| waiting > 0)
        })
        .await;
    }

    /// How often each key was ordered.
    pub async fn orders(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for key in self.texts("SELECT key FROM orders").await {
            *counts.entry(key).or_default() += 1;
        }
        counts
    }

    /// How often this key was ordered.
    pub async fn orders_of(&self, key: &str) -> usize {
        self.orders().await.get(key).copied().unwrap_or(0)
    }

    /// The gateways' notes that they saw a handler's row.
    pub async fn first_rows(&self) -> Vec<String> {
        let sql = "SELECT operation FROM onceward_receipts WHERE operation LIKE 'onceward:first-row:%'";
        self.texts(sql).await
    }

    /// Returns once the gateway has noted that it saw a handler's row, without which no void releases anything.
    pub async fn until_first_row_is_seen(&self) {
        wait::until("the gateway has seen a row", async || {
            seen(self.first_rows().await, |notes| !notes.is_empty())
        })
        .await;
    }

    /// The fence of an operation's row, as a text.
    pub async fn fence_of(&self, operation: &str) -> Option<String> {
        let sql =
            format!("SELECT CAST(fence AS text) FROM onceward_receipts WHERE operation = '{operation}'");
        self.texts(&sql).await.pop()
    }
}

/// What the command prints for the user's own migrations.
pub fn receipt_table(database: Database, folder: &Path) -> String {
    let dialect = match database {
        Database::Sqlite => "sqlite",
        Database::Postgres => "postgres",
    };
    let printed = onceward(folder).args(["receipts", "--print-sql", "--dialect", dialect]).output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    String::from_utf8(printed.stdout).unwrap()
}

pub async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    // It ends with its client.
    tokio::spawn(connection);
    client
}
