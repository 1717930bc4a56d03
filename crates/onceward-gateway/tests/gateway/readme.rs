//! The README as a test: only ports and the path of the program differ.

use std::path::Path;
use std::process::Command;

use crate::harness::{Gateway, Request, onceward};
use crate::ledger::Ledger;

const API: &str = "http://127.0.0.1:3000";

fn readme() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap()
}

/// Its blocks of one kind.
fn blocks(kind: &str) -> Vec<String> {
    let (text, fence) = (readme(), format!("```{kind}\n"));
    let found = text.split(&fence).skip(1);
    found.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// The one line of a console block that begins like this.
fn line(start: &str) -> String {
    let lines: Vec<String> = blocks("console").concat().lines().map(str::to_owned).collect();
    let found = lines.iter().find(|line| line.starts_with(start));
    let line = found.unwrap_or_else(|| panic!("no line begins with {start:?} among {lines:#?}"));
    line.split(" #").next().unwrap().trim().to_owned()
}

/// A line of the README as a command of the program that was built here, with another API and on free ports.
fn command(folder: &Path, line: &str, ledger: &Ledger) -> Command {
    let api = format!("http://{}", ledger.address);
    let words = line.trim_start_matches("cargo run --release -- ").trim_start_matches("onceward ");
    let mut command = onceward(folder);
    command.args(words.replace(API, &api).split(' '));
    if words.starts_with("serve") {
        command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    }
    command
}

#[tokio::test]
async fn the_first_command_serves_and_the_curl_line_is_replayed_the_second_time() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let serve = line("cargo run --release -- serve");
    assert!(serve.contains(API), "{serve}");
    let gateway = Gateway::spawn(&mut command(folder.path(), &serve, &ledger));
    let curl = line("curl -i http://127.0.0.1:8420/payments");
    let curl = curl.replace("127.0.0.1:8420", &gateway.address.to_string());
    for replayed in [false, true] {
        let output = Command::new("sh").args(["-c", &curl]).output().unwrap();
        let answer = String::from_utf8(output.stdout).unwrap();
        assert!(answer.starts_with("HTTP/1.1 201 "), "{curl}: {answer}");
        assert_eq!(answer.contains("idempotency-replayed: true"), replayed, "{answer}");
    }
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn the_file_can_be_checked_shown_and_served() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let [file] = &blocks("toml")[..] else { panic!("{:?}", blocks("toml")) };
    assert!(file.contains(API), "{file}");
    let file = file.replace(API, &format!("http://{}", ledger.address));
    std::fs::write(folder.path().join("onceward.toml"), file).unwrap();
    for start in ["onceward check", "onceward config"] {
        let output = command(folder.path(), &line(start), &ledger).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{start}: {text}");
        assert!(text.contains("onceward.toml"), "{start}: {text}");
    }
    let gateway = Gateway::spawn(&mut command(folder.path(), &line("onceward serve"), &ledger));
    let refused = gateway.send(Request::new("POST", "/payments").body("{}")).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.header("link").contains("describedby"), "{refused:?}");
    let key = Request::charge("k").header("authorization", "Bearer sk_1");
    assert_eq!(gateway.send(Request { target: "/payments", ..key }).await.status, 201);
    let policy = gateway.send(Request::new("GET", "/.well-known/idempotency")).await;
    assert_eq!(policy.json()["routes"][0]["match"], "POST /payments", "{policy:?}");
}
