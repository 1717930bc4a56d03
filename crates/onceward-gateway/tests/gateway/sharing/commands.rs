//! The commands for operators of a shared store.

use onceward_testkit::servers::{Postgres, RedisServer, shared_postgres};

use super::{on, start};
use crate::harness::{Gateway, Request, onceward};
use crate::ledger::Ledger;

/// Runs a command: whether it succeeded, and what it printed.
fn run(folder: &std::path::Path, words: &[&str]) -> (bool, String) {
    let output = onceward(folder).args(words).output().unwrap();
    let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), printed)
}

#[test]
fn a_database_administrator_is_shown_the_sql_that_migrate_would_run() {
    let folder = tempfile::tempdir().unwrap();
    let store = "postgres://onceward@db.invalid/shop";
    let (done, sql) = run(folder.path(), &["migrate", "--print-sql", "--store", store]);
    assert!(done, "{sql}");
    assert!(sql.contains("CREATE TABLE") && sql.contains("onceward.operations"), "{sql}");
    // It was printed without a database, and can be run in one.
    let server = Postgres::start();
    let database = server.create_database();
    let name = database.rsplit('/').next().unwrap();
    server.sql(name, &sql);
    let (done, printed) = run(folder.path(), &["migrate", "--store", &database]);
    assert!(done && printed.contains("up to date"), "{printed}");
}

#[test]
fn migrate_creates_the_tables_and_a_second_run_finds_them_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let store = shared_postgres();
    let (done, printed) = run(folder.path(), &["migrate", "--store", &store]);
    assert!(done, "{printed}");
    assert!(!printed.contains("nothing"), "{printed}");
    let (done, printed) = run(folder.path(), &["migrate", "--store", &store]);
    assert!(done && printed.contains("up to date"), "{printed}");
    let (done, printed) = run(folder.path(), &["migrate", "--store", "sqlite:onceward.db"]);
    assert!(!done && printed.contains("postgres://"), "{printed}");
}

#[test]
fn check_explains_what_the_settings_of_the_server_mean_for_durability() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let server = Postgres::start();
    let store = server.create_database();
    drop(start(&store, folder.path(), &ledger));
    let upstream = format!("http://{}", ledger.address);
    let check = || {
        run(folder.path(), &["check", "--store", &store, "--upstream", &upstream, "--scope", "fixed:test"])
    };
    let (done, printed) = check();
    assert!(done, "{printed}");
    for word in ["synchronous_commit", "fsync", "full_page_writes", "synchronous_standby_names", "clock"] {
        assert!(printed.contains(word), "nothing about {word}: {printed}");
    }
    server.sql("postgres", "ALTER SYSTEM SET synchronous_commit = off");
    server.sql("postgres", "SELECT pg_reload_conf()");
    let (_, printed) = check();
    assert!(
        printed.lines().any(|line| !line.starts_with("ok") && line.contains("synchronous_commit")),
        "{printed}"
    );
}

#[test]
fn a_gateway_warns_at_its_start_that_its_database_acknowledges_commits_that_a_crash_can_lose() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let server = Postgres::start();
    server.sql("postgres", "ALTER SYSTEM SET synchronous_commit = off");
    server.sql("postgres", "SELECT pg_reload_conf()");
    let printed = start(&server.create_database(), folder.path(), &ledger).stop();
    assert!(printed.contains("synchronous_commit") && printed.contains("executed again"), "{printed}");
}

#[test]
fn a_gateway_warns_of_what_check_warns_of_in_the_same_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let store = shared_postgres();
    let upstream = format!("http://{}", ledger.address);
    let words = ["--store", &store, "--upstream", &upstream, "--scope", "authorization", "--retention", "5m"];
    let (done, checked) = run(folder.path(), &[&["check"], &words[..]].concat());
    assert!(done, "{checked}");
    let mut command = onceward(folder.path());
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]).args(words);
    let logged = Gateway::spawn(&mut command).stop();
    for warning in [
        "without a `secret`",
        "is short: a retry that comes later",
        "every change of an operation is refused",
    ] {
        assert!(
            checked.lines().any(|line| line.starts_with("warning") && line.contains(warning)),
            "{checked}"
        );
        assert!(logged.lines().any(|line| line.contains("WARN") && line.contains(warning)), "{logged}");
    }
}

#[test]
fn check_explains_a_redis_that_could_lose_keys() {
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(&[]);
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (done, printed) = run(folder.path(), &["check", "--store", &redis.url(), "--scope", "fixed:test"]);
    assert!(!done && printed.contains("maxmemory-policy"), "{printed}");
}

#[test]
fn a_password_in_the_stores_url_is_shown_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    for (scheme, database) in [("postgres", "shop"), ("redis", "0")] {
        let store = format!("{scheme}://app:hunter2secret@127.0.0.1:1/{database}");
        let (code, printed) = Gateway::refused(&mut on(&store, folder.path(), &ledger));
        assert_eq!(code, Some(1), "{printed}");
        let words = ["--store", &store, "--scope", "fixed:test"];
        let (_, shown) = run(folder.path(), &[&["config"], &words[..]].concat());
        let (_, checked) = run(folder.path(), &[&["check"], &words[..]].concat());
        for text in [printed, shown, checked] {
            assert!(!text.contains("hunter2secret"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_list_that_is_read_one_by_one_has_no_empty_page_before_its_end_in_any_store() {
    let redis = RedisServer::start(&[]);
    for store in ["sqlite:onceward.db".to_owned(), shared_postgres(), redis.url()] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::start(folder.path());
        let gateway = start(&store, folder.path(), &ledger);
        for key in ["a", "b", "c"] {
            assert_eq!(gateway.charge(key).await.status, 201);
        }
        let (mut seen, mut cursor) = (0, String::new());
        loop {
            let target = format!("/v1/operations?limit=1&cursor={cursor}");
            let page = gateway.ask_admin(Request::new("GET", &target)).await.json();
            let found = page["operations"].as_array().unwrap().len();
            seen += found;
            assert!(seen <= 3, "the list does not end: {store}");
            let Some(next) = page["next_cursor"].as_str() else { break };
            assert_eq!(found, 1, "an empty page with a next cursor: {page}");
            next.clone_into(&mut cursor);
        }
        assert_eq!(seen, 3, "{store}");
    }
}
