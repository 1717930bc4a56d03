//! The gateway as a process: the real binary, on free ports, with a store in the test's folder.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::{Client, Output, Request, Response};

/// A gateway that runs.
pub struct Gateway {
    pub child: Child,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    /// What it prints on standard error.
    pub log: Output,
}

impl Gateway {
    /// Starts the gateway with more arguments than the ones that every test needs.
    pub fn start(folder: &Path, upstream: SocketAddr, arguments: &[&str]) -> Self {
        let mut command = Self::command(folder, upstream);
        command.args(arguments);
        Self::spawn(&mut command)
    }

    /// The command that most tests need: free ports, a store in the folder, and one scope.
    pub fn command(folder: &Path, upstream: SocketAddr) -> Command {
        let mut command = Self::command_without_scope(folder, &format!("http://{upstream}"));
        command.args(["--scope", "fixed:test"]);
        command
    }

    /// The same, for tests that choose the scope, or write another URL of the upstream.
    pub fn command_without_scope(folder: &Path, upstream: &str) -> Command {
        let mut command = Self::command_without_upstream(folder);
        command.args(["--listen", "127.0.0.1:0", "--upstream", upstream]);
        command
    }

    /// The same, for tests that choose everything but the store and the admin listener.
    pub fn command_without_upstream(folder: &Path) -> Command {
        let mut command = onceward(folder);
        command.args(["serve", "--admin-listen", "127.0.0.1:0", "--store", "sqlite:onceward.db"]);
        command
    }

    /// Starts the gateway, and panics with its log if it does not start.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = piped(command).spawn().unwrap();
        let log = Output::of(child.stderr.take().unwrap());
        let stdout = Output::of(child.stdout.take().unwrap());
        let address_after = |prefix: &str| {
            let printed = stdout.find(|line| Some(line.strip_prefix(prefix)?.split_once("://")?.1.parse()));
            let Ok(address) = printed else {
                panic!("the gateway did not start:\n{}", log.rest().join("\n"))
            };
            address.unwrap()
        };
        let (address, admin) = (address_after("listening on "), address_after("admin on "));
        Self { child, address, admin, log }
    }

    /// Starts it so that nothing reads its standard error from the beginning, and its standard output once it has started.
    pub fn spawn_unread(command: &mut Command) -> Self {
        let unread = std::io::pipe().unwrap().1;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(unread).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut next_address = || lines.next().unwrap().split_once("://").unwrap().1.parse().unwrap();
        let (address, admin) = (next_address(), next_address());
        Self { child, address, admin, log: Output::none() }
    }

    /// Runs a gateway that must refuse to start. Returns its exit code and its standard error.
    pub fn refused(command: &mut Command) -> (Option<i32>, String) {
        let mut child = piped(command).spawn().unwrap();
        // A gateway that starts prints where it listens.
        let mut printed = [0; 1];
        let started = child.stdout.take().unwrap().read(&mut printed).unwrap() > 0;
        if started {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(!started, "the gateway started, and should have refused to");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    /// Waits until it has ended by itself.
    pub fn ended(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Ends it at once, as a crash does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Ends it as an operator does. Returns the part of its log that the test has not read.
    pub fn stop(mut self) -> String {
        self.signal("TERM");
        let log = self.log.rest().join("\n");
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{log}");
        log
    }

    /// The next line of the log that has these words. Returns once it has come.
    pub fn logged(&self, words: &str) -> String {
        let found = self.log.find(|line| line.contains(words).then(|| line.to_owned()));
        found.unwrap_or_else(|log| panic!("the gateway ended without logging {words:?}:\n{}", log.join("\n")))
    }

    pub async fn connect(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Sends one request on a connection of its own.
    pub async fn send(&self, request: Request<'_>) -> Response {
        self.connect().await.send(request).await
    }

    /// Sends a charge under a key.
    pub async fn charge(&self, key: &str) -> Response {
        self.send(Request::charge(key)).await
    }

    /// Sends a charge that waits while another request executes its key, as long as the route allows.
    pub async fn await_charge(&self, key: &str) -> Response {
        self.send(Request::charge(key).header("prefer", "wait=10")).await
    }

    /// Sends bytes as they are, and reads one answer.
    pub async fn raw(&self, bytes: impl AsRef<[u8]>) -> Response {
        let bytes = bytes.as_ref();
        let mut client = self.connect().await;
        client.write(bytes).await;
        client.read().await.unwrap_or_else(|| {
            panic!("no answer to {}", String::from_utf8_lossy(&bytes[..bytes.len().min(300)]))
        })
    }

    /// Asks the status resource of a key, as a caller without credentials.
    pub async fn status_of(&self, key: &str) -> Response {
        self.send(Request::new("GET", &format!("/.well-known/idempotency/status/{key}"))).await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

fn piped(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())
}

/// The command line in a folder, without the environment, which could configure it.
pub fn onceward(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onceward"));
    command.current_dir(folder).env_clear();
    command
}

/// The same, of the former version. Nothing where the test command did not build it.
pub fn former(folder: &Path) -> Option<Command> {
    let mut command = Command::new(std::env::var_os("ONCEWARD_TEST_FORMER")?);
    command.current_dir(folder).env_clear();
    Some(command)
}
