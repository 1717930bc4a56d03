//! A small shop that writes each order and its receipt row in one transaction, and dies on request.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use onceward::receipts::TableName;
use rusqlite::{Connection, TransactionBehavior, params};
use serde_json::json;

use super::console::Console;
use crate::Failure;
use crate::stores::maintenance;

/// The shop and its database.
#[derive(Clone)]
pub(super) struct Shop {
    database: Arc<Mutex<Connection>>,
    console: Console,
}

/// The request's headers that name the operation, and what it orders.
pub(super) struct Order {
    pub operation: String,
    pub fence: i64,
    pub item: String,
    pub dies: Option<Dies>,
}

/// When the shop dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dies {
    BeforeCommit,
    AfterCommit,
}

/// How an order ended.
pub(super) enum Ordered {
    /// With this answer.
    Answered(String),
    /// Without one: the shop died.
    Died,
}

impl Shop {
    /// The database file in the demo's folder.
    pub(super) fn file(folder: &Path) -> PathBuf {
        folder.join("shop.db")
    }

    /// Makes the shop's database, with the receipt table as `onceward receipts --print-sql --dialect sqlite` prints it.
    pub(super) fn open(folder: &Path, console: Console) -> Result<Self, Failure> {
        let database = Connection::open(Self::file(folder))?;
        database.execute_batch("CREATE TABLE orders (item TEXT NOT NULL)")?;
        database.execute_batch(&maintenance::receipts_sql("sqlite", &TableName::default()))?;
        Ok(Self { database: Arc::new(Mutex::new(database)), console })
    }

    /// Makes an order. It waits for the disk, so it runs on a thread for that.
    pub(super) fn order(&self, order: &Order) -> rusqlite::Result<Ordered> {
        // A panic while the lock is held rolled its transaction back.
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute("INSERT INTO orders (item) VALUES (?1)", [&order.item])?;
        let number = transaction.last_insert_rowid();
        let answer = format!("{}\n", json!({ "order": number, "item": order.item }));
        transaction.execute(
            "INSERT INTO onceward_complete (operation, fence, status, headers, body) VALUES (?1, ?2, 201, ?3, ?4)",
            params![
                order.operation,
                order.fence,
                r#"[["content-type","application/json"]]"#,
                answer.as_bytes()
            ],
        )?;
        if order.dies == Some(Dies::BeforeCommit) {
            self.console
                .say("  shop          died before its commit: the order is gone with its transaction");
            return Ok(Ordered::Died);
        }
        transaction.commit()?;
        let item = &order.item;
        self.console
            .say(format_args!("  shop          committed the order of a {item}: that is order {number}"));
        if order.dies == Some(Dies::AfterCommit) {
            self.console.say("  shop          died before it answered");
            return Ok(Ordered::Died);
        }
        Ok(Ordered::Answered(answer))
    }

    /// Every order, in order.
    pub(super) fn list(&self) -> rusqlite::Result<serde_json::Value> {
        let database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let mut statement = database.prepare("SELECT item FROM orders ORDER BY rowid")?;
        let items: Vec<String> =
            statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        Ok(json!({ "orders": items, "count": items.len() }))
    }
}
