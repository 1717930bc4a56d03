//! Explains what the database of a receipt table lacks.

use std::time::Duration;

use onceward::Timestamp;
use onceward::receipts::TableName;
use onceward::store::{Finding, Health};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::ddl::FUNCTIONS;
use crate::migrate::connect;
use crate::{OpenError, PostgresUrl, error};

/// Handlers make rows under fences of the last 24 hours by the database's clock, so a minute is harmless. More of it shows that
/// one of the two clocks is not synchronized, and could be wrong by a day tomorrow.
const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(60);
/// A handler that vanished without a word holds its row until TCP notices.
const KEEPALIVE_MAX: Duration = Duration::from_secs(5 * 60);

/// The columns, and what `format_type` calls their types.
const COLUMNS: [(&str, &str); 11] = [
    ("operation", "text"),
    ("fence", "bigint"),
    ("point", "text"),
    ("data", "text"),
    ("entered", "text"),
    ("entered_at", "timestamp with time zone"),
    ("dedup_until", "timestamp with time zone"),
    ("status", "integer"),
    ("headers", "text"),
    ("body", "bytea"),
    ("at", "timestamp with time zone"),
];

/// Reads the database of a receipt table, and explains what it finds. `now` is the present time by the clock of Onceward's
/// store, whose times fences are. Changes nothing.
pub async fn examine(
    url: &PostgresUrl,
    table: &TableName,
    now: Timestamp,
) -> Result<Vec<Finding>, OpenError> {
    let mut any = url.clone();
    // A standby is a finding here, and no reason to say that the server cannot be reached.
    any.config.target_session_attrs(TargetSessionAttrs::Any);
    let client = connect(&any).await?;
    let database = Database { client: &client, table };
    database
        .findings(now)
        .await
        .map_err(|failed| OpenError::Unreachable { url: url.to_string(), reason: error::words(&failed) })
}

struct Database<'a> {
    client: &'a Client,
    table: &'a TableName,
}

type Read<T> = Result<T, tokio_postgres::Error>;

impl Database<'_> {
    async fn findings(&self, now: Timestamp) -> Read<Vec<Finding>> {
        let mut findings = vec![self.primary().await?, self.clock(now).await?];
        let exists = self.scalar(&format!("SELECT to_regclass('{}')", self.table.quoted())).await?;
        if exists.is_some() {
            findings.push(self.columns().await?);
            findings.push(self.storage().await?);
            findings.push(self.functions().await?);
            findings.push(self.rights().await?);
        } else {
            let meaning = "it does not exist in this database, or its schema is not visible to this role: run what `onceward \
                 receipts --print-sql` prints, as the owner of your tables";
            findings.push(finding("receipt table", self.table, Health::Problem, meaning));
        }
        findings.push(self.synchronous_commit().await?);
        findings.push(self.idle_timeout().await?);
        findings.push(self.keepalives().await?);
        findings.push(self.lock_timeout().await?);
        Ok(findings)
    }

    async fn primary(&self) -> Read<Finding> {
        let subject = "receipt server";
        let sql = "SELECT CASE WHEN pg_is_in_recovery() THEN 'a standby' \
                   WHEN current_setting('transaction_read_only')::bool THEN 'read-only' ELSE 'the primary' END";
        let found = self.scalar(sql).await?.unwrap_or_default();
        Ok(if found == "the primary" {
            finding(subject, found, Health::Good, "it takes writes")
        } else {
            let meaning =
                "a void is a write, so no outcome can be found out here: the URL must lead to the primary";
            finding(subject, found, Health::Problem, meaning)
        })
    }

    async fn clock(&self, now: Timestamp) -> Read<Finding> {
        let subject = "receipt clock";
        let micros = self.scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").await?;
        let Some(server) = micros.and_then(|micros| micros.parse().ok()).map(Timestamp::from_micros) else {
            return Ok(finding(
                subject,
                "not reported",
                Health::Warning,
                "the server did not return its time",
            ));
        };
        let offset = server.since(now).max(now.since(server));
        let found = format!("{offset:.1?} apart");
        Ok(if offset > CLOCK_OFFSET_MAX {
            let meaning = "a handler makes a row only within 24 hours of its fence, which is a time by the clock of Onceward's \
                 store, and rows are deleted after two days: synchronize both machines by NTP before that matters";
            finding(subject, found, Health::Warning, meaning)
        } else {
            finding(subject, found, Health::Good, "the database and Onceward's store agree about the time")
        })
    }

    async fn columns(&self) -> Read<Finding> {
        let subject = "receipt table";
        let mut wrong = Vec::new();
        for (column, expected) in COLUMNS {
            let sql = format!(
                "SELECT format_type(atttypid, NULL) FROM pg_attribute \
                 WHERE attrelid = '{}'::regclass AND attname = '{column}' AND attnum > 0 AND NOT attisdropped",
                self.table.quoted()
            );
            match self.scalar(&sql).await? {
                None => wrong.push(format!("{column} is missing")),
                Some(found) if found != expected => {
                    wrong.push(format!("{column} is {found} instead of {expected}"))
                }
                Some(_) => {}
            }
        }
        let key = format!(
            "SELECT 1 FROM pg_index WHERE indrelid = '{}'::regclass AND indisunique AND indisvalid AND indpred IS NULL \
             AND indnkeyatts = 1 AND pg_get_indexdef(indexrelid, 1, true) = 'operation'",
            self.table.quoted()
        );
        if self.scalar(&key).await?.is_none() {
            wrong.push("operation is no primary key".to_owned());
        }
        Ok(if wrong.is_empty() {
            finding(subject, self.table, Health::Good, "its columns are as this version needs them")
        } else {
            let meaning = "it is not the table of `onceward receipts --print-sql`: voids would fail";
            finding(subject, wrong.join(", "), Health::Problem, meaning)
        })
    }

    async fn storage(&self) -> Read<Finding> {
        let subject = "receipt storage";
        let sql = format!(
            "SELECT concat(relkind, relpersistence) FROM pg_class WHERE oid = '{}'::regclass",
            self.table.quoted()
        );
        let found = self.scalar(&sql).await?.unwrap_or_default();
        Ok(match found.as_str() {
            "rp" => {
                finding(subject, "a logged table", Health::Good, "its rows survive a crash and a failover")
            }
            "ru" => finding(
                subject,
                "an unlogged table",
                Health::Problem,
                "a crash empties it, and work that was committed would be released and done again: ALTER TABLE … SET LOGGED",
            ),
            _ => finding(
                subject,
                found,
                Health::Problem,
                "it must be a plain table, because handlers and voids exclude each other by the locks of its rows",
            ),
        })
    }

    async fn functions(&self) -> Read<Finding> {
        let subject = "receipt functions";
        let schema = format!(
            "(SELECT quote_ident(nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.oid = '{}'::regclass)",
            self.table.quoted()
        );
        let mut missing = Vec::new();
        for (name, types) in FUNCTIONS {
            let sql = format!("SELECT to_regprocedure({schema} || '.{name}({types})')");
            if self.scalar(&sql).await?.is_none() {
                missing.push(name);
            }
        }
        Ok(if missing.is_empty() {
            finding(subject, "all there", Health::Good, "handlers can call them")
        } else {
            let meaning =
                "handlers cannot commit their receipts: run what `onceward receipts --print-sql` prints";
            finding(subject, format!("{} missing", missing.join(", ")), Health::Problem, meaning)
        })
    }

    async fn rights(&self) -> Read<Finding> {
        let subject = "receipt rights";
        let mut missing = Vec::new();
        for right in ["SELECT", "INSERT", "UPDATE", "DELETE"] {
            let sql = format!("SELECT has_table_privilege('{}', '{right}')", self.table.quoted());
            if self.scalar(&sql).await?.as_deref() != Some("t") {
                missing.push(right);
            }
        }
        Ok(if missing.is_empty() {
            finding(subject, "SELECT, INSERT, UPDATE, DELETE", Health::Good, "as this role needs them")
        } else {
            let meaning =
                format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {} to the role of the URL", self.table);
            finding(subject, format!("{} missing", missing.join(", ")), Health::Problem, &meaning)
        })
    }

    async fn synchronous_commit(&self) -> Read<Finding> {
        let subject = "receipt synchronous_commit";
        let found = self.setting("synchronous_commit").await?;
        Ok(match found.as_str() {
            "off" => finding(
                subject,
                found,
                Health::Warning,
                "a handler with this setting answers before its commit is on the disk, and a crash then forgets work that \
                 the client was told of. Voids wait for the disk all the same: ALTER ROLE … SET synchronous_commit = on for \
                 the role of the handler",
            ),
            _ => finding(subject, found, Health::Good, "a commit is on the disk before it is acknowledged"),
        })
    }

    async fn idle_timeout(&self) -> Read<Finding> {
        let subject = "receipt idle_in_transaction_session_timeout";
        let found = self.setting("idle_in_transaction_session_timeout").await?;
        // The handler's role may have a setting of its own.
        let sql = "SELECT 1 FROM pg_db_role_setting, unnest(setconfig) AS pair \
                   WHERE pair LIKE 'idle_in_transaction_session_timeout=%' AND pair !~ '=0[a-z]*$' LIMIT 1";
        let by_role = self.scalar(sql).await?.is_some();
        Ok(match (found.as_str(), by_role) {
            ("0", true) => finding(subject, "set for a role", Health::Good, "see that it is the handler's"),
            ("0", false) => finding(
                subject,
                found,
                Health::Warning,
                "a handler that hangs within its transaction keeps its operation unknown for as long as it hangs: ALTER ROLE … \
                 SET idle_in_transaction_session_timeout = '60s' for the role of the handler",
            ),
            _ => {
                finding(subject, found, Health::Good, "a handler that hangs within its transaction is ended")
            }
        })
    }

    async fn keepalives(&self) -> Read<Finding> {
        let subject = "receipt tcp_keepalives_idle";
        let seconds = self.setting("tcp_keepalives_idle").await?;
        let idle = Duration::from_secs(seconds.parse().unwrap_or(0));
        Ok(if idle > Duration::ZERO && idle <= KEEPALIVE_MAX {
            finding(subject, format!("{idle:?}"), Health::Good, "a handler whose machine vanished is noticed")
        } else {
            let found = if idle.is_zero() { "the system's default".to_owned() } else { format!("{idle:?}") };
            finding(
                subject,
                found,
                Health::Warning,
                "a handler whose machine vanished within its transaction keeps its operation unknown until TCP notices, \
                 mostly after two hours: set tcp_keepalives_idle = 60 in postgresql.conf",
            )
        })
    }

    async fn lock_timeout(&self) -> Read<Finding> {
        let subject = "receipt lock_timeout";
        let found = self.setting("lock_timeout").await?;
        let meaning = match found.as_str() {
            "0" => {
                "a second delivery of a request waits for the first one's transaction, however long that takes. Voids have \
                    a limit of their own"
            }
            _ => {
                "a second delivery of a request waits that long for the first one's transaction. Voids have a limit of their \
                  own"
            }
        };
        Ok(finding(subject, found, Health::Good, meaning))
    }

    async fn setting(&self, name: &str) -> Read<String> {
        let found = self.scalar(&format!("SELECT setting FROM pg_settings WHERE name = '{name}'")).await?;
        Ok(found.unwrap_or_else(|| "not reported".to_owned()))
    }

    /// The single value of a statement, by a simple query, which every pooler passes on.
    async fn scalar(&self, sql: &str) -> Read<Option<String>> {
        let rows = self.client.simple_query(sql).await?;
        let row = |message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None };
        Ok(rows.into_iter().find_map(row).and_then(|row| row.get(0).map(str::to_owned)))
    }
}

fn finding(subject: &'static str, found: impl std::fmt::Display, health: Health, meaning: &str) -> Finding {
    Finding { health, subject, text: format!("{found}: {meaning}") }
}
