//! Which connection to the API a request is sent on, and how an API that speaks another protocol is recognised.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::faults::Faults;
use crate::harness::{Gateway, Request, Response, onceward, read_head};

/// An API that answers each request with the number of its connection and the value of its `Connection` header. The header
/// `x-status` chooses the status. With `x-close` the answer announces that the connection will be closed; the API closes it at
/// once (`at-once`), or leaves it open (`never`).
async fn numbering_api() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for number in 1.. {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(answer_all(socket, number));
        }
    });
    address
}

/// Answers until the connection ends.
async fn answer_all(socket: TcpStream, number: u32) -> Option<()> {
    let mut socket = BufReader::new(socket);
    loop {
        let (mut length, mut status, mut connection) = (0, "201".to_owned(), String::new());
        let mut close = String::new();
        loop {
            let mut line = String::new();
            if socket.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            match line.trim_end().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(("x-status", value)) => status = value.to_owned(),
                Some(("connection", value)) => connection = value.to_owned(),
                Some(("x-close", value)) => close = value.to_owned(),
                Some(_) => {}
                None if line == "\r\n" => break,
                None => {}
            }
        }
        socket.read_exact(&mut vec![0; length]).await.ok()?;
        let body = format!("{number} {connection}");
        let announcement = if close.is_empty() { "" } else { "connection: close\r\n" };
        let answer =
            format!("HTTP/1.1 {status} X\r\n{announcement}content-length: {}\r\n\r\n{body}", body.len());
        socket.write_all(answer.as_bytes()).await.ok()?;
        if close == "at-once" {
            return None;
        }
    }
}

fn unkeyed() -> Request<'static> {
    Request::new("POST", "/charges").body("{}")
}

async fn answers_to(gateway: &Gateway, requests: &[Request<'_>]) -> Vec<String> {
    let mut texts = Vec::new();
    for request in requests {
        texts.push(gateway.send(request.clone()).await.text());
    }
    texts
}

#[tokio::test]
async fn a_keyed_request_gets_a_connection_of_its_own_and_others_share_one() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(folder.path(), numbering_api().await, &[]);
    let requests = [unkeyed(), unkeyed(), Request::charge("a"), Request::charge("b"), unkeyed()];
    assert_eq!(answers_to(&gateway, &requests).await, ["1 ", "1 ", "2 ", "3 ", "1 "]);
}

#[tokio::test]
async fn a_connection_is_not_used_again_after_an_answer_of_5xx() {
    let folder = tempfile::tempdir().unwrap();
    let all = ["--upstream-keepalive", "all"];
    let gateway = Gateway::start(folder.path(), numbering_api().await, &all);
    let failing = unkeyed().header("x-status", "500");
    let keyed_failing = Request::charge("b").header("x-status", "500");
    let requests = [unkeyed(), Request::charge("a"), failing, keyed_failing, Request::charge("c")];
    assert_eq!(answers_to(&gateway, &requests).await, ["1 ", "1 ", "1 ", "2 ", "3 "]);
}

/// The connections to this port that are in TIME-WAIT, as their local and remote addresses.
fn time_wait_connections_to(port: u16) -> BTreeSet<[String; 2]> {
    const TIME_WAIT: &str = "06";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let to_port = |line: &str| {
        let mut fields = line.split_whitespace().skip(1).map(str::to_owned);
        let [local, remote, state] = [(); 3].map(|()| fields.next().unwrap());
        (remote.ends_with(&format!(":{port:04X}")) && state == TIME_WAIT).then_some([local, remote])
    };
    table.lines().skip(1).filter_map(to_port).collect()
}

#[tokio::test]
async fn a_keyed_request_leaves_no_port_of_the_gateway_in_time_wait() {
    if !std::path::Path::new("/proc/net/tcp").exists() {
        println!("this system has no /proc/net/tcp with the ports in TIME-WAIT: nothing was checked");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let api = numbering_api().await;
    // A client of an earlier test may have had the port that this API has now.
    let before = time_wait_connections_to(api.port());
    let gateway = Gateway::start(folder.path(), api, &["--limits-upstream-connections", "1"]);
    // With one connection at most, each request waits until the connection of the one before has ended.
    for (key, close) in [("a", "at-once"), ("b", "at-once"), ("c", "never"), ("d", ""), ("e", "")] {
        let request = Request::charge(key);
        let request = if close.is_empty() { request } else { request.header("x-close", close) };
        assert_eq!(gateway.send(request).await.status, 201);
    }
    // The answer leaves the outcome unknown, so that its body is not read.
    let unsure = Request::charge("f").header("x-status", "503");
    assert_eq!(gateway.send(unsure).await.status, 503);
    // It gets a connection only when that of the one before has ended.
    assert_eq!(gateway.send(Request::charge("g")).await.status, 201);
    let after = time_wait_connections_to(api.port());
    assert_eq!(after.difference(&before).collect::<Vec<_>>(), Vec::<&[String; 2]>::new());
}

/// Reads a head, answers, and reads the body only when the client has the answer, as handlers do that answer early.
async fn answer_first(mut socket: TcpStream, answered: Arc<Notify>) -> std::io::Result<()> {
    let head = read_head(&mut socket).await.unwrap().to_ascii_lowercase();
    socket.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}").await?;
    answered.notified().await;
    let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    socket.read_exact(&mut vec![0; length]).await.map(drop)
}

#[tokio::test]
async fn an_api_that_still_reads_after_its_answer_is_not_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = Gateway::start(folder.path(), listener.local_addr().unwrap(), &[]);
    // The second body does not fit into the buffers of a socket, so that it is sent after its answer came.
    for (key, body) in [("a", "{}".to_owned()), ("b", " ".repeat(900_000) + "{}")] {
        let answered = Arc::new(Notify::new());
        let api = async { answer_first(listener.accept().await.unwrap().0, answered.clone()).await };
        let client = async {
            let request = Request::new("POST", "/charges").header("idempotency-key", key).body(&body);
            let status = gateway.send(request).await.status;
            answered.notify_one();
            status
        };
        let (worked, status) = tokio::join!(api, client);
        assert_eq!(status, 202);
        assert!(worked.is_ok(), "{key}: {worked:?}");
    }
}

#[tokio::test]
async fn idle_connections_count_towards_the_limit_and_are_closed_when_a_request_needs_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let limit = ["--limits-upstream-connections", "1"];
    let gateway = Gateway::start(folder.path(), numbering_api().await, &limit);
    let requests = [unkeyed(), unkeyed(), Request::charge("a"), unkeyed()];
    assert_eq!(answers_to(&gateway, &requests).await, ["1 ", "1 ", "2 ", "3 "]);
}

#[tokio::test]
async fn a_keyed_request_gets_a_connection_of_its_own_where_it_passes_unprotected_too() {
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let api = numbering_api().await;
    let file = "[[routes]]\nmatch = \"POST /charges\"\nprotect = false\n";
    std::fs::write(folders[0].path().join("onceward.toml"), file).unwrap();
    let open = Gateway::start(folders[0].path(), api, &["--config", "onceward.toml"]);
    let observing = Gateway::start(folders[1].path(), api, &["--mode", "observe"]);
    let faults = Faults::new(folders[2].path());
    let mut command = Gateway::command(folders[2].path(), api);
    let without_store = Gateway::spawn(faults.on(command.args(["--store-down", "pass"])));
    faults.disk_is_full();
    for gateway in [open, observing, without_store] {
        let requests = [unkeyed(), Request::charge("a"), Request::charge("b"), unkeyed()];
        let numbers = answers_to(&gateway, &requests).await;
        assert_eq!(numbers[0], numbers[3], "{numbers:?}");
        let connections: BTreeSet<&String> = numbers.iter().collect();
        assert_eq!(connections.len(), 3, "{numbers:?}");
    }
}

#[tokio::test]
async fn a_request_that_changes_the_protocol_may_have_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = Gateway::start(folder.path(), listener.local_addr().unwrap(), &[]);
    let mut client = gateway.connect().await;
    let request =
        Request::new("GET", "/socket").header("connection", "upgrade").header("upgrade", "websocket");
    client.write(&request.header("idempotency-key", "k").bytes()).await;
    let (mut api, _) = listener.accept().await.unwrap();
    read_head(&mut api).await.unwrap();
    let switched = "HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello";
    api.write_all(switched.as_bytes()).await.unwrap();
    assert_eq!(client.read().await.unwrap().status, 101);
    let mut hello = [0; 5];
    client.0.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello");
}

/// An API that speaks HTTP/2 and nothing else, as gRPC servers do.
async fn http2_api() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let io = hyper_util::rt::TokioIo::new(socket);
            let executor = hyper_util::rt::TokioExecutor::new();
            let service = hyper::service::service_fn(|_| async {
                Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
            });
            let served = hyper::server::conn::http2::Builder::new(executor).serve_connection(io, service);
            // No client here speaks HTTP/2.
            tokio::spawn(async move { served.await.unwrap_err() });
        }
    });
    address
}

/// An API that wants TLS, and answers plain text with an alert, as OpenSSL does.
async fn tls_api() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 4096];
            let _read = socket.read(&mut bytes).await.unwrap();
            socket.write_all(&[0x15, 3, 1, 0, 2, 2, 70]).await.unwrap();
        }
    });
    address
}

async fn operation(gateway: &Gateway) -> serde_json::Value {
    let list: Response = gateway.ask_admin(Request::new("GET", "/v1/operations")).await;
    list.json()["operations"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_answers_in_another_protocol_has_not_taken_the_request() {
    for (api, advice) in [(http2_api().await, "HTTP/2"), (tls_api().await, "https://")] {
        let folder = tempfile::tempdir().unwrap();
        let gateway = Gateway::start(folder.path(), api, &[]);
        let answer = gateway.charge("k").await;
        assert_eq!(
            answer.status_and_code(),
            (502, "idempotency_upstream_unreachable".to_owned()),
            "{advice}"
        );
        assert_eq!(operation(&gateway).await["state"], "failed_retryable", "{advice}");
        let check = onceward(folder.path())
            .args(["check", "--scope", "fixed:test", "--store", "memory:"])
            .args(["--upstream", &format!("http://{api}")])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(text.contains("error    upstream: ") && text.contains(advice), "{text}");
        assert_eq!(check.status.code(), Some(1), "{text}");
    }
}
