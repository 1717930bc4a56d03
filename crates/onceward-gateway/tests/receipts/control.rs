//! The socket over which a test leads a handler through a request: it hears where the handler is, and says how to go on. So a
//! test kills, stops or fails an execution at an exact point, and never waits for a time to pass.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::harness::within;

/// Where a handler waits for a word, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// The transaction is open, and nothing is written.
    Begun,
    /// The order is written.
    Ordered,
    /// The receipt row is written as well.
    Written,
    /// The transaction is committed, and nothing is answered.
    Committed,
}

impl Point {
    pub const ALL: [Self; 4] = [Self::Begun, Self::Ordered, Self::Written, Self::Committed];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Ordered => "ordered",
            Self::Written => "written",
            Self::Committed => "committed",
        }
    }
}

/// What a handler says before it tries its transaction again.
const AGAIN: &str = "again";

/// The test's end of every such socket.
pub struct Control {
    pub address: SocketAddr,
    waiting: Arc<Mutex<HashMap<String, VecDeque<Delivery>>>>,
    arrived: watch::Receiver<u64>,
}

impl Control {
    /// Listens on the present runtime.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let waiting = Arc::new(Mutex::new(HashMap::<String, VecDeque<Delivery>>::new()));
        let (announce, arrived) = watch::channel(0);
        let deliveries = waiting.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                // A handler that is killed at once has said nothing.
                let Some((key, delivery)) = Delivery::of(socket).await else { continue };
                deliveries.lock().unwrap().entry(key).or_default().push_back(delivery);
                announce.send_modify(|count| *count += 1);
            }
        });
        Self { address, waiting, arrived }
    }

    /// The next request of a key that a handler has begun.
    pub async fn delivery(&self, key: &str) -> Delivery {
        let mut arrived = self.arrived.clone();
        let next = || self.waiting.lock().unwrap().get_mut(key)?.pop_front();
        within(&format!("the handler has begun {key:?}"), async {
            loop {
                arrived.borrow_and_update();
                if let Some(delivery) = next() {
                    return delivery;
                }
                arrived.changed().await.unwrap();
            }
        })
        .await
    }
}

/// One request that a handler executes.
pub struct Delivery {
    /// The process that executes this request, and no other.
    pub pid: u32,
    lines: BufReader<OwnedReadHalf>,
    words: OwnedWriteHalf,
}

impl Delivery {
    async fn of(socket: TcpStream) -> Option<(String, Self)> {
        let (lines, words) = socket.into_split();
        let mut delivery = Self { pid: 0, lines: BufReader::new(lines), words };
        let first = delivery.line().await?;
        let (key, pid) = first.split_once(' ')?;
        delivery.pid = pid.parse().ok()?;
        Some((key.to_owned(), delivery))
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = within("a word of the handler", self.lines.read_line(&mut line)).await;
        // The connection of a process that was killed may be reset.
        (read.ok()? > 0).then(|| line.trim_end().to_owned())
    }

    /// Lets the handler go on until it waits at a point.
    pub async fn until(&mut self, point: Point) {
        self.at(Point::Begun).await;
        self.on_to(point).await;
    }

    /// The same, for a handler that waits at the first point already.
    pub async fn on_to(&mut self, point: Point) {
        assert_eq!(self.reaches(point).await, Ok(()));
    }

    /// The same. The error is how the handler's work ended before.
    pub async fn reaches(&mut self, point: Point) -> Result<(), Option<String>> {
        for next in Point::ALL.into_iter().filter(|next| (Point::Ordered..=point).contains(next)) {
            self.say("go").await;
            let line = self.line().await;
            if line.as_deref() != Some(next.name()) {
                return Err(line);
            }
        }
        Ok(())
    }

    /// Returns once the handler waits at a point, which must be its next.
    pub async fn at(&mut self, point: Point) {
        assert_eq!(self.line().await.as_deref(), Some(point.name()));
    }

    /// How to go on: `go`, `die`, `die-in-commit SECONDS`, `forget` (the receipt), or a status to answer at once.
    pub async fn say(&mut self, word: &str) {
        // A handler that is gone hears nothing.
        drop(self.words.write_all(format!("{word}\n").as_bytes()).await);
    }

    /// Says a word, and returns how the handler's work ended: `committed`, `refused`, or the error of its database. Nothing
    /// where the handler was killed.
    pub async fn end_with(&mut self, word: &str) -> Option<String> {
        self.say(word).await;
        self.ended().await
    }

    /// How the handler's work ended, which goes on at every point and tries a transaction again where that may help.
    pub async fn ended(&mut self) -> Option<String> {
        loop {
            let line = self.line().await?;
            match line.strip_prefix("ended ") {
                Some(end) => return Some(end.to_owned()),
                None if line == AGAIN => {}
                None => self.say("go").await,
            }
        }
    }

    /// Returns once the handler tries its transaction again from the beginning.
    pub async fn tries_again(&mut self) {
        assert_eq!(self.line().await.as_deref(), Some(AGAIN));
    }

    /// Sends the process a signal by its name. It waits for a word, so it has not ended.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.pid.to_string()]).status().unwrap();
        assert!(sent.success());
    }
}
