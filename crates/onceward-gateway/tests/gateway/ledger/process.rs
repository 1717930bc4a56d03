//! The process of the API: it writes each request into the ledger file, and then behaves as the request asks.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::behaviour::{Connection, behave};
use super::message::ReceivedRequest;

/// The test below, as this program's command line names it.
pub const TEST: &str = "ledger::process::this_program_serves_the_api_where_a_test_has_started_it_again";
/// The variable that names the ledger file. A process without it is not the API.
pub const FILE: &str = "ONCEWARD_TEST_LEDGER";
/// The variable with the address to listen on.
pub const LISTEN: &str = "ONCEWARD_TEST_LISTEN";
/// Stands before the address in the line that is printed when the API takes connections.
pub const READY: &str = "ledger at ";
/// Requests below this path are answered once a request is held.
pub const HELD: &str = "/_held/";
/// Requests below this path let a held request be answered.
pub const RELEASE: &str = "/_release/";

#[test]
fn this_program_serves_the_api_where_a_test_has_started_it_again() {
    let Some(file) = std::env::var_os(FILE) else { return };
    // The pipe ends with the test that started this process, however that ends.
    std::thread::spawn(|| {
        let _ended = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let listen = std::env::var(LISTEN).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(serve(&listen, PathBuf::from(file)));
}

pub struct Api {
    file: Mutex<std::fs::File>,
    holds: Mutex<HashMap<String, Arc<Hold>>>,
}

/// Requests that are held under one name.
pub struct Hold {
    /// A permit for each request that is held.
    pub held: Semaphore,
    /// A permit for each of them that may be answered.
    pub released: Semaphore,
}

impl Api {
    pub fn hold(&self, name: &str) -> Arc<Hold> {
        let new = || Arc::new(Hold { held: Semaphore::new(0), released: Semaphore::new(0) });
        self.holds.lock().unwrap().entry(name.to_owned()).or_insert_with(new).clone()
    }

    /// Writes a request into the ledger.
    fn record(&self, request: &ReceivedRequest) {
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
        self.file.lock().unwrap().write_all(line.as_bytes()).unwrap();
    }
}

async fn serve(listen: &str, file: PathBuf) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    let api = Arc::new(Api { file: Mutex::new(file), holds: Mutex::default() });
    let listener = TcpListener::bind(listen).await.unwrap();
    println!("{READY}{}", listener.local_addr().unwrap());
    loop {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        let api = api.clone();
        // Each turn of the loop waits for a request; it ends with the connection.
        tokio::spawn(async move {
            while let Some(Connection::KeepOpen) = handle_request(&api, &mut socket).await {}
        });
    }
}

/// Reads one request and answers it. Nothing where the connection broke.
async fn handle_request(api: &Api, socket: &mut TcpStream) -> Option<Connection> {
    let request = ReceivedRequest::read(api, socket).await?;
    let control = if let Some(name) = request.path.strip_prefix(HELD) {
        api.hold(name).held.acquire().await.ok()?.forget();
        true
    } else if let Some(name) = request.path.strip_prefix(RELEASE) {
        api.hold(name).released.add_permits(1);
        true
    } else {
        false
    };
    if control {
        socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.ok()?;
        return Some(Connection::Close);
    }
    api.record(&request);
    behave(api, &request, socket).await
}
