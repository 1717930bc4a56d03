//! A child process that does not outlive its owner.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Starts the program after it as a child and prints its id; when its own input ends it sends the signal that is named
/// first, waits, and clears up the directory. The output of the program goes to a file.
const SCRIPT: &str = r#"
signal=$1; directory=$2; log=$2/log; shift 2
# A signal to the whole process group must not end the guardian before its work.
trap : TERM INT HUP PIPE
"$@" >>"$log" 2>&1 </dev/null &
pid=$!
echo "$pid"
# Ends with the pipe, or with the word that says which signal.
read -r word
kill -"${word:-$signal}" "$pid" 2>/dev/null
# A signal interrupts the wait, and not the one that is waited for.
until wait "$pid" || ! kill -0 "$pid" 2>/dev/null; do :; done
# No signal was named: the owner is gone, and needs nothing any more.
if [ -z "$word" ]; then rm -rf "$directory"; fi
echo ended 2>/dev/null
"#;

/// A program that is ended with its owner.
pub(super) struct Guarded {
    guardian: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
    pid: u32,
}

impl Guarded {
    /// `signal` is how it is asked to end, such as `INT`.
    pub(super) fn start(signal: &str, directory: &Path, program: &[String]) -> Self {
        let mut guardian = Command::new("sh")
            .args(["-c", SCRIPT, "guardian", signal])
            .arg(directory)
            .args(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell starts");
        let input = guardian.stdin.take();
        let mut output = BufReader::new(guardian.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("the guardian tells the process id");
        let pid = line.trim().parse().unwrap_or_else(|_| panic!("{program:?} was not started: {line:?}"));
        Self { guardian, input, output, pid }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it has ended by itself.
    pub(super) fn is_gone(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // A zombie waits for its guardian, and does nothing any more.
        status.is_empty() || status.contains(") Z ")
    }

    /// Ends it with this signal, and returns when it has ended.
    pub(super) fn end(&mut self, signal: &str) {
        if let Some(mut input) = self.input.take() {
            // A guardian that is gone already has ended its program.
            let _ = writeln!(input, "{signal}");
            drop(input);
            let mut line = String::new();
            let _ = self.output.read_line(&mut line);
        }
        let _ = self.guardian.wait();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.guardian.wait();
    }
}
