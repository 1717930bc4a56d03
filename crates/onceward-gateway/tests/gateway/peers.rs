//! The gateway in front of the servers that people run their APIs on (`server.rs`). They close connections after a failure, after
//! some idle time, and when they are restarted. No keyed request may lose its outcome by that, nor be executed twice.

mod server;

use std::time::Duration;

use onceward::plumbing::time::sleep;

use self::server::{KEEP_ALIVE, Peer, Server};
use crate::harness::{Client, Gateway, Request};

/// Clients at once, each with a connection of its own that it keeps.
const CLIENTS: usize = 8;

/// Sends charges one after the other from each client, and beside every tenth one two requests whose handlers crash.
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
                    // The one without a key uses a connection that other requests may get afterwards.
                    for neighbour in [neighbour.clone().header("idempotency-key", &key), neighbour] {
                        let mut client = gateway.connect().await;
                        client.write(&neighbour.bytes()).await;
                        // It may be answered, or broken off.
                        let _answer = client.read().await;
                    }
                }
                let key = format!("charge-{number}-{turn}");
                let answer = client.send(Request::charge(&key)).await;
                assert_eq!(answer.status, 201, "{server:?}, {key}: {answer:?}");
            }
        }
    });
    futures_util::future::join_all(clients).await;
    let executions = peer.executions();
    assert_eq!(executions.len(), charges / CLIENTS * CLIENTS, "{server:?}: each charge was made");
    assert!(executions.values().all(|count| *count == 1), "{server:?}: each charge was made once");
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
    /// Around the time that the test sets, in many rounds.
    const SHORT: Self = Self {
        keep_alive: Some(KEEP_ALIVE),
        first: Duration::from_millis(968),
        apart: Duration::from_millis(2),
        rounds: 4,
    };

    /// Around a server's default. Gunicorn closes idle connections once a second.
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

/// Sends keyed requests when the idle connections to the API are about as old as the API allows.
async fn charges_around_the_end_of_idle_connections(server: Server, idle: Idle) {
    let Idle { keep_alive, first, apart, rounds } = idle;
    let folder = tempfile::tempdir().unwrap();
    let Some(peer) = Peer::start_with_keep_alive(server, keep_alive, folder.path()) else { return };
    // The gateway keeps idle connections for longer than the server, so that closing races with requests.
    let gateway = Gateway::start(folder.path(), peer.port.address, &["--limits-upstream-idle", "10s"]);
    let clients = (0..32_u32).map(|number| {
        let gateway = &gateway;
        async move {
            let mut client: Client = gateway.connect().await;
            for round in 0..rounds {
                let hello = client.send(Request::new("GET", "/hello")).await;
                // A request without a key may lose its answer in this race.
                assert!(matches!(hello.status, 200 | 502), "{hello:?}");
                sleep(first + apart * number).await;
                let key = format!("idle-{number}-{round}");
                let answer = client.send(Request::charge(&key)).await;
                assert_eq!(answer.status, 201, "{server:?}, {key}: {answer:?}");
            }
        }
    });
    futures_util::future::join_all(clients).await;
    let executions = peer.executions();
    assert_eq!(executions.len(), 32 * rounds, "{server:?}: each charge was made");
    assert!(executions.values().all(|count| *count == 1), "{server:?}: each charge was made once");
}

/// Restarts the API while it executes a request, as a deployment does.
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
            // The API executes one request, and is asked to end.
            peer.terminate();
            peer.release(&release);
            tokio::task::block_in_place(|| peer.wait());
            // While it is away nothing is sent, and the client may retry.
            let key = format!("away-{round}");
            let away = gateway.charge(&key).await;
            assert_eq!(
                away.status_and_code(),
                (502, "idempotency_upstream_unreachable".to_owned()),
                "{server:?}"
            );
            tokio::task::block_in_place(|| peer.run());
            let again = gateway.charge(&key).await;
            assert_eq!(again.status, 201, "{server:?}: {again:?}");
        };
        let (worked, ()) = tokio::join!(gateway.send(working), restart);
        assert_eq!(worked.status, 201, "{server:?}: {worked:?}");
    }
    let executions = peer.executions();
    assert_eq!(executions.len(), 6, "{server:?}: {executions:?}");
    assert!(executions.values().all(|count| *count == 1), "{server:?}: {executions:?}");
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
        // The client follows with the same key and is refused, because it is another request: nothing is executed.
        let followed = gateway.send(Request { target: path, ..Request::charge("k") }).await;
        assert_eq!(followed.status, 422, "{server:?}: {followed:?}");
        assert_eq!(peer.executions().len(), 0, "{server:?}");
    }
}

/// Paths that a server could read as `/charges`.
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
            assert!(answer.status >= 300 && peer.executions().is_empty(), "{server:?}, {target}: {answer:?}");
        }
    }
}
