//! The gateway as a process, and a client that sees every byte.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The real binary, on free ports, with a store in the test's folder.
pub struct Gateway {
    pub child: Child,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    /// What it printed on standard error, line by line.
    pub log: mpsc::Receiver<String>,
}

impl Gateway {
    /// Starts the gateway with more arguments than the ones that every test needs. Panics if it does not start.
    pub fn start(folder: &Path, upstream: SocketAddr, arguments: &[&str]) -> Self {
        let mut command = Self::command(folder, upstream);
        command.args(arguments);
        Self::spawn(&mut command)
    }

    /// What every test needs: free ports, a store in the folder, and one scope.
    pub fn command(folder: &Path, upstream: SocketAddr) -> Command {
        let mut command = Self::to(folder, &format!("http://{upstream}"));
        command.args(["--scope", "fixed:test"]);
        command
    }

    /// The same, for tests that choose the scope, or how the upstream is spoken to.
    pub fn to(folder: &Path, upstream: &str) -> Command {
        let mut command = onceward(folder);
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]).args([
            "--store",
            "sqlite:onceward.db",
            "--upstream",
            upstream,
        ]);
        command
    }

    /// What even those tests need that choose everything else.
    pub fn bare(folder: &Path) -> Command {
        let mut command = onceward(folder);
        command.args(["serve", "--admin-listen", "127.0.0.1:0", "--store", "sqlite:onceward.db"]);
        command
    }

    pub fn spawn(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (tell, log) = mpsc::channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).for_each(|line| {
                // The test may have ended.
                let _told = tell.send(line);
            });
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut told = |prefix: &str| loop {
            let Some(line) = lines.next() else {
                let log: Vec<String> = log.iter().collect();
                panic!("the gateway did not start:\n{}", log.join("\n"));
            };
            if let Some((_, address)) = line.strip_prefix(prefix).and_then(|url| url.split_once("://")) {
                break address.parse().unwrap();
            }
        };
        let (address, admin) = (told("listening on "), told("admin on "));
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, admin, log }
    }

    /// The same, but nothing reads its standard error from the beginning, and its standard output once it has started.
    pub fn spawn_unread(command: &mut Command) -> Self {
        let unread = std::io::pipe().unwrap().1;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(unread).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut told = || lines.next().unwrap().split_once("://").unwrap().1.parse().unwrap();
        let (address, admin) = (told(), told());
        Self { child, address, admin, log: mpsc::channel().1 }
    }

    /// Runs a gateway that must refuse to start: its exit code, and what it said.
    pub fn refused(command: &mut Command) -> (Option<i32>, String) {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        // A gateway that starts says so in its first line.
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        if !said.is_empty() {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(said, "", "it was to be refused");
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

    /// A connection to it.
    pub async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    /// Sends one request on a connection of its own.
    pub async fn send(&self, request: Request<'_>) -> Response {
        self.connect().await.send(request).await
    }

    /// A charge under a key.
    pub async fn charge(&self, key: &str) -> Response {
        self.send(Request::charge(key)).await
    }

    /// Sends bytes as they are, and reads one answer.
    pub async fn raw(&self, bytes: impl AsRef<[u8]>) -> Response {
        let mut client = self.connect().await;
        client.write(bytes.as_ref()).await;
        client.read(false).await.unwrap_or_else(|| panic!("no answer to {:?}", show(bytes.as_ref())))
    }

    /// Whether the gateway knows a key: the status resource's status, of a caller without credentials.
    pub async fn status_of(&self, key: &str) -> Response {
        self.send(Request::new("GET", &format!("/.well-known/idempotency/status/{key}"))).await
    }

    /// Sends one request to the admin listener, under a name that is its own unless the test chooses another.
    pub async fn ask_admin(&self, request: Request<'_>) -> Response {
        let mut client = Client(TcpStream::connect(self.admin).await.unwrap());
        let named = request.headers.iter().any(|(name, _)| *name == "host");
        client.send(if named { request } else { request.header("host", "localhost") }).await
    }

    /// The next line of the log that has these words. Returns once it has come.
    pub fn logged(&self, words: &str) -> String {
        let mut before = Vec::new();
        while let Ok(line) = self.log.recv() {
            if line.contains(words) {
                return line;
            }
            before.push(line);
        }
        panic!("the gateway ended without saying {words:?}:\n{}", before.join("\n"));
    }

    /// Ends it as an operator does, and returns what it logged that nobody has read yet.
    pub fn stop(mut self) -> String {
        self.signal("TERM");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        self.log.iter().collect::<Vec<_>>().join("\n")
    }

    /// A charge under a key that waits for whoever executes it now, as long as the route allows.
    pub async fn await_charge(&self, key: &str) -> Response {
        self.send(Request::charge(key).header("prefer", "wait=10")).await
    }

    /// An operator changes something, with the token beside the store.
    pub async fn change(&self, folder: &Path, target: &str, body: &serde_json::Value) -> Response {
        let token = std::fs::read_to_string(folder.join("onceward.db.token")).unwrap();
        let (authorization, body) = (format!("Bearer {}", token.trim()), body.to_string());
        let request = Request::new("POST", target).header("authorization", &authorization).body(&body);
        self.ask_admin(request).await
    }

    /// An operator decides.
    pub async fn resolve(&self, folder: &Path, operation: &str, verdict: &serde_json::Value) -> Response {
        self.change(folder, &format!("/v1/operations/{operation}/resolve"), verdict).await
    }

    /// The state of an operation.
    pub async fn state(&self, operation: &str) -> String {
        let response = self.ask_admin(Request::new("GET", &format!("/v1/operations/{operation}"))).await;
        response.json()["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns once an operation is in a state.
    pub async fn until_state(&self, operation: &str, state: &str) {
        while self.state(operation).await != state {}
    }

    /// A metric, over all routes.
    pub async fn counted(&self, name: &str) -> f64 {
        let samples = metrics(self).await;
        samples
            .iter()
            .filter(|(label, _)| label.split('{').next() == Some(name))
            .map(|(_, value)| value)
            .sum()
    }

    /// Returns once a metric has risen to a value.
    pub async fn until_counted(&self, name: &str, value: f64) {
        while self.counted(name).await < value {}
    }
}

/// The command line in a folder, with nothing of the environment that could configure it.
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

/// The beginning of some bytes, for a message.
fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have been ended by the test.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// A request to be sent.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    pub method: &'a str,
    pub target: &'a str,
    pub headers: Vec<(&'a str, &'a str)>,
    pub body: &'a str,
}

impl<'a> Request<'a> {
    pub fn new(method: &'a str, target: &'a str) -> Self {
        Self { method, target, headers: Vec::new(), body: "" }
    }

    /// A charge under a key.
    pub fn charge(key: &'a str) -> Self {
        Self::new("POST", "/charges").header("idempotency-key", key).body("{\"amount\":1299}")
    }

    pub fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// How the ledger shall behave.
    pub fn behave(self, how: &'a str) -> Self {
        self.header("x-behave", how)
    }

    pub fn body(mut self, body: &'a str) -> Self {
        self.body = body;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        let has = |wanted: &str| self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
        if !has("host") {
            text += "host: test\r\n";
        }
        for (name, value) in &self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !self.body.is_empty() {
            if !has("content-type") {
                text += "content-type: application/json\r\n";
            }
            text += &format!("content-length: {}\r\n", self.body.len());
        }
        format!("{text}\r\n{}", self.body).into_bytes()
    }
}

/// A response, whole.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    /// In the order in which they came.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// A header's first value, or an empty one.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// Every value of a header, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str()).collect()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The problem's code, or an empty one.
    pub fn code(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["code"].as_str().unwrap_or_default().to_owned()
    }

    pub fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == "true"
    }

    /// Status and code, which is what most tests are about.
    pub fn told(&self) -> (u16, String) {
        (self.status, self.code())
    }
}

/// A connection that reads and writes HTTP/1.1 by itself.
pub struct Client(pub TcpStream);

impl Client {
    pub async fn send(&mut self, request: Request<'_>) -> Response {
        self.write(&request.bytes()).await;
        let head = request.method == "HEAD";
        self.read(head).await.unwrap_or_else(|| panic!("no answer to {request:?}"))
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// The next response; nothing where the connection ended before its head.
    pub async fn read(&mut self, bodiless: bool) -> Option<Response> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut response = Response { status, headers, body: Vec::new() };
        let bodiless = bodiless || matches!(status, 100..=199 | 204 | 304);
        if bodiless {
            return Some(response);
        }
        if !response.header("content-length").is_empty() {
            let length: usize = response.header("content-length").parse().unwrap();
            response.body.resize(length, 0);
            self.0.read_exact(&mut response.body).await.ok()?;
        } else if response.header("transfer-encoding") == "chunked" {
            while let Some(chunk) = self.chunk().await? {
                response.body.extend(chunk);
            }
        } else {
            self.0.read_to_end(&mut response.body).await.ok()?;
        }
        Some(response)
    }

    /// The next chunk of a streamed answer. `Some(None)` at its end, nothing where it broke off.
    pub async fn chunk(&mut self) -> Option<Option<Vec<u8>>> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(self.0.read_u8().await.ok()?);
        }
        let length = usize::from_str_radix(std::str::from_utf8(&line).ok()?.trim(), 16).ok()?;
        let mut chunk = vec![0; length + 2];
        self.0.read_exact(&mut chunk).await.ok()?;
        chunk.truncate(length);
        Some((length > 0).then_some(chunk))
    }

    /// Whether the gateway closed the connection: returns once it has.
    pub async fn closed(&mut self) -> bool {
        let mut rest = Vec::new();
        // A reset is an end as well.
        self.0.read_to_end(&mut rest).await.is_err() || rest.is_empty()
    }
}

/// The samples of `/metrics`, by name and labels as printed.
pub async fn metrics(gateway: &Gateway) -> HashMap<String, f64> {
    let response = gateway.ask_admin(Request::new("GET", "/metrics")).await;
    assert_eq!(response.status, 200, "{response:?}");
    response
        .text()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

/// A counter, over all routes.
pub async fn total(gateway: &Gateway, name: &str) -> f64 {
    let samples = metrics(gateway).await;
    let of_it =
        |found: &str| found == name || found.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'));
    let found: Vec<f64> = samples.iter().filter(|(found, _)| of_it(found)).map(|(_, value)| *value).collect();
    assert!(!found.is_empty(), "there is no {name} among {:?}", samples.keys());
    found.into_iter().sum()
}

/// A port that nobody else gets, and that whoever knows it can listen on again and again: it is bound here, but nobody
/// listens.
pub struct Port {
    pub address: SocketAddr,
    _bound: socket2::Socket,
}

impl Port {
    pub fn reserve() -> Self {
        let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        bound.set_reuse_address(true).unwrap();
        bound.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = bound.local_addr().unwrap().as_socket().unwrap();
        Self { address, _bound: bound }
    }
}
