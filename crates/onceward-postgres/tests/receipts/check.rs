//! What `onceward check` says about the database of a receipt table.

use std::time::Duration;

use onceward::store::{Clock, Finding, Health, SystemClock};
use onceward::{Timestamp, receipts::TableName};
use onceward_postgres::PostgresUrl;
use onceward_postgres::receipts::examine;
use onceward_testkit::servers::{Postgres, PostgresOptions};

use crate::handler::table_in;
use crate::support::client;

async fn findings(url: &str, name: &TableName) -> Vec<Finding> {
    examine(&PostgresUrl::parse(url).unwrap(), name, SystemClock.now()).await.unwrap()
}

#[track_caller]
fn health(findings: &[Finding], subject: &str) -> Health {
    findings
        .iter()
        .find(|finding| finding.subject == subject)
        .unwrap_or_else(|| panic!("no {subject}: {findings:?}"))
        .health
}

const SUBJECTS: [&str; 10] = [
    "receipt server",
    "receipt clock",
    "receipt table",
    "receipt storage",
    "receipt functions",
    "receipt rights",
    "receipt synchronous_commit",
    "receipt idle_in_transaction_session_timeout",
    "receipt tcp_keepalives_idle",
    "receipt lock_timeout",
];

#[tokio::test]
async fn a_careful_server_is_found_good_and_every_lack_is_named() {
    let settings = [("idle_in_transaction_session_timeout", "60s"), ("tcp_keepalives_idle", "60")];
    let careful = Postgres::start_with(&PostgresOptions {
        settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        ..PostgresOptions::default()
    });
    let url = careful.create_database();
    let table = table_in(&url).await;
    let good = findings(&url, &table.name).await;
    for subject in SUBJECTS {
        assert_eq!(health(&good, subject), Health::Good, "{good:?}");
    }
    assert_eq!(good.len(), SUBJECTS.len());
    let (owner, quoted, schema) = (client(&url).await, table.name.quoted(), table.name.schema().unwrap());
    let database = url.rsplit_once('/').unwrap().1;
    for (change, subject, expected) in [
        (format!("ALTER TABLE {quoted} SET UNLOGGED"), "receipt storage", Health::Problem),
        (format!("DROP FUNCTION {schema}.onceward_enter"), "receipt functions", Health::Problem),
        (format!("ALTER TABLE {quoted} ALTER status TYPE bigint"), "receipt table", Health::Problem),
        (
            format!("ALTER DATABASE {database} SET synchronous_commit = off"),
            "receipt synchronous_commit",
            Health::Warning,
        ),
        (
            format!("ALTER DATABASE {database} SET idle_in_transaction_session_timeout = 0"),
            "receipt idle_in_transaction_session_timeout",
            Health::Warning,
        ),
        (
            format!("ALTER DATABASE {database} SET tcp_keepalives_idle = 7200"),
            "receipt tcp_keepalives_idle",
            Health::Warning,
        ),
        (
            format!("ALTER DATABASE {database} SET default_transaction_read_only = on"),
            "receipt server",
            Health::Problem,
        ),
    ] {
        owner.batch_execute(&change).await.unwrap();
        let found = findings(&url, &table.name).await;
        assert_eq!(health(&found, subject), expected, "{change}: {found:?}");
    }
}

#[tokio::test]
async fn a_missing_table_a_role_without_rights_and_a_standby_are_problems() {
    let primary = Postgres::start();
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", primary.port());
    let missing = findings(&url, &"nowhere.onceward_receipts".parse().unwrap()).await;
    assert_eq!(health(&missing, "receipt table"), Health::Problem);
    let table = table_in(&url).await;
    let (quoted, schema) = (table.name.quoted(), table.name.schema().unwrap());
    let owner = client(&url).await;
    owner
        .batch_execute(&format!(
            "CREATE ROLE gateway LOGIN; GRANT USAGE ON SCHEMA {schema} TO gateway; GRANT SELECT, INSERT ON {quoted} TO gateway;
             ALTER ROLE gateway SET idle_in_transaction_session_timeout = 0;
             CREATE ROLE app; ALTER ROLE app SET idle_in_transaction_session_timeout = '30s'"
        ))
        .await
        .unwrap();
    let as_gateway = findings(&url.replace("postgres@", "gateway@"), &table.name).await;
    let rights = as_gateway.iter().find(|finding| finding.subject == "receipt rights").unwrap();
    assert_eq!(rights.health, Health::Problem);
    assert!(rights.text.starts_with("UPDATE, DELETE missing"), "{rights:?}");
    // The handler's role has the setting.
    assert_eq!(health(&as_gateway, "receipt idle_in_transaction_session_timeout"), Health::Good);
    let standby = primary.start_standby();
    let there = format!("postgres://postgres@127.0.0.1:{}/postgres", standby.server().port());
    let found = findings(&there, &table.name).await;
    assert_eq!(health(&found, "receipt server"), Health::Problem);
}

#[tokio::test]
async fn a_clock_that_is_a_minute_off_is_noticed_in_both_directions() {
    let table = crate::handler::table().await;
    let (url, minute) = (PostgresUrl::parse(&table.url).unwrap(), Duration::from_secs(60));
    let now = SystemClock.now();
    let behind = Timestamp::from_micros(now.as_micros() - 61_000_000);
    for (now, expected) in
        [(now, Health::Good), (now.after(10 * minute), Health::Warning), (behind, Health::Warning)]
    {
        let found = examine(&url, &table.name, now).await.unwrap();
        assert_eq!(health(&found, "receipt clock"), expected, "{found:?}");
    }
}
