//! The API behind the gateway: a process of its own that keeps its own ledger.
//!
//! It is this test program, started again. Every request that it takes up is a line in the ledger file, written before
//! anything is answered; the ledger is the only truth about how often something was done. It reads HTTP by itself, because
//! it must be able to break it: the header `x-behave` says how.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const FILE: &str = "ONCEWARD_TEST_LEDGER";

/// The API, seen from a test.
pub struct Ledger {
    child: Child,
    pub address: SocketAddr,
    file: PathBuf,
}

/// One thing that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub method: String,
    pub path: String,
    /// `Onceward-Operation`, or `-`.
    pub operation: String,
    /// `Onceward-Fence`, or `-`.
    pub fence: String,
    /// `Idempotency-Key` as it came, or `-`.
    pub key: String,
    pub body: String,
}

impl Ledger {
    /// Starts the API on a free port.
    pub fn start(folder: &Path) -> Self {
        Self::start_on(folder, "127.0.0.1:0")
    }

    pub fn start_on(folder: &Path, listen: &str) -> Self {
        let file = folder.join("ledger.txt");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ledger::process", "--nocapture"])
            .env(FILE, &file)
            .env("ONCEWARD_TEST_LISTEN", listen)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| {
                line.split_once("ledger at ").map(|(_, address)| address.trim().parse().unwrap())
            })
            .unwrap();
        Self { child, address, file }
    }

    /// Everything that was done, in order. What `onceward check` asks the server as a whole, `OPTIONS *`, does nothing.
    pub fn entries(&self) -> Vec<Entry> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines()
            .filter(|line| !line.starts_with("OPTIONS\t*\t"))
            .map(|line| {
                let [method, path, operation, fence, key, body] =
                    line.splitn(6, '\t').collect::<Vec<_>>().try_into().unwrap();
                let [method, path, operation, fence, key, body] =
                    [method, path, operation, fence, key, body].map(str::to_owned);
                Entry { method, path, operation, fence, key, body }
            })
            .collect()
    }

    /// How often something was done.
    pub fn count(&self) -> usize {
        self.entries().len()
    }

    /// Returns once a request that behaves as `hold=NAME` was written down and waits.
    pub async fn held(&self, name: &str) {
        self.control(&format!("/_held/{name}")).await;
    }

    /// Lets a request that behaves as `hold=NAME` be answered.
    pub async fn release(&self, name: &str) {
        self.control(&format!("/_release/{name}")).await;
    }

    async fn control(&self, path: &str) {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: ledger\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    }

    /// Ends the API at once, as a crash does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // It may have been ended by the test.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// The API itself. As an ordinary test it has nothing to do.
#[test]
fn process() {
    let Some(file) = std::env::var_os(FILE) else { return };
    // The test that started it may die: then this must not stay.
    std::thread::spawn(|| {
        let _ended = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let listen = std::env::var("ONCEWARD_TEST_LISTEN").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(serve(&listen, PathBuf::from(file)));
}

struct Api {
    file: Mutex<std::fs::File>,
    holds: Mutex<HashMap<String, Arc<Hold>>>,
}

struct Hold {
    held: Semaphore,
    released: Semaphore,
}

impl Api {
    fn hold(&self, name: &str) -> Arc<Hold> {
        let new = || Arc::new(Hold { held: Semaphore::new(0), released: Semaphore::new(0) });
        self.holds.lock().unwrap().entry(name.to_owned()).or_insert_with(new).clone()
    }

    fn write(&self, request: &Heard) -> usize {
        let field = |name: &str| request.headers.get(name).map_or("-", String::as_str);
        let line = format!(
            "{}\t{}\t{}\t{}\t{}\t{}\n",
            request.method,
            request.path,
            field("onceward-operation"),
            field("onceward-fence"),
            field("idempotency-key"),
            String::from_utf8_lossy(&request.body).replace(['\n', '\r'], " "),
        );
        let mut file = self.file.lock().unwrap();
        file.write_all(line.as_bytes()).unwrap();
        line.len()
    }
}

/// A request, as the API understood it.
struct Heard {
    method: String,
    path: String,
    headers: HashMap<String, String>,
    raw: String,
    body: Vec<u8>,
}

async fn serve(listen: &str, file: PathBuf) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    let api = Arc::new(Api { file: Mutex::new(file), holds: Mutex::default() });
    let listener = TcpListener::bind(listen).await.unwrap();
    println!("ledger at {}", listener.local_addr().unwrap());
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        let api = api.clone();
        tokio::spawn(async move {
            let mut socket = socket;
            // A connection that breaks ends here.
            while let Some(After::GoOn) = one(&api, &mut socket).await {}
        });
    }
}

enum After {
    GoOn,
    Close,
}

/// Reads one request, writes it down, and behaves.
async fn one(api: &Api, socket: &mut TcpStream) -> Option<After> {
    let request = hear(api, socket).await?;
    if let Some(name) = request.path.strip_prefix("/_held/") {
        api.hold(name).held.acquire().await.ok()?.forget();
        socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.ok()?;
        return Some(After::Close);
    }
    if let Some(name) = request.path.strip_prefix("/_release/") {
        api.hold(name).released.add_permits(1);
        socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.ok()?;
        return Some(After::Close);
    }
    api.write(&request);
    let behave = request.headers.get("x-behave").cloned().unwrap_or_default();
    let (how, value) = behave.split_once('=').unwrap_or((&behave, ""));
    let mut answer = Answer { head: request.method == "HEAD", ..Answer::default() };
    // What it answers, whatever else it does.
    if let Some(body) = request.headers.get("x-answer") {
        answer.body = body.clone().into_bytes();
    }
    match how {
        // An upload was told of when its first bytes came.
        "" | "upload" => {}
        "status" => answer.status = value.parse().ok()?,
        "header" => answer.headers.push_str(&format!("{value}\r\n")),
        "outcome" => answer.headers.push_str(&format!("onceward-outcome: {value}\r\n")),
        "body" => answer.body = value.as_bytes().to_vec(),
        "big" => answer.body = vec![b'x'; value.parse().ok()?],
        // Told the request as it arrived.
        "echo" => answer.body = request.raw.clone().into_bytes(),
        "cookies" => {
            answer.headers.push_str("set-cookie: a=1\r\nset-cookie: b=2\r\nx-many: 1\r\nx-many: 2\r\n")
        }
        "redirect" => {
            answer.status = value.parse().ok()?;
            answer.headers.push_str("location: /elsewhere\r\n");
        }
        // As frameworks do that want a slash at the end: to where the request was for.
        "slash" => {
            answer.status = 307;
            let host = request.headers.get("host")?;
            answer.headers.push_str(&format!("location: http://{host}{}/\r\n", request.path));
        }
        "hold" => {
            let hold = api.hold(value);
            hold.held.add_permits(1);
            hold.released.acquire().await.ok()?.forget();
        }
        // What concerns one connection only, and what does not.
        "hop" => answer.headers.push_str(
            "connection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: x\r\nx-end: 1\r\n",
        ),
        "old" => {
            socket.write_all(b"HTTP/1.0 200 OK\r\n\r\nold").await.ok()?;
            return Some(After::Close);
        }
        "trailers" => {
            let head = "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n";
            socket.write_all(format!("{head}4\r\nbody\r\n0\r\nx-sum: 42\r\n\r\n").as_bytes()).await.ok()?;
            return Some(After::GoOn);
        }
        "hang" => {
            api.hold(value).held.add_permits(1);
            // Until the other side closes.
            while socket.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
            return None;
        }
        "reset" => {
            socket.set_zero_linger().ok()?;
            return None;
        }
        "truncate" => {
            socket.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\n{\"cut\":").await.ok()?;
            return Some(After::Close);
        }
        "truncate-chunked" => {
            let head = "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
            socket.write_all(head.as_bytes()).await.ok()?;
            return Some(After::Close);
        }
        // Ends where its connection does, with a transfer coding if one is named.
        "closing" => {
            let coding =
                if value.is_empty() { String::new() } else { format!("transfer-encoding: {value}\r\n") };
            let head = format!("HTTP/1.1 201 Created\r\n{coding}\r\n");
            socket.write_all(&[head.as_bytes(), &answer.body].concat()).await.ok()?;
            return Some(After::Close);
        }
        "endless" => {
            socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.ok()?;
            loop {
                socket.write_all(b"400\r\n").await.ok()?;
                socket.write_all(&[b'e'; 1024]).await.ok()?;
                socket.write_all(b"\r\n").await.ok()?;
            }
        }
        "sse" => {
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            socket.write_all(head.as_bytes()).await.ok()?;
            // One event at once; the second only when the test has seen the first.
            socket.write_all(b"d\r\ndata: first\n\n\r\n").await.ok()?;
            api.hold(value).released.acquire().await.ok()?.forget();
            socket.write_all(b"e\r\ndata: second\n\n\r\n0\r\n\r\n").await.ok()?;
            return Some(After::GoOn);
        }
        "upgrade" => {
            let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
            socket.write_all(head.as_bytes()).await.ok()?;
            let mut buffer = [0; 1024];
            loop {
                let read = socket.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
                socket.write_all(&buffer[..read]).await.ok()?;
            }
        }
        // Answers as if the connection stayed open, and closes it; then it counts as held.
        "close-after" => {
            answer.send(socket).await?;
            socket.shutdown().await.ok()?;
            api.hold(value).held.add_permits(1);
            return Some(After::Close);
        }
        other => panic!("the ledger cannot behave as {other:?}"),
    }
    answer.send(socket).await?;
    Some(After::GoOn)
}

struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
    /// Whether it answers HEAD: a length, and no body.
    head: bool,
}

impl Default for Answer {
    fn default() -> Self {
        Self { status: 201, headers: String::new(), body: b"{\"charged\":true}".to_vec(), head: false }
    }
}

impl Answer {
    async fn send(&self, socket: &mut TcpStream) -> Option<()> {
        let bodiless = matches!(self.status, 100..=199 | 204 | 304);
        let length =
            if bodiless { String::new() } else { format!("content-length: {}\r\n", self.body.len()) };
        let head = format!("HTTP/1.1 {} Status\r\ncontent-type: application/json\r\n{length}", self.status);
        let head = format!("{head}{}\r\n", self.headers);
        let mut bytes = head.into_bytes();
        if !bodiless && !self.head {
            bytes.extend_from_slice(&self.body);
        }
        socket.write_all(&bytes).await.ok()
    }
}

/// Reads a request whole. Nothing where the connection ends before.
async fn hear(api: &Api, socket: &mut TcpStream) -> Option<Heard> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        let mut byte = [0];
        socket.read_exact(&mut byte).await.ok()?;
        bytes.push(byte[0]);
    };
    let raw = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = raw.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut body = Vec::new();
    if let Some(length) = headers.get("content-length") {
        body.resize(length.parse().ok()?, 0);
        socket.read_exact(&mut body).await.ok()?;
    } else if headers.contains_key("transfer-encoding") {
        loop {
            let length = usize::from_str_radix(line(socket).await?.trim(), 16).ok()?;
            let start = body.len();
            body.resize(start + length, 0);
            socket.read_exact(&mut body[start..]).await.ok()?;
            line(socket).await?;
            if let (0, Some(name)) =
                (start, headers.get("x-behave").and_then(|how| how.strip_prefix("upload=")))
            {
                api.hold(name).held.add_permits(1);
            }
            if length == 0 {
                break;
            }
        }
    }
    Some(Heard { method, path, headers, raw, body })
}

async fn line(socket: &mut TcpStream) -> Option<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        line.push(socket.read_u8().await.ok()?);
    }
    String::from_utf8(line).ok()
}
