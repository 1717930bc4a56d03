//! The gateway before the servers that people run their APIs on. They close connections when it suits them: after a failure,
//! after some idle time, when they are restarted. None of that may cost a keyed request its outcome, by the API's own ledger.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use onceward::plumbing::time::sleep;

use crate::harness::{Client, Gateway, Port, Request};

/// How long the servers keep an idle connection. Shorter than their defaults, so that a test has time for many.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Debian's packages bring these.
const JARS: &str = "/usr/share/java/jetty9-server.jar:/usr/share/java/jetty9-http.jar:/usr/share/java/jetty9-io.jar:\
                    /usr/share/java/jetty9-util.jar:/usr/share/java/servlet-api.jar";

#[derive(Debug, Clone, Copy)]
enum Server {
    UvicornH11,
    UvicornHttptools,
    GunicornSync,
    GunicornThreads,
    Express,
    Jetty,
}

/// Runs a program, and ends it when this test program ends, however that happens.
const KEEPER: &str =
    r#""$@" 2>&1 & server=$!; echo "pid $server"; read -r line; kill -TERM "$server"; wait "$server""#;

/// A server with an API that keeps a ledger.
struct Peer {
    server: Server,
    /// How long it keeps an idle connection, where that is not its default.
    keep_alive: Option<Duration>,
    port: Port,
    installed: PathBuf,
    folder: PathBuf,
    running: Option<Running>,
}

struct Running {
    keeper: Child,
    pid: u32,
}

impl Peer {
    /// Starts a server. Nothing where the test command did not install it.
    fn start(server: Server, folder: &Path) -> Option<Self> {
        Self::start_keeping(server, Some(KEEP_ALIVE), folder)
    }

    fn start_keeping(server: Server, keep_alive: Option<Duration>, folder: &Path) -> Option<Self> {
        let Some(installed) = std::env::var_os("ONCEWARD_TEST_PEERS") else {
            println!("ONCEWARD_TEST_PEERS is not set: nothing was checked. Run `cargo xtask test`.");
            return None;
        };
        let folder = folder.join("peer");
        std::fs::create_dir(&folder).unwrap();
        let port = Port::reserve();
        let mut peer = Self { server, keep_alive, port, installed: installed.into(), folder, running: None };
        peer.begin();
        Some(peer)
    }

    /// The words that start it, and those that it says when it takes connections.
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

    fn begin(&mut self) {
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
        let mut lines = BufReader::new(keeper.stdout.take().unwrap()).lines().map_while(Result::ok);
        let pid = lines.next().and_then(|line| line.strip_prefix("pid ")?.parse().ok()).unwrap();
        let said: Vec<String> = lines.by_ref().take_while(|line| !line.contains(ready)).collect();
        assert!(!Path::new("/proc").exists() || is_running(pid), "{words:?} ended:\n{}", said.join("\n"));
        // What it says later is read and dropped, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        self.running = Some(Running { keeper, pid });
    }

    /// Asks it to end, as a deployment does: it takes no connections any more, and finishes what it has begun.
    fn terminate(&self) {
        let pid = self.running.as_ref().unwrap().pid.to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Returns when it has ended.
    fn ended(&mut self) {
        let mut running = self.running.take().unwrap();
        drop(running.keeper.stdin.take());
        running.keeper.wait().unwrap();
    }

    /// How often the work of each key was done.
    fn ledger(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in std::fs::read_to_string(self.folder.join("ledger.txt")).unwrap_or_default().lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        counts
    }

    /// Returns when the work of a key has begun.
    async fn until_begun(&self, key: &str) {
        let begun = async {
            while !self.ledger().contains_key(key) {
                tokio::task::yield_now().await;
            }
        };
        let hangs = Duration::from_secs(60);
        tokio::time::timeout(hangs, begun).await.unwrap_or_else(|_| panic!("{key} never reached the API"));
    }

    /// Lets requests go on that wait for a name.
    fn release(&self, name: &str) {
        std::fs::write(self.folder.join(name), "").unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.ended();
        }
    }
}

fn is_running(pid: u32) -> bool {
    let mut state = String::new();
    std::fs::File::open(format!("/proc/{pid}/stat"))
        .is_ok_and(|mut file| file.read_to_string(&mut state).is_ok() && !state.contains(") Z "))
}

/// Clients at once, each with a connection of its own that it keeps.
const CLIENTS: usize = 8;

/// Sends requests one after the other from each client: every tenth fails in the API, in one way or another.
async fn charges_with_crashing_neighbours(server: Server, charges: usize) {
    let folder = tempfile::tempdir().unwrap();
    let Some(peer) = Peer::start(server, folder.path()) else { return };
    let gateway = Gateway::start(folder.path(), peer.port.address, &[]);
    let clients = (0..CLIENTS).map(|number| {
        let gateway = &gateway;
        async move {
            let mut client = gateway.connect().await;
            for turn in 0..charges / CLIENTS {
                if turn % 10 == 9 {
                    let key = format!("crash-{number}-{turn}");
                    let crash = if turn % 20 == 9 { "/crash" } else { "/crash-later" };
                    let neighbour = Request::new("POST", crash).body("{}");
                    // Also without a key, on a connection that others may get afterwards.
                    for neighbour in [neighbour.clone().header("idempotency-key", &key), neighbour] {
                        let mut client = gateway.connect().await;
                        client.write(&neighbour.bytes()).await;
                        // It may be answered, or broken off.
                        let _answer = client.read(false).await;
                    }
                }
                let key = format!("charge-{number}-{turn}");
                let answer = client.send(Request::charge(&key)).await;
                assert_eq!(answer.status, 201, "{server:?}, {key}: {answer:?}");
            }
        }
    });
    futures_util::future::join_all(clients).await;
    let ledger = peer.ledger();
    assert_eq!(ledger.len(), charges / CLIENTS * CLIENTS, "{server:?}: each charge was made");
    assert!(ledger.values().all(|count| *count == 1), "{server:?}: each charge was made once");
}

/// When requests are sent, after the connections of the gateway to the API were used last.
struct Idle {
    /// How long the server keeps them, where that is not its default.
    keep_alive: Option<Duration>,
    /// How long the first client waits.
    first: Duration,
    /// Between two clients, so that they are spread around the moment when the server closes.
    apart: Duration,
    rounds: usize,
}

impl Idle {
    /// Around the time that a test sets, many times.
    const SHORT: Self = Self {
        keep_alive: Some(KEEP_ALIVE),
        first: Duration::from_millis(968),
        apart: Duration::from_millis(2),
        rounds: 4,
    };

    /// Around a server's default. Gunicorn looks for old connections once in a second only.
    fn default_of(server: Server) -> Self {
        let keep_alive = match server {
            Server::UvicornH11 | Server::UvicornHttptools | Server::Express => Duration::from_secs(5),
            Server::GunicornThreads => Duration::from_secs(2),
            Server::GunicornSync => panic!("it keeps no connection"),
            Server::Jetty => panic!("its default is too long for a test"),
        };
        let first = keep_alive - Duration::from_millis(160);
        Self { keep_alive: None, first, apart: Duration::from_millis(40), rounds: 2 }
    }
}

/// Lets connections of the gateway to the API become as old as the API allows, then sends keyed requests.
async fn charges_around_the_end_of_idle_connections(server: Server, idle: Idle) {
    let Idle { keep_alive, first, apart, rounds } = idle;
    let folder = tempfile::tempdir().unwrap();
    let Some(peer) = Peer::start_keeping(server, keep_alive, folder.path()) else { return };
    // The gateway would keep connections longer than the server does, which is when they race.
    let gateway = Gateway::start(folder.path(), peer.port.address, &["--limits-upstream-idle", "10s"]);
    let clients = (0..32_u32).map(|number| {
        let gateway = &gateway;
        async move {
            let mut client: Client = gateway.connect().await;
            for round in 0..rounds {
                let hello = client.send(Request::new("GET", "/hello")).await;
                // The race that is tried can cost a request without a key its answer.
                assert!(matches!(hello.status, 200 | 502), "{hello:?}");
                sleep(first + apart * number).await;
                let key = format!("idle-{number}-{round}");
                let answer = client.send(Request::charge(&key)).await;
                assert_eq!(answer.status, 201, "{server:?}, {key}: {answer:?}");
            }
        }
    });
    futures_util::future::join_all(clients).await;
    let ledger = peer.ledger();
    assert_eq!(ledger.len(), 32 * rounds, "{server:?}: each charge was made");
    assert!(ledger.values().all(|count| *count == 1), "{server:?}: each charge was made once");
}

/// Restarts the API while it works, as a deployment does.
async fn charges_across_restarts(server: Server) {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut peer) = Peer::start(server, folder.path()) else { return };
    let gateway = Gateway::start(folder.path(), peer.port.address, &[]);
    for round in 0..3 {
        let (under_way, release) = (format!("under-way-{round}"), format!("go-{round}"));
        let gateway = &gateway;
        let working = Request::charge(&under_way).header("x-wait-for", &release);
        let restart = async {
            peer.until_begun(&under_way).await;
            // The API works on one request, and is asked to end.
            peer.terminate();
            peer.release(&release);
            tokio::task::block_in_place(|| peer.ended());
            // While it is away nothing is sent, and the client is told to come again.
            let key = format!("away-{round}");
            let away = gateway.charge(&key).await;
            assert_eq!(away.told(), (502, "idempotency_upstream_unreachable".to_owned()), "{server:?}");
            tokio::task::block_in_place(|| peer.begin());
            let again = gateway.charge(&key).await;
            assert_eq!(again.status, 201, "{server:?}: {again:?}");
        };
        let (worked, ()) = tokio::join!(gateway.send(working), restart);
        assert_eq!(worked.status, 201, "{server:?}: {worked:?}");
    }
    let ledger = peer.ledger();
    assert_eq!(ledger.len(), 6, "{server:?}: {ledger:?}");
    assert!(ledger.values().all(|count| *count == 1), "{server:?}: {ledger:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_charge_is_lost_or_made_twice_beside_crashing_handlers_of_uvicorn() {
    charges_with_crashing_neighbours(Server::UvicornH11, 2000).await;
    charges_with_crashing_neighbours(Server::UvicornHttptools, 2000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_charge_is_lost_or_made_twice_beside_crashing_handlers_of_gunicorn() {
    charges_with_crashing_neighbours(Server::GunicornSync, 800).await;
    charges_with_crashing_neighbours(Server::GunicornThreads, 800).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_charge_is_lost_or_made_twice_beside_crashing_handlers_of_express() {
    charges_with_crashing_neighbours(Server::Express, 800).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_charge_is_lost_or_made_twice_beside_crashing_handlers_of_jetty() {
    charges_with_crashing_neighbours(Server::Jetty, 800).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_charge_is_lost_when_uvicorn_closes_idle_connections() {
    charges_around_the_end_of_idle_connections(Server::UvicornH11, Idle::SHORT).await;
    charges_around_the_end_of_idle_connections(Server::UvicornHttptools, Idle::SHORT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_charge_is_lost_when_gunicorn_closes_idle_connections() {
    charges_around_the_end_of_idle_connections(Server::GunicornThreads, Idle::SHORT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_charge_is_lost_when_express_closes_idle_connections() {
    charges_around_the_end_of_idle_connections(Server::Express, Idle::SHORT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_charge_is_lost_when_jetty_closes_idle_connections() {
    charges_around_the_end_of_idle_connections(Server::Jetty, Idle::SHORT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_charge_is_lost_when_servers_close_idle_connections_after_their_default_times() {
    let servers = [Server::UvicornH11, Server::UvicornHttptools, Server::GunicornThreads, Server::Express];
    let races =
        servers.map(|server| charges_around_the_end_of_idle_connections(server, Idle::default_of(server)));
    futures_util::future::join_all(races).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_charge_is_lost_or_made_twice_across_restarts_of_any_server() {
    for server in
        [Server::UvicornH11, Server::GunicornSync, Server::GunicornThreads, Server::Express, Server::Jetty]
    {
        charges_across_restarts(server).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_of_the_api_to_its_other_spelling_of_a_path_leads_back_to_the_gateway() {
    for (server, target) in [(Server::UvicornH11, "/charges/"), (Server::GunicornSync, "/orders")] {
        let folder = tempfile::tempdir().unwrap();
        let Some(peer) = Peer::start(server, folder.path()) else { return };
        let gateway = Gateway::start(folder.path(), peer.port.address, &[]);
        let host = gateway.address.to_string();
        let request = Request { target, ..Request::charge("k") };
        let answer = gateway.send(request.header("host", &host)).await;
        assert!(matches!(answer.status, 307 | 308), "{server:?}: {answer:?}");
        let location = answer.header("location");
        let path = location.strip_prefix(&format!("http://{host}")).unwrap_or_else(|| panic!("{location}"));
        // The client follows with the same key, and is told that it named another request: nothing executes beside the gateway.
        let followed = gateway.send(Request { target: path, ..Request::charge("k") }).await;
        assert_eq!(followed.status, 422, "{server:?}: {followed:?}");
        assert_eq!(peer.ledger().len(), 0, "{server:?}");
    }
}

/// What a server could take for `/charges`.
const SPELLINGS: [&str; 24] = [
    "/charges",
    "/CHARGES",
    "/Charges/",
    "/charges?",
    "/charges/",
    "//charges",
    "/x/../charges",
    "/%63harges",
    "/charges;x",
    "/charges%3b",
    "/charges%2f",
    "/charges%5c",
    "/charges%20",
    "/charges%00",
    "/charges%09",
    "/charges%0a",
    "/charges%0d",
    "/charges%0a%0a",
    "/charges/%0a",
    "/charges.",
    "/charges%2e",
    "/charges%3f",
    "/charges%23",
    "/charges%c2%a0",
];

#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_of_a_path_gets_past_a_required_key_to_any_server() {
    for server in [Server::UvicornH11, Server::GunicornSync, Server::Express, Server::Jetty] {
        let folder = tempfile::tempdir().unwrap();
        let Some(peer) = Peer::start(server, folder.path()) else { return };
        let file = "[[routes]]\nmatch = \"POST /charges\"\nkey = \"required\"\n";
        std::fs::write(folder.path().join("onceward.toml"), file).unwrap();
        let gateway = Gateway::start(folder.path(), peer.port.address, &["--config", "onceward.toml"]);
        for target in SPELLINGS {
            let answer = gateway.send(Request::new("POST", target).body("{}")).await;
            assert!(answer.status >= 300 && peer.ledger().is_empty(), "{server:?}, {target}: {answer:?}");
        }
    }
}
