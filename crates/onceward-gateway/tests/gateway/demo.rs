//! The demo: every line that it prints is pasted into a shell.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::harness::{Output, onceward};

/// Each demo takes the usual ports if they are free, so two must not look for them at once.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a line in a shell, and returns what it printed.
fn paste(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
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

#[test]
fn every_line_of_the_demo_does_what_the_text_promises_and_no_file_is_left_behind() {
    let (_alone, folder) = (alone(), tempfile::tempdir().unwrap());
    let mut command = onceward(folder.path());
    command.arg("demo").env("TMPDIR", folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut demo = KilledOnDrop(command.spawn().unwrap());
    let printed = Output::of(demo.0.stdout.take().unwrap());
    // The lines to paste stand between the banner and this one.
    let shown =
        std::iter::from_fn(|| printed.next().filter(|line| !line.starts_with("Ctrl-C ends the demo")));
    let lines: Vec<String> = shown
        .map(|line| line.trim().to_owned())
        .filter(|line| line.starts_with("curl ") || line.starts_with("for "))
        .collect();
    let [charges @ .., unanswered, retried, resolved, count, ordered] = &lines[..] else {
        panic!("{lines:#?}")
    };
    let [first, again, other, two, lost, order, died_before, retry, died_after, replay] = charges else {
        panic!("{charges:#?}")
    };
    let charged = paste(first);
    assert!(charged.starts_with("HTTP/1.1 201 ") && charged.contains("\"amount\":1299"), "{charged}");
    assert!(!charged.contains("idempotency-replayed"), "{charged}");
    is_replayed(&paste(again));
    assert!(paste(other).starts_with("HTTP/1.1 422 "));
    let mut both: Vec<String> = paste(two).lines().map(str::to_owned).collect();
    both.sort();
    assert_eq!(both, ["201", "409"]);
    is_replayed(&paste(lost));

    // The shop has receipt rows.
    assert!(paste(order).starts_with("HTTP/1.1 201 "));
    let released = paste(died_before);
    assert!(released.starts_with("HTTP/1.1 502 ") && released.contains("x-should-retry: true"), "{released}");
    let executed = paste(retry);
    assert!(
        executed.starts_with("HTTP/1.1 201 ") && !executed.contains("idempotency-replayed"),
        "{executed}"
    );
    assert!(paste(died_after).starts_with("HTTP/1.1 201 "));
    is_replayed(&paste(replay));

    // The payments API has none: a person decides.
    assert!(paste(unanswered).starts_with("HTTP/1.1 502 "));
    assert!(paste(retried).starts_with("HTTP/1.1 409 "));
    let resolve = std::iter::from_fn(|| printed.next()).find(|line| line.contains("/resolve"));
    assert!(paste(&resolve.unwrap()).contains("\"completed\""));
    is_replayed(&paste(resolved));
    let account: serde_json::Value = serde_json::from_str(&paste(count)).unwrap();
    assert_eq!(account["charges"], serde_json::json!([1299, 500, 700, 300]));
    let account: serde_json::Value = serde_json::from_str(&paste(ordered)).unwrap();
    assert_eq!(account["orders"], serde_json::json!(["book", "lamp", "chair"]));

    let ended = Command::new("kill").args(["-s", "INT", &demo.0.id().to_string()]).status().unwrap();
    assert!(ended.success());
    assert_eq!(demo.0.wait().unwrap().code(), Some(0));
    is_empty(folder.path());
}

#[test]
fn the_demo_pastes_its_lines_by_itself_and_ends_without_an_error_or_a_file() {
    let (_alone, folder) = (alone(), tempfile::tempdir().unwrap());
    let mut command = onceward(folder.path());
    let output = command.args(["demo", "--auto"]).env("TMPDIR", folder.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // It fails where a line shows something else than was promised.
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for decision in
        ["execute", "completed", "replay", "refuse", "unknown", "voided", "released", "found", "dead"]
    {
        assert!(
            text.lines().any(|line| line.contains(&format!("  {decision}"))),
            "{decision} is not in {text}"
        );
    }
    assert!(text.contains(r#"{"charges":[1299,500,700,300],"count":4,"total":2799}"#), "{text}");
    assert!(text.contains(r#"{"count":3,"orders":["book","lamp","chair"]}"#), "{text}");
    is_empty(folder.path());
}

fn is_replayed(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 201 ") && answer.contains("idempotency-replayed: true"), "{answer}");
}

fn is_empty(folder: &Path) {
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
