//! The secret that a new embedded store gets, and backups that include it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use onceward::{Engine, Identity};
use onceward_sqlite::{Options, SqliteStore};

use crate::harness::{Gateway, Request, onceward};
use crate::ledger::Ledger;

const SECRET: &str = "onceward.db.secret";
const PAGE: &str = include_str!("../../../../docs/sqlite.md");

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Runs `onceward check` on the store in a folder: whether a gateway could start, and what was printed.
fn check(folder: &Path, ledger: &Ledger) -> (bool, String) {
    let upstream = format!("http://{}", ledger.address);
    let words = ["check", "--scope", "fixed:test", "--store", "sqlite:onceward.db", "--upstream", &upstream];
    let output = onceward(folder).args(words).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

/// Uses a store without a secret, as earlier versions did.
async fn used_without_a_secret(path: &Path) {
    let store = SqliteStore::open(path, Options::default()).unwrap();
    let identity = Identity::in_namespace("default").scoped_by("fixed:test").unwrap();
    let engine = Engine::builder(Arc::new(store.clone())).open(identity).await.unwrap();
    engine.shut_down(Duration::ZERO).await;
    store.close().await;
}

#[tokio::test]
async fn a_new_store_gets_a_secret_that_hides_its_keys_and_every_later_start_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let path = folder.path().join(SECRET);
    let (fine, printed) = check(folder.path(), &ledger);
    assert!(fine && printed.contains("onceward.db.secret\" will be made at the first start"), "{printed}");
    assert!(!path.exists(), "a check makes nothing");

    let gateway = Gateway::start(folder.path(), ledger.address, &["--logs-level", "trace"]);
    assert_eq!(mode(&path), 0o600);
    assert_eq!(gateway.charge("order-1").await.status, 201);
    let listed = gateway.ask_admin(Request::new("GET", "/v1/operations")).await.text();
    assert!(listed.contains("completed") && !listed.contains("order-1"), "{listed}");
    let log = gateway.stop();
    let secret = std::fs::read_to_string(&path).unwrap();
    assert!(!log.contains(secret.trim()), "the secret is in the log");
    let (fine, printed) = check(folder.path(), &ledger);
    assert!(fine && printed.contains("onceward.db.secret\" is there, and is used"), "{printed}");

    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    assert!(gateway.charge("order-1").await.is_replayed());
    gateway.stop();

    let away = folder.path().join("away");
    std::fs::rename(&path, &away).unwrap();
    let (code, refused) = Gateway::refused(&mut Gateway::command(folder.path(), ledger.address));
    let (fine, checked) = check(folder.path(), &ledger);
    assert_eq!((code, fine), (Some(1), false), "{refused}{checked}");
    for printed in [refused, checked] {
        assert!(
            printed.contains("put the file back from the backup") && printed.contains(SECRET),
            "{printed}"
        );
    }
    assert!(!path.exists(), "a used store gets no new secret");
    std::fs::rename(&away, &path).unwrap();
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    assert!(gateway.charge("order-1").await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_lost_secret_forgets_no_key_although_a_change_of_identity_is_accepted() {
    let (folder, ledger, gateway) = Gateway::with_ledger(&["--accept-identity-change"]);
    assert_eq!(gateway.charge("order-1").await.status, 201);
    gateway.stop();
    let (path, away) = (folder.path().join(SECRET), folder.path().join("away"));
    std::fs::rename(&path, &away).unwrap();
    let upstream = format!("http://{}", ledger.address);
    for (scope, namespace) in [("fixed:test", "default"), ("fixed:other", "default"), ("fixed:test", "other")]
    {
        let mut command = Gateway::command_without_scope(folder.path(), &upstream);
        command.args(["--accept-identity-change", "--scope", scope, "--namespace", namespace]);
        let (code, printed) = Gateway::refused(&mut command);
        assert_eq!(code, Some(1), "{scope} {namespace}: {printed}");
        for advice in [SECRET, "put the file back", "configure the secret", "start with a new store"] {
            assert!(printed.contains(advice), "{scope} {namespace}: {advice}: {printed}");
        }
    }
    std::fs::rename(&away, &path).unwrap();
    let gateway = Gateway::start(folder.path(), ledger.address, &["--accept-identity-change"]);
    assert!(gateway.charge("order-1").await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_configured_secret_wins_and_no_file_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let configured = || {
        let mut command = Gateway::command(folder.path(), ledger.address);
        command.env("ONCEWARD_SECRET", "a secret of sixteen bytes or more");
        command
    };
    let gateway = Gateway::spawn(&mut configured());
    assert_eq!(gateway.charge("k").await.status, 201);
    gateway.stop();
    assert!(!folder.path().join(SECRET).exists());
    for flags in [&[][..], &["--accept-identity-change"]] {
        let mut command = Gateway::command(folder.path(), ledger.address);
        let (code, printed) = Gateway::refused(command.args(flags));
        assert_eq!(code, Some(1), "{flags:?}: {printed}");
        assert!(printed.contains("configure the secret"), "{flags:?}: {printed}");
    }
    let gateway = Gateway::spawn(&mut configured());
    assert!(gateway.charge("k").await.is_replayed());
}

#[tokio::test]
async fn a_store_that_was_used_without_a_secret_stays_without_one_and_both_commands_warn_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    used_without_a_secret(&folder.path().join("onceward.db")).await;
    let warning = "the store was used without a secret";
    let (fine, printed) = check(folder.path(), &ledger);
    let warned = printed.lines().any(|line| line.starts_with("warning") && line.contains(warning));
    assert!(fine && warned, "{printed}");
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    gateway.logged(warning);
    assert_eq!(gateway.charge("order-1").await.status, 201);
    let listed = gateway.ask_admin(Request::new("GET", "/v1/operations")).await.text();
    assert!(listed.contains("order-1"), "{listed}");
    assert!(!folder.path().join(SECRET).exists());
}

#[tokio::test]
async fn a_secret_that_a_crash_left_beside_an_empty_store_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let store = SqliteStore::open(folder.path().join("onceward.db"), Options::default()).unwrap();
    let identity = Identity::in_namespace("default").scoped_by("fixed:test").unwrap();
    let made = store.secret_or_new(&identity).await.unwrap().unwrap();
    drop(store);
    let (fine, printed) = check(folder.path(), &ledger);
    assert!(fine && printed.contains("is there, and is used"), "{printed}");
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    assert_eq!(gateway.charge("k").await.status, 201);
    gateway.stop();
    let store = SqliteStore::open(folder.path().join("onceward.db"), Options::default()).unwrap();
    assert_eq!(store.secret(&identity).await.unwrap().unwrap(), made);
}

/// Runs one of the shell blocks of the page, with a umask that lets others read new files.
fn paste(folder: &Path, number: usize) {
    let block = PAGE.split("```sh\n").nth(number).unwrap().split("```").next().unwrap();
    let line = format!("set -e\numask 022\n{block}");
    let output = Command::new("sh").args(["-c", &line]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{block}: {}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_backup_as_documented_is_readable_by_its_owner_alone_and_can_be_restored() {
    let (folder, ledger, gateway) = Gateway::with_ledger(&[]);
    assert_eq!(gateway.charge("k").await.status, 201);
    // A list flushes recent writes into the database file, so that the backup has them.
    assert_eq!(gateway.ask_admin(Request::new("GET", "/v1/operations")).await.status, 200);
    paste(folder.path(), 1);
    for name in ["backup.db", "backup.db.secret"] {
        assert_eq!(mode(&folder.path().join(name)), 0o600, "{name}");
    }
    gateway.stop();

    let restored = tempfile::tempdir().unwrap();
    for (from, to) in [("backup.db", "onceward.db"), ("backup.db.secret", SECRET)] {
        std::fs::copy(folder.path().join(from), restored.path().join(to)).unwrap();
    }
    paste(restored.path(), 2);
    let gateway = Gateway::start(restored.path(), ledger.address, &[]);
    assert!(gateway.charge("k").await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_store_that_every_user_can_read_is_warned_of_by_both_commands() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    drop(Gateway::start(folder.path(), ledger.address, &[]).stop());
    let path = folder.path().join("onceward.db");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (fine, printed) = check(folder.path(), &ledger);
    assert!(fine && printed.contains("chmod 600"), "{printed}");
    Gateway::start(folder.path(), ledger.address, &[]).logged("chmod 600");
}

#[tokio::test]
async fn a_secret_that_its_group_can_read_is_used_with_one_warning_and_one_for_every_user_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    drop(Gateway::start(folder.path(), ledger.address, &[]).stop());
    let path = folder.path().join(SECRET);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o440)).unwrap();
    let (fine, printed) = check(folder.path(), &ledger);
    let warned =
        printed.lines().any(|line| line.starts_with("warning") && line.contains("read by its group"));
    assert!(fine && warned, "{printed}");
    let log = Gateway::start(folder.path(), ledger.address, &[]).stop();
    assert_eq!(log.matches("can be read by its group (mode 440)").count(), 1, "{log}");

    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    let (code, printed) = Gateway::refused(&mut Gateway::command(folder.path(), ledger.address));
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains("every user of this machine (mode 444)") && printed.contains("chmod 600"),
        "{printed}"
    );
}
