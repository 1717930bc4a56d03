//! The demo: every line that it prints is pasted into a shell.

use std::process::{Child, Command, Stdio};

use crate::harness::{Output, onceward};

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
    let folder = tempfile::tempdir().unwrap();
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
    let [first, again, other, two, lost, gone, retried, count] = &lines[..] else { panic!("{lines:#?}") };
    let charged = paste(first);
    assert!(charged.starts_with("HTTP/1.1 201 ") && charged.contains("\"amount\":1299"), "{charged}");
    assert!(!charged.contains("idempotency-replayed"), "{charged}");
    let replayed = paste(again);
    assert!(
        replayed.starts_with("HTTP/1.1 201 ") && replayed.contains("idempotency-replayed: true"),
        "{replayed}"
    );
    assert!(paste(other).starts_with("HTTP/1.1 422 "));
    let mut both: Vec<String> = paste(two).lines().map(str::to_owned).collect();
    both.sort();
    assert_eq!(both, ["201", "409"]);
    let answer = paste(lost);
    assert!(answer.starts_with("HTTP/1.1 201 ") && answer.contains("idempotency-replayed: true"), "{answer}");
    assert!(paste(gone).starts_with("HTTP/1.1 502 "));
    assert!(paste(retried).starts_with("HTTP/1.1 409 "));
    let account: serde_json::Value = serde_json::from_str(&paste(count)).unwrap();
    assert_eq!(account["charges"], serde_json::json!([1299, 500, 700, 300]));

    let ended = Command::new("kill").args(["-s", "INT", &demo.0.id().to_string()]).status().unwrap();
    assert!(ended.success());
    assert_eq!(demo.0.wait().unwrap().code(), Some(0));
    let rest = printed.rest();
    for decision in ["execute", "completed", "replay", "refuse", "unknown"] {
        assert!(rest.iter().any(|line| line.contains(decision)), "{decision} is not in {rest:#?}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
