//! Explains what the server's settings mean for durability.

use onceward::store::SystemClock;
use onceward::store::{Finding, Health};
use onceward::{Timestamp, store::Clock};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::migrate::{connect, installed};
use crate::schema::KNOWN;
use crate::url::Prepared;
use crate::{OpenError, PostgresUrl, error};

/// A larger offset shows that one of the two machines is not synchronized.
const CLOCK_OFFSET_MAX_MICROS: u64 = 1_000_000;
/// The oldest server that supports the statements.
const SERVER_VERSION_MIN: u32 = 130_000;

/// Reads a server's settings, and explains each of them.
pub async fn examine(url: &PostgresUrl) -> Result<Vec<Finding>, OpenError> {
    let failed = |error: tokio_postgres::Error| OpenError::Unreachable {
        url: url.to_string(),
        reason: error::words(&error),
    };
    let client = connect(url).await?;
    let settings = Settings { client: &client };
    let mut findings = vec![
        version(
            settings.get("server_version_num").await.map_err(failed)?,
            settings.get("server_version").await.map_err(failed)?,
        ),
        fsync(settings.get("fsync").await.map_err(failed)?),
        full_page_writes(settings.get("full_page_writes").await.map_err(failed)?),
    ];
    let standbys = settings.get("synchronous_standby_names").await.map_err(failed)?;
    findings.push(synchronous_commit(
        settings.get("synchronous_commit").await.map_err(failed)?,
        standbys.as_deref(),
    ));
    findings.push(synchronous_standby_names(standbys));
    findings.push(clock(&client).await.map_err(failed)?);
    findings.push(pooler(&client, url).await?);
    findings.push(statement_timeout(settings.get("statement_timeout").await.map_err(failed)?, url));
    findings.push(schema(installed(&client, url).await.map_err(failed)?));
    Ok(findings)
}

struct Settings<'a> {
    client: &'a Client,
}

impl Settings<'_> {
    /// A setting's value; `None` if this database has no such setting.
    async fn get(&self, name: &str) -> Result<Option<String>, tokio_postgres::Error> {
        scalar(self.client, &format!("SELECT current_setting('{name}', true)")).await
    }
}

/// The single value of a statement, by a simple query, which every pooler passes on.
async fn scalar(client: &Client, sql: &str) -> Result<Option<String>, tokio_postgres::Error> {
    let row = |message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None };
    let first = client.simple_query(sql).await?.into_iter().find_map(row);
    Ok(first.and_then(|row| row.get(0).map(str::to_owned)))
}

fn finding(subject: &'static str, found: Option<String>, health: Health, meaning: &str) -> Finding {
    let found = found.unwrap_or_else(|| "not reported".to_owned());
    Finding { health, subject, text: format!("{found}: {meaning}") }
}

fn version(number: Option<String>, name: Option<String>) -> Finding {
    let old = number
        .and_then(|number| number.parse::<u32>().ok())
        .is_some_and(|number| number < SERVER_VERSION_MIN);
    if old {
        return finding(
            "server version",
            name,
            Health::Problem,
            "the statements need PostgreSQL 13 or later: upgrade the server",
        );
    }
    finding("server version", name, Health::Good, "new enough")
}

fn fsync(found: Option<String>) -> Finding {
    match found.as_deref() {
        Some("off") => finding(
            "fsync",
            found,
            Health::Problem,
            "a power cut can lose or damage claims and answers that were acknowledged, and payments are then made twice: \
             set fsync = on",
        ),
        _ => finding("fsync", found, Health::Good, "what was acknowledged survives a power cut"),
    }
}

fn full_page_writes(found: Option<String>) -> Finding {
    match found.as_deref() {
        Some("off") => finding(
            "full_page_writes",
            found,
            Health::Problem,
            "a power cut can leave half-written pages that cannot be repaired: set full_page_writes = on, unless the \
             file system never tears a page",
        ),
        _ => finding("full_page_writes", found, Health::Good, "a page that was half written can be repaired"),
    }
}

fn synchronous_commit(found: Option<String>, standbys: Option<&str>) -> Finding {
    let subject = "synchronous_commit";
    let has_standbys = standbys.is_some_and(|names| !names.is_empty());
    match found.as_deref() {
        Some("off") => finding(
            subject,
            found,
            Health::Problem,
            "commits are acknowledged before they are on the disk: a crash forgets the last moments, and retried requests \
             of those moments are executed again. Set it to on for this role: ALTER ROLE … SET synchronous_commit = on",
        ),
        Some("local") if has_standbys => finding(
            subject,
            found,
            Health::Warning,
            "commits do not wait for the standby: a failover can forget claims that were acknowledged. Set it to on",
        ),
        Some("remote_write") => finding(
            subject,
            found,
            Health::Warning,
            "the standby acknowledges before its disk has it: losing both machines at once loses the last moments",
        ),
        _ => finding(subject, found, Health::Good, "a commit is on the disk before it is acknowledged"),
    }
}

fn synchronous_standby_names(found: Option<String>) -> Finding {
    let subject = "synchronous_standby_names";
    match found.as_deref() {
        None | Some("") => finding(
            subject,
            Some("none".to_owned()),
            Health::Warning,
            "what was acknowledged is on one machine. If you fail over to a standby, its last moments are missing, and \
             retried requests of those moments are executed again: name a synchronous standby, or never promote one by \
             itself. With one machine and no failover this is as it should be",
        ),
        Some(_) => {
            finding(subject, found, Health::Good, "a commit is on a second machine before it is acknowledged")
        }
    }
}

async fn clock(client: &Client) -> Result<Finding, tokio_postgres::Error> {
    let sent = SystemClock.now();
    let answer = scalar(client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").await?;
    let received = SystemClock.now();
    let server = answer.and_then(|micros| micros.parse().ok()).map(Timestamp::from_micros);
    let Some(server) = server else {
        return Ok(finding("clock", None, Health::Warning, "the server did not return its time"));
    };
    // Only an offset that the round trip cannot explain counts.
    let offset = server.since(received).max(sent.since(server));
    let found = Some(format!("{offset:?} apart"));
    if offset.as_micros() > u128::from(CLOCK_OFFSET_MAX_MICROS) {
        return Ok(finding(
            "clock",
            found,
            Health::Warning,
            "only the database's clock decides about leases and expiry, so nothing goes wrong; but logs disagree, and one \
             of the two machines is not synchronized: check its NTP",
        ));
    }
    Ok(finding("clock", found, Health::Good, "this machine and the database agree about the time"))
}

/// How often two clients ask for their backend, in turn. A busy pooler may give each the same one for a while.
const POOLER_QUESTIONS: usize = 32;

/// Two connected clients have one backend each, and keep it, unless a pooler assigns backends by transaction.
async fn pooler(client: &Client, url: &PostgresUrl) -> Result<Finding, OpenError> {
    let failed = |error: tokio_postgres::Error| OpenError::Unreachable {
        url: url.to_string(),
        reason: error::words(&error),
    };
    let other = connect(url).await?;
    let mut backends = [Vec::new(), Vec::new()];
    for _ in 0..POOLER_QUESTIONS {
        for (client, backends) in [client, &other].into_iter().zip(&mut backends) {
            backends.push(scalar(client, "SELECT pg_backend_pid()").await.map_err(failed)?);
        }
    }
    let [first, second] = &backends;
    let changed = |all: &[Option<String>]| all.windows(2).any(|two| two.first() != two.last());
    let shared = first == second || changed(first) || changed(second);
    let found = Some(if shared { "one, in transaction mode" } else { "none, or in session mode" }.to_owned());
    if shared && url.prepared == Prepared::On {
        return Ok(finding(
            "pooler",
            found,
            Health::Warning,
            "statements are prepared, and PgBouncer below 1.21 mixes them up in transaction mode: add prepared=off to the \
             URL, or set max_prepared_statements in PgBouncer 1.21 or later",
        ));
    }
    Ok(finding("pooler", found, Health::Good, "the way statements are sent works with it"))
}

fn statement_timeout(found: Option<String>, url: &PostgresUrl) -> Finding {
    let subject = "statement_timeout";
    let unlimited = matches!(found.as_deref(), None | Some("0"));
    if unlimited && url.prepared == Prepared::Off {
        return finding(
            subject,
            found,
            Health::Warning,
            "through a pooler the limit cannot come with the connection, and the role has none: a statement whose client has \
             gone could wait for a lock for ever. ALTER ROLE … SET statement_timeout = '5s'",
        );
    }
    finding(
        subject,
        found,
        Health::Good,
        "a gateway that connects without a pooler sets its own limit of five seconds",
    )
}

fn schema(found: Option<i32>) -> Finding {
    let shown = Some(found.map_or("none".to_owned(), |found| format!("version {found}")));
    match found {
        Some(found) if found == KNOWN => finding("schema", shown, Health::Good, "as this version needs it"),
        Some(found) if found > KNOWN => {
            finding("schema", shown, Health::Problem, "a newer Onceward made it: run the newer version")
        }
        Some(_) | None => finding(
            "schema",
            shown,
            Health::Warning,
            "the tables are missing or old: run `onceward migrate`, or let `onceward serve` create them when it starts",
        ),
    }
}
