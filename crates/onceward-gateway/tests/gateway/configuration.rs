//! Configuration of the real binary: its commands, and a file that changes while it runs.

use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{Gateway, Request, onceward};
use crate::ledger::Ledger;

/// Runs a command. Its exit code, and what it printed on both streams.
fn run(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout) + &text(stderr))
}

/// Starts a gateway that is configured by a file alone.
fn with_file(folder: &Path, ledger: &Ledger, routes: &str) -> Gateway {
    write_file(folder, ledger, "127.0.0.1:0", routes);
    Gateway::spawn(onceward(folder).args(["serve", "--config", "onceward.toml"]))
}

fn write_file(folder: &Path, ledger: &Ledger, listen: &str, routes: &str) {
    let text = format!(
        "listen = \"{listen}\"\nupstream = \"http://{}\"\nscope = [\"fixed:test\"]\nadmin.listen = \"127.0.0.1:0\"\n{routes}",
        ledger.address
    );
    std::fs::write(folder.join("onceward.toml"), text).unwrap();
}

const REQUIRED: &str = "[[routes]]\nmatch = \"POST /payments\"\nkey = \"required\"\n";
const STRICT: &str = "[[routes]]\nmatch = \"POST /payments\"\nsyntax = \"strict\"\n";

#[tokio::test]
async fn sighup_loads_other_routes_and_keeps_the_old_ones_if_the_file_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = with_file(folder.path(), &ledger, REQUIRED);
    let without = || Request::new("POST", "/payments").body("{}");
    let with = |key| without().header("idempotency-key", key);
    assert_eq!(gateway.send(without()).await.status, 400);
    assert_eq!(gateway.send(with("kept")).await.status, 201);

    write_file(folder.path(), &ledger, "127.0.0.1:0", STRICT);
    gateway.signal("HUP");
    gateway.logged("reloaded: routes; unchanged: tokens");
    assert_eq!(gateway.send(without()).await.status, 201);
    assert_eq!(gateway.send(with("k")).await.status_and_code(), (400, "idempotency_key_invalid".to_owned()));
    assert!(gateway.send(with("\"kept\"")).await.is_replayed(), "what is stored stays");

    // One good change and one mistake: neither takes effect.
    write_file(folder.path(), &ledger, "127.0.0.1:0", &format!("{REQUIRED}sintax = \"strict\"\n"));
    gateway.signal("HUP");
    gateway.logged("nothing was reloaded: the configuration is wrong");
    assert_eq!(gateway.send(without()).await.status, 201);
    assert_eq!(gateway.send(with("k")).await.status, 400);

    // A corrected file is loaded.
    write_file(folder.path(), &ledger, "127.0.0.1:0", REQUIRED);
    gateway.signal("HUP");
    gateway.logged("reloaded: routes; unchanged: tokens");
    assert_eq!(gateway.send(without()).await.status, 400);
}

#[tokio::test]
async fn a_mistake_in_a_reloaded_file_is_logged_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = with_file(folder.path(), &ledger, REQUIRED);
    write_file(
        folder.path(),
        &ledger,
        "127.0.0.1:0",
        "[[routes]]\nmatch = \"POST /payments\"\nkei = \"required\"\n",
    );
    gateway.signal("HUP");
    let line = gateway.logged("onceward.toml:7");
    assert!(line.contains("kei"), "{line}");
}

#[tokio::test]
async fn a_setting_that_needs_a_restart_is_refused_and_nothing_else_of_the_file_takes_effect() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = with_file(folder.path(), &ledger, REQUIRED);
    write_file(folder.path(), &ledger, "127.0.0.1:1", "");
    gateway.signal("HUP");
    let line = gateway.logged("nothing was reloaded");
    assert!(line.contains("listen") && line.contains("restart"), "{line}");
    assert_eq!(gateway.send(Request::new("POST", "/payments").body("{}")).await.status, 400);
}

#[test]
fn serving_without_a_scope_exits_with_2_and_prints_the_choices() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = run(onceward(folder.path()).args(["serve", "--upstream", "http://127.0.0.1:1"]));
    assert_eq!(code, Some(2), "{text}");
    for choice in ["authorization", "header:", "basic:user", "fixed:"] {
        assert!(text.contains(choice), "{choice} is not in {text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn an_unknown_key_exits_with_2_and_prints_its_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("my.toml"), "scope = [\"fixed:a\"]\n\nupstreem = \"http://a\"\n")
        .unwrap();
    for command in ["serve", "config"] {
        let (code, text) = run(onceward(folder.path()).args([command, "--config", "my.toml"]));
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("my.toml:3") && text.contains("`upstream`"), "{text}");
    }
    let (code, text) = run(onceward(folder.path()).args(["check", "--config", "my.toml"]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("my.toml:3"), "{text}");
}

#[tokio::test]
async fn the_commands_describe_the_gateway_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = with_file(folder.path(), &ledger, REQUIRED);
    let onceward = |arguments: &[&str]| run(onceward(folder.path()).args(arguments));
    let (code, text) = onceward(&["check", "--config", "onceward.toml"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("speaks HTTP/1.1") && text.contains("all is well"), "{text}");

    let (code, text) = onceward(&["config", "--config", "onceward.toml", "--retention", "7d"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("onceward.toml:") && text.contains("--retention"), "{text}");
    // What it prints can be used as it is.
    std::fs::write(folder.path().join("shown.toml"), &text).unwrap();
    let (code, text) = onceward(&["config", "--json", "--config", "shown.toml"]);
    assert_eq!(code, Some(0), "{text}");
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown["values"]["defaults"]["retention"], "7d", "{shown:#}");

    let (code, text) = onceward(&["config", "--schema"]);
    let schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, schema["properties"]["routes"].is_object()), (Some(0), true), "{schema:#}");

    let url = format!("http://{}", gateway.admin);
    let (code, text) = onceward(&["healthcheck", "--url", &url]);
    assert_eq!((code, text.starts_with("ready")), (Some(0), true), "{text}");
}

#[tokio::test]
async fn a_gateway_that_drains_is_not_ready_and_exits_with_0_when_its_work_is_done() {
    let (folder, ledger, mut gateway) = Gateway::with_ledger(&[]);
    let mut runs = gateway.send_held(&ledger, "k", Request::charge("k")).await;
    let mut idle = gateway.connect().await;
    assert_eq!(idle.send(Request::new("GET", "/a")).await.status, 201);
    gateway.signal("TERM");
    // Readiness fails first, and idle connections end after that.
    assert!(idle.closed().await);
    let url = format!("http://{}", gateway.admin);
    let (code, text) = run(onceward(folder.path()).args(["healthcheck", "--url", &url]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("draining"), "{text}");
    ledger.release("k").await;
    let answer = runs.read().await.unwrap();
    assert_eq!(answer.status, 201);
    assert_eq!(gateway.ended().code(), Some(0));
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    assert!(gateway.send(Request::charge("k").behave("hold=k")).await.is_replayed());
}
