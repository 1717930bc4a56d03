//! The API behind the gateway: a process of its own that keeps its own ledger.
//!
//! It is this test program, started again (`process.rs`). Every request that it reads is a line in the ledger file, written
//! before anything is answered; the ledger is the only proof of how often something was done. The API reads and writes HTTP
//! without a library, because it must be able to break it: the header `x-behave` says how (`behaviour.rs`).

mod behaviour;
mod message;
mod process;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{Client, Gateway, Output, Request, within};

/// The API, seen from a test.
pub struct Ledger {
    child: Child,
    pub address: SocketAddr,
    file: PathBuf,
}

/// One request that the API has read.
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
            .args(["--exact", process::TEST, "--nocapture"])
            .env(process::FILE, &file)
            .env(process::LISTEN, listen)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = Output::of(child.stdout.take().unwrap());
        let address = printed.find(|line| Some(line.split_once(process::READY)?.1.trim().parse().unwrap()));
        let address = address.unwrap_or_else(|printed| panic!("the API did not start: {printed:#?}"));
        Self { child, address, file }
    }

    /// Every request, in order, but `OPTIONS *`, which `onceward check` sends and which does nothing.
    pub fn entries(&self) -> Vec<Entry> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines()
            .filter(|line| !line.starts_with("OPTIONS\t*\t"))
            .map(|line| {
                let fields: [&str; 6] = line.splitn(6, '\t').collect::<Vec<_>>().try_into().unwrap();
                let [method, path, operation, fence, key, body] = fields.map(str::to_owned);
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
        let what = format!("a request that the API holds as {name:?}");
        within(&what, self.control(&format!("{}{name}", process::HELD))).await;
    }

    /// Lets a request that behaves as `hold=NAME` be answered.
    pub async fn release(&self, name: &str) {
        self.control(&format!("{}{name}", process::RELEASE)).await;
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

impl Gateway {
    /// Starts an API that keeps a ledger, and the gateway in front of it.
    pub fn with_ledger(arguments: &[&str]) -> (TempDir, Ledger, Self) {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::start(folder.path());
        let gateway = Self::start(folder.path(), ledger.address, arguments);
        (folder, ledger, gateway)
    }

    /// Sends a request that the API writes down and holds back until `Ledger::release`. Returns once it is held.
    pub async fn send_held(&self, ledger: &Ledger, name: &str, request: Request<'_>) -> Client {
        let mut client = self.connect().await;
        client.write(&request.behave(&format!("hold={name}")).bytes()).await;
        ledger.held(name).await;
        client
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // It may have ended already.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}
