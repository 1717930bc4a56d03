//! A server with an API that keeps a ledger, as a process. The APIs are in `tests/peers`; to add a server, add its API there, a
//! variant of [`Server`], and its command.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use onceward_testkit::wait::{self, seen};

use crate::harness::{Output, Port};

/// How long the servers keep an idle connection. Shorter than their defaults, so that a test can wait for it many times.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Debian's packages bring these.
const JARS: &str = "/usr/share/java/jetty9-server.jar:/usr/share/java/jetty9-http.jar:/usr/share/java/jetty9-io.jar:\
                    /usr/share/java/jetty9-util.jar:/usr/share/java/servlet-api.jar";

#[derive(Debug, Clone, Copy)]
pub enum Server {
    UvicornH11,
    UvicornHttptools,
    GunicornSync,
    GunicornThreads,
    Express,
    Jetty,
}

/// Runs a program, and ends it when its standard input is closed: by the test, or by the end of this test program.
const KEEPER: &str =
    r#""$@" 2>&1 & server=$!; echo "pid $server"; read -r line; kill -TERM "$server"; wait "$server""#;

/// A server that runs an API.
pub struct Peer {
    server: Server,
    /// How long it keeps an idle connection. Nothing for its default.
    keep_alive: Option<Duration>,
    pub port: Port,
    /// Where the test command installed the servers.
    installed: PathBuf,
    /// The ledger, and a file for each name that was released.
    folder: PathBuf,
    running: Option<Running>,
}

struct Running {
    keeper: Child,
    pid: u32,
}

impl Peer {
    /// Starts a server. Nothing where the test command did not install it.
    pub fn start(server: Server, folder: &Path) -> Option<Self> {
        Self::start_with_keep_alive(server, Some(KEEP_ALIVE), folder)
    }

    /// The same, with a time for which it keeps an idle connection, or its default.
    pub fn start_with_keep_alive(
        server: Server,
        keep_alive: Option<Duration>,
        folder: &Path,
    ) -> Option<Self> {
        let Some(installed) = std::env::var_os("ONCEWARD_TEST_PEERS") else {
            println!("ONCEWARD_TEST_PEERS is not set: nothing was checked. Run `cargo xtask test`.");
            return None;
        };
        let folder = folder.join("peer");
        std::fs::create_dir(&folder).unwrap();
        let port = Port::reserve();
        let mut peer = Self { server, keep_alive, port, installed: installed.into(), folder, running: None };
        peer.run();
        Some(peer)
    }

    /// The command line that starts it, and the words that it prints when it takes connections.
    fn command(&self) -> (Vec<String>, &'static str) {
        let program = |name: &str| self.installed.join("python/bin").join(name).display().to_string();
        let port = self.port.address.port();
        let keep_alive = |option: &str| {
            self.keep_alive.map_or_else(String::new, |time| format!("{option} {}", time.as_secs()))
        };
        let gunicorn = |class: &str| {
            let line = format!(
                "{} wsgi:app --bind 127.0.0.1:{port} --worker-class {class} --workers 2 --threads 8 \
                 {} --graceful-timeout 10 --log-level info",
                program("gunicorn"),
                keep_alive("--keep-alive"),
            );
            (line, "Listening at")
        };
        let uvicorn = |http: &str| {
            let line = format!(
                "{} asgi:app --host 127.0.0.1 --port {port} --http {http} {} --no-access-log",
                program("uvicorn"),
                keep_alive("--timeout-keep-alive"),
            );
            (line, "Uvicorn running on")
        };
        let (line, ready) = match self.server {
            Server::UvicornH11 => uvicorn("h11"),
            Server::UvicornHttptools => uvicorn("httptools"),
            Server::GunicornSync => gunicorn("sync"),
            Server::GunicornThreads => gunicorn("gthread"),
            Server::Express => (format!("node express.js {port} {}", keep_alive("")), "listening"),
            Server::Jetty => (format!("java -cp {JARS} Jetty.java {port} {}", keep_alive("")), "listening"),
        };
        (line.split_whitespace().map(str::to_owned).collect(), ready)
    }

    /// Runs the server, and returns when it takes connections.
    pub fn run(&mut self) {
        let (words, ready) = self.command();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .args(&words)
            .current_dir(sources)
            .env("PEER_FOLDER", &self.folder)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NODE_PATH", self.installed.join("node_modules"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let printed = Output::of(keeper.stdout.take().unwrap());
        let pid = printed.next().and_then(|line| line.strip_prefix("pid ")?.parse().ok()).unwrap();
        let started = printed.find(|line| line.contains(ready).then_some(()));
        if let Err(lines) = &started {
            panic!("{words:?} ended:\n{}", lines.join("\n"));
        }
        assert!(!Path::new("/proc").exists() || is_running(pid), "{words:?} ended");
        self.running = Some(Running { keeper, pid });
    }

    /// Asks it to end, as a deployment does: it takes no more connections, and finishes the requests that it has begun.
    pub fn terminate(&self) {
        let pid = self.running.as_ref().unwrap().pid.to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Returns when it has ended.
    pub fn wait(&mut self) {
        let mut running = self.running.take().unwrap();
        drop(running.keeper.stdin.take());
        running.keeper.wait().unwrap();
    }

    /// How often each key was executed, by the ledger of the API.
    pub fn executions(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in std::fs::read_to_string(self.folder.join("ledger.txt")).unwrap_or_default().lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        counts
    }

    /// Returns when the execution of a key has begun.
    pub async fn until_begun(&self, key: &str) {
        let awaited = format!("the API executes {key}");
        wait::until(&awaited, async || seen(self.executions(), |executions| executions.contains_key(key)))
            .await;
    }

    /// Lets requests go on that wait for a name.
    pub fn release(&self, name: &str) {
        std::fs::write(self.folder.join(name), "").unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.wait();
        }
    }
}

fn is_running(pid: u32) -> bool {
    let mut state = String::new();
    std::fs::File::open(format!("/proc/{pid}/stat"))
        .is_ok_and(|mut file| file.read_to_string(&mut state).is_ok() && !state.contains(") Z "))
}
