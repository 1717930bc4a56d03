//! A proxy between the gateway and the handler that delivers a request twice, as one that retries by itself does.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{read_head, within};

/// How a request is delivered, which it says in its header `x-deliver`. Without that it is delivered once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deliver {
    /// Twice at once, and the gateway gets the answer to the first delivery.
    AnswerFirst,
    /// Twice at once, and the gateway gets the answer to the second delivery.
    AnswerSecond,
    /// Again when the first delivery was answered, and the gateway gets the answer to the second.
    After,
    /// Once, and again whenever the test says so.
    Later,
}

impl Deliver {
    const ALL: [Self; 4] = [Self::AnswerFirst, Self::AnswerSecond, Self::After, Self::Later];

    pub const fn name(self) -> &'static str {
        match self {
            Self::AnswerFirst => "answer-first",
            Self::AnswerSecond => "answer-second",
            Self::After => "after",
            Self::Later => "later",
        }
    }
}

/// Follows the key in what the second delivery says to the test.
pub const SECOND: &str = "(second)";

/// Requests that are delivered later, by their keys.
type Kept = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// It ends with the test's runtime.
pub struct Repeater {
    pub address: SocketAddr,
    upstream: SocketAddr,
    kept: Kept,
}

impl Repeater {
    pub async fn before(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Kept::default();
        let to_keep = kept.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(repeat(socket, upstream, to_keep.clone()));
            }
        });
        Self { address, upstream, kept }
    }

    /// Delivers a request again that was to be delivered later. Nobody reads its answer.
    pub fn deliver_again(&self, key: &str) {
        let request = self.kept.lock().unwrap()[key].clone();
        tokio::spawn(deliver(self.upstream, request));
    }
}

async fn repeat(mut socket: TcpStream, upstream: SocketAddr, kept: Kept) {
    let Some(head) = read_head(&mut socket).await else { return };
    let header = |wanted: &str| {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{wanted}: ")))?;
        line.split_once(": ").map(|(_, value)| value.to_owned())
    };
    let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
    socket.read_exact(&mut body).await.unwrap();
    let first = [head.as_bytes(), &body].concat();
    let marked = head.replacen("\r\n", &format!("\r\nx-delivery: {SECOND}\r\n"), 1);
    let second = [marked.as_bytes(), &body].concat();
    let how =
        header("x-deliver").map(|name| Deliver::ALL.into_iter().find(|how| how.name() == name).unwrap());
    let answer = match how {
        None => deliver(upstream, first).await,
        Some(Deliver::AnswerFirst) => {
            tokio::spawn(deliver(upstream, second));
            deliver(upstream, first).await
        }
        Some(Deliver::AnswerSecond) => {
            tokio::spawn(deliver(upstream, first));
            deliver(upstream, second).await
        }
        Some(Deliver::After) => {
            deliver(upstream, first).await;
            deliver(upstream, second).await
        }
        Some(Deliver::Later) => {
            kept.lock().unwrap().insert(header("idempotency-key").unwrap(), second);
            deliver(upstream, first).await
        }
    };
    // A gateway that was killed reads nothing.
    drop(socket.write_all(&answer).await);
}

/// The whole answer to a request. Nothing from a handler that died.
async fn deliver(upstream: SocketAddr, request: Vec<u8>) -> Vec<u8> {
    let mut socket = TcpStream::connect(upstream).await.unwrap();
    socket.write_all(&request).await.unwrap();
    let mut answer = Vec::new();
    // The connection of a handler that died may be reset.
    drop(within("the handler's answer", socket.read_to_end(&mut answer)).await);
    answer
}
