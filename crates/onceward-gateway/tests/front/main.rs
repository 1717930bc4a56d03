//! The front, with a ledger that only the service behind it writes.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod limits;
mod lingering;
mod listening;
mod protocols;
mod smuggling;
mod timing;
mod upgrades;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use onceward::plumbing::time::sleep;
use onceward_gateway::client_address::ClientAddress;
use onceward_gateway::front::{Body, Ended, Front};
use onceward_gateway::settings::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tower_service::Service;

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4711);
const GRACE: Duration = Duration::from_secs(30);

/// What the service saw.
#[derive(Debug, Default)]
struct Ledger {
    /// `METHOD path body` of every request whose body came whole.
    whole: Mutex<Vec<String>>,
    /// Why the bodies of others did not.
    broken: Mutex<Vec<String>>,
    /// Requests for `/wait` are answered after this.
    go_on: Notify,
    /// And tell here that they are in.
    entered: Notify,
}

impl Ledger {
    fn whole(&self) -> Vec<String> {
        self.whole.lock().unwrap().clone()
    }

    fn broken(&self) -> Vec<String> {
        self.broken.lock().unwrap().clone()
    }
}

async fn serve(ledger: Arc<Ledger>, request: Request<Body>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    assert!(parts.extensions.get::<ClientAddress>().is_some(), "every request has its client's address");
    if parts.uri.path() == "/panic" {
        panic!("as asked");
    }
    if parts.uri.path() == "/wait" {
        ledger.entered.notify_one();
        ledger.go_on.notified().await;
    }
    let mut response = match body.collect().await {
        Ok(body) => {
            let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            let line = format!("{} {} {body}", parts.method, parts.uri.path());
            ledger.whole.lock().unwrap().push(line.clone());
            Response::new(Full::from(line))
        }
        Err(error) => {
            ledger.broken.lock().unwrap().push(error.to_string());
            let mut response = Response::new(Full::from("broken"));
            *response.status_mut() = http::StatusCode::UNPROCESSABLE_ENTITY;
            response
        }
    };
    response.headers_mut().insert("seen", "true".parse().unwrap());
    response
}

type Answered = std::pin::Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send>>;

fn service(
    ledger: &Arc<Ledger>,
) -> impl Service<Request<Body>, Response = Response<Full<Bytes>>, Error = Infallible, Future = Answered>
+ Clone
+ Send
+ use<> {
    let ledger = Arc::clone(ledger);
    tower::service_fn(move |request: Request<Body>| {
        assert!(request.uri().path() != "/panic-at-once", "as asked");
        let answer = serve(Arc::clone(&ledger), request);
        Box::pin(async move { Ok(answer.await) }) as Answered
    })
}

/// A front that listens.
struct Running {
    address: SocketAddr,
    ledger: Arc<Ledger>,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Ended>,
}

fn front(limits: Limits) -> Front {
    Front { limits, tls: None }
}

async fn listen(front: Front) -> Running {
    listen_with(front, GRACE).await
}

async fn listen_with(front: Front, grace: Duration) -> Running {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let ledger = Arc::new(Ledger::default());
    let (stop, stopped) = oneshot::channel();
    let service = service(&ledger);
    let stop_signal = async move { drop(stopped.await) };
    let ended = tokio::spawn(front.serve(listener, service, stop_signal, sleep(grace)));
    Running { address, ledger, stop, ended }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes at once, and reads to the end of the connection.
    async fn send(&self, bytes: &[u8]) -> Vec<Answer> {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        answers(&read_to_end(&mut stream).await)
    }
}

async fn read_to_end(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    all
}

/// A connection over a pipe that holds so many bytes, to a front of its own.
fn pipe(limits: Limits, holds: usize) -> (DuplexStream, Arc<Ledger>) {
    let ledger = Arc::new(Ledger::default());
    let (client, server) = tokio::io::duplex(holds);
    let service = service(&ledger);
    tokio::spawn(async move {
        let front = front(limits);
        // How it ends is seen by the client.
        drop(front.serve_connection(server, ADDRESS, service, std::future::pending()).await);
    });
    (client, ledger)
}

/// Sends bytes through a pipe that holds only one of them, so that the front gets them one by one.
async fn send_byte_by_byte(limits: Limits, bytes: &[u8]) -> (Vec<Answer>, Arc<Ledger>) {
    let (client, ledger) = pipe(limits, 1);
    let (mut read, mut write) = tokio::io::split(client);
    let send = async {
        // A front that has seen enough stops reading; that is for the answer to tell.
        drop(write.write_all(bytes).await);
    };
    let ((), all) = tokio::join!(send, read_to_end(&mut read));
    (answers(&all), ledger)
}

/// An answer, as it came over the wire.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    /// In small letters.
    head: String,
    body: String,
}

/// Takes answers apart. Each has a length.
fn answers(bytes: &[u8]) -> Vec<Answer> {
    let mut rest = std::str::from_utf8(bytes).unwrap();
    let mut answers = Vec::new();
    while !rest.is_empty() {
        let (head, after) = rest.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {rest:?}"));
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length =
            head.split("content-length: ").nth(1).map_or("0", |length| length.lines().next().unwrap());
        let (body, after) = after.split_at(length.parse().unwrap());
        answers.push(Answer { status, head, body: body.to_owned() });
        rest = after;
    }
    answers
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}
