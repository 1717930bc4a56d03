//! The handler in Rust, with tokio-postgres and rusqlite. It behaves as `tests/peers/orders.py` does.
//!
//! It is this test program, started again: once to listen, and once for each connection, which it gets as its standard input.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::plumbing::time::sleep;
use rusqlite::params;
use tokio_postgres::NoTls;

/// The test below that listens.
pub const SERVER: &str = "rust::this_program_takes_orders_where_a_test_has_started_it_again";
/// The test below that serves a connection.
const CONNECTION: &str = "rust::this_program_takes_one_order_where_the_handler_has_started_it_again";
/// Names the test that the program was started for.
const ROLE: &str = "ORDERS_ROLE";

/// PostgreSQL's code for a transaction that may succeed if it is tried again.
const SERIALIZATION: &str = "40001";

const HEADERS: &str = r#"[["content-type","application/json"],["x-answer-of","receipt"]]"#;

/// This program, started again for one of these tests.
pub fn program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ROLE, test);
    command
}

fn is_started_for(test: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|role| role == test)
}

#[test]
fn this_program_takes_orders_where_a_test_has_started_it_again() {
    if !is_started_for(SERVER) {
        return;
    }
    let children = Arc::new(Mutex::new(Vec::<Child>::new()));
    let to_kill = children.clone();
    std::thread::spawn(move || {
        // The pipe ends with the test. Children that it has stopped would never end by themselves.
        let _ended = std::io::stdin().read_line(&mut String::new());
        for child in to_kill.lock().unwrap().iter_mut() {
            let _killed = child.kill();
        }
        std::process::exit(0);
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("orders at {}", listener.local_addr().unwrap());
    for socket in listener.incoming() {
        let mut command = program(CONNECTION);
        command.stdin(Stdio::from(OwnedFd::from(socket.unwrap()))).stdout(Stdio::null());
        let mut children = children.lock().unwrap();
        children.retain_mut(|child| child.try_wait().unwrap().is_none());
        children.push(command.spawn().unwrap());
    }
}

#[test]
fn this_program_takes_one_order_where_the_handler_has_started_it_again() {
    if !is_started_for(CONNECTION) {
        return;
    }
    let mut socket = TcpStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let Some(headers) = read_request(&socket) else { return };
    let mut talk = Talk::begin(&headers);
    let (status, body) = order(&headers, &mut talk);
    let answer = format!(
        "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // The gateway may have closed the connection.
    drop(socket.write_all(answer.as_bytes()));
}

type Headers = HashMap<String, String>;

/// The headers of an order. Nothing for other requests, such as those of `onceward check`.
fn read_request(socket: &TcpStream) -> Option<Headers> {
    let mut reader = BufReader::new(socket);
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|_| first.starts_with("POST "))?;
    let mut headers = Headers::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(headers)
}

/// Why an order is not taken.
enum Failed {
    /// The test wants this status for an answer.
    Refused(u16),
    /// The transaction may succeed if it is tried again.
    Serialization,
    /// The code of the database's error, or its words.
    Database(String),
}

/// What the handler and the test tell each other about one request.
struct Talk(Option<BufReader<TcpStream>>);

impl Talk {
    fn begin(headers: &Headers) -> Self {
        if !headers.contains_key("x-talk") {
            return Self(None);
        }
        let socket = TcpStream::connect(std::env::var("ORDERS_CONTROL").unwrap()).unwrap();
        let mut talk = Self(Some(BufReader::new(socket)));
        let again = headers.get("x-delivery").map_or("", String::as_str);
        talk.tell(&format!("{}{again} {}", headers["idempotency-key"], std::process::id()));
        talk
    }

    fn tell(&mut self, line: &str) {
        if let Self(Some(socket)) = self {
            // A test that has ended hears nothing.
            drop(socket.get_mut().write_all(format!("{line}\n").as_bytes()));
        }
    }

    /// Waits for a word.
    fn at(&mut self, point: &str) -> Result<Vec<String>, Failed> {
        self.tell(point);
        let Self(Some(socket)) = self else { return Ok(vec!["go".to_owned()]) };
        let mut line = String::new();
        let _read = socket.read_line(&mut line);
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match words.first().map(|word| (word.as_str(), word.parse())) {
            // The test has ended.
            None | Some(("die", _)) => die(),
            Some((_, Ok(status))) => Err(Failed::Refused(status)),
            Some((_, Err(_))) => Ok(words),
        }
    }
}

fn die() -> ! {
    let _sent = Command::new("kill").args(["-s", "KILL", &std::process::id().to_string()]).status();
    unreachable!("it was killed")
}

fn order(headers: &Headers, talk: &mut Talk) -> (u16, String) {
    // What programs under the stricter levels do: the transaction is tried again from its beginning.
    loop {
        let (end, answer) = match take_order(headers, talk) {
            Ok(body) => ("committed".to_owned(), (201, body)),
            Err(Failed::Serialization) if !headers.contains_key("x-gives-up") => {
                talk.tell("again");
                continue;
            }
            Err(Failed::Serialization) => {
                (SERIALIZATION.to_owned(), (500, serde_json::json!({ "error": SERIALIZATION }).to_string()))
            }
            Err(Failed::Refused(status)) => {
                ("refused".to_owned(), (status, "{\"error\":\"refused\"}".to_owned()))
            }
            Err(Failed::Database(code)) => {
                (code.clone(), (500, serde_json::json!({ "error": code }).to_string()))
            }
        };
        talk.tell(&format!("ended {end}"));
        return answer;
    }
}

/// Returns the body of the answer, once the order is committed. Otherwise the transaction ends with its connection.
fn take_order(headers: &Headers, talk: &mut Talk) -> Result<String, Failed> {
    let header = |name: &str| headers.get(name).map(String::as_str).unwrap_or_default();
    let body = serde_json::json!({ "ordered": header("idempotency-key") }).to_string();
    let mut transaction = Transaction::begin(header("x-isolation"))?;
    talk.at("begun")?;
    transaction.order(header("idempotency-key"), header("onceward-operation"))?;
    if talk.at("ordered")?[0] != "forget" && header("x-forget").is_empty() {
        transaction.complete(
            header("onceward-operation"),
            header("onceward-fence").parse().unwrap(),
            &body,
        )?;
    }
    let word = talk.at("written")?;
    if word[0] == "die-in-commit" {
        transaction.commit_and_die(Duration::from_secs_f64(word[1].parse().unwrap()));
    }
    transaction.commit()?;
    talk.at("committed")?;
    Ok(body)
}

/// The open transaction of a request, on a connection of its own.
enum Transaction {
    Sqlite(rusqlite::Connection),
    Postgres { runtime: tokio::runtime::Runtime, client: tokio_postgres::Client },
}

impl Transaction {
    fn begin(isolation: &str) -> Result<Self, Failed> {
        let database = std::env::var("ORDERS_DATABASE").unwrap();
        if let Some(path) = database.strip_prefix("sqlite:") {
            let connection = rusqlite::Connection::open(path)?;
            connection.busy_timeout(crate::harness::LONGEST_WAIT)?;
            connection.execute_batch("BEGIN")?;
            return Ok(Self::Sqlite(connection));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&database, NoTls).await?;
            // It ends with its client.
            tokio::spawn(connection);
            let isolation = if isolation.is_empty() { "READ COMMITTED" } else { isolation };
            // The snapshot of the stricter levels is made by the first query.
            let begin = format!("BEGIN ISOLATION LEVEL {isolation}; SELECT count(*) FROM orders");
            client.batch_execute(&begin).await.map(|()| client)
        })?;
        Ok(Self::Postgres { runtime, client })
    }

    fn order(&mut self, key: &str, operation: &str) -> Result<(), Failed> {
        match self {
            Self::Sqlite(connection) => {
                connection
                    .execute("INSERT INTO orders (key, operation) VALUES (?1, ?2)", [key, operation])?;
            }
            Self::Postgres { runtime, client } => {
                let sql = "INSERT INTO orders (key, operation) VALUES ($1, $2)";
                runtime.block_on(client.execute(sql, &[&key, &operation]))?;
            }
        }
        Ok(())
    }

    fn complete(&mut self, operation: &str, fence: i64, body: &str) -> Result<(), Failed> {
        match self {
            Self::Sqlite(connection) => {
                let sql = "INSERT INTO onceward_complete (operation, fence, status, headers, body) \
                           VALUES (?1, ?2, 201, ?3, ?4)";
                connection.execute(sql, params![operation, fence, HEADERS, body])?;
            }
            Self::Postgres { runtime, client } => {
                let sql = "SELECT onceward_complete($1, $2, 201, $3, $4)";
                runtime.block_on(client.execute(sql, &[&operation, &fence, &HEADERS, &body.as_bytes()]))?;
            }
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Failed> {
        match self {
            Self::Sqlite(connection) => connection.execute_batch("COMMIT")?,
            Self::Postgres { runtime, client } => runtime.block_on(client.batch_execute("COMMIT"))?,
        }
        Ok(())
    }

    fn commit_and_die(&mut self, after: Duration) -> ! {
        match self {
            Self::Sqlite(connection) => {
                std::thread::spawn(|| die());
                let _committed = connection.execute_batch("COMMIT");
            }
            Self::Postgres { runtime, client } => runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = client.batch_execute("COMMIT") => {}
                    () = sleep(after) => {}
                }
            }),
        }
        die()
    }
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        let words = error.to_string();
        Self::Database(words.split(':').next().unwrap_or_default().to_owned())
    }
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.code().map(|code| code.code()) {
            Some(SERIALIZATION) => Self::Serialization,
            Some(code) => Self::Database(code.to_owned()),
            None => Self::Database(error.to_string()),
        }
    }
}
