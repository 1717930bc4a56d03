//! What the API does with a request that it has written down. The request's header `x-behave` chooses, as `NAME` or
//! `NAME=VALUE`; its header `x-answer` is the body of the answer, whatever else happens.
//!
//! | behaviour | what the API does |
//! | --- | --- |
//! | (none) | answers 201 |
//! | `status=N`, `body=TEXT`, `big=BYTES` | chooses the status or the body |
//! | `header=LINE`, `outcome=WORD`, `cookies`, `hop` | adds headers |
//! | `redirect=N`, `slash` | redirects to another path, or to the same with a slash |
//! | `echo` | answers with the head of the request as it came |
//! | `hold=NAME` | waits until the test releases the name |
//! | `upload=NAME` | counts as held when the first chunk of the body has come |
//! | `hang=NAME` | counts as held, and never answers |
//! | `reset` | resets the connection |
//! | `truncate`, `truncate-chunked` | breaks off in the body of the answer |
//! | `closing`, `closing=CODING` | ends the answer with the connection |
//! | `close-after=NAME` | answers, closes the connection without notice, and then counts as held |
//! | `endless` | never ends the body of the answer |
//! | `sse=NAME` | sends one event, and the second when the test releases the name |
//! | `trailers`, `old`, `upgrade` | answers with trailers, in HTTP/1.0, or with a protocol that echoes |

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::message::{Answer, ReceivedRequest};
use super::process::Api;

/// What becomes of the connection after an answer.
pub enum Connection {
    KeepOpen,
    Close,
}

/// Behaves as a request asks. Nothing where the connection broke, or shall break.
pub async fn behave(api: &Api, request: &ReceivedRequest, socket: &mut TcpStream) -> Option<Connection> {
    let behaviour = request.headers.get("x-behave").cloned().unwrap_or_default();
    let (name, value) = behaviour.split_once('=').unwrap_or((&behaviour, ""));
    let mut answer = Answer::to(request);
    match name {
        "" | "upload" => {}
        "status" => answer.status = value.parse().ok()?,
        "header" => answer.headers.push_str(&format!("{value}\r\n")),
        "outcome" => answer.headers.push_str(&format!("onceward-outcome: {value}\r\n")),
        "body" => answer.body = value.into(),
        "big" => answer.body = vec![b'x'; value.parse().ok()?],
        "echo" => answer.body = request.head.clone().into_bytes(),
        "cookies" => {
            answer.headers.push_str("set-cookie: a=1\r\nset-cookie: b=2\r\nx-many: 1\r\nx-many: 2\r\n")
        }
        "redirect" => {
            answer.status = value.parse().ok()?;
            answer.headers.push_str("location: /elsewhere\r\n");
        }
        // Frameworks that want a slash at the end redirect to the host that the request named.
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
        // All but `x-end` concern one connection only.
        "hop" => answer.headers.push_str(
            "connection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: x\r\nx-end: 1\r\n",
        ),
        "hang" => {
            api.hold(value).held.add_permits(1);
            // Until the gateway closes the connection.
            while socket.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
            return None;
        }
        "reset" => {
            socket.set_zero_linger().ok()?;
            return None;
        }
        "close-after" => {
            answer.send(socket).await?;
            socket.shutdown().await.ok()?;
            api.hold(value).held.add_permits(1);
            return Some(Connection::Close);
        }
        _ => return write_by_hand(api, &answer, name, value, socket).await,
    }
    answer.send(socket).await?;
    Some(Connection::KeepOpen)
}

/// Answers that have no length, or are no HTTP/1.1.
async fn write_by_hand(
    api: &Api,
    answer: &Answer,
    name: &str,
    value: &str,
    socket: &mut TcpStream,
) -> Option<Connection> {
    const CHUNKED: &str = "transfer-encoding: chunked\r\n\r\n";
    match name {
        "old" => socket.write_all(b"HTTP/1.0 200 OK\r\n\r\nold").await.ok()?,
        "trailers" => {
            let head = format!("HTTP/1.1 200 OK\r\ntrailer: x-sum\r\n{CHUNKED}");
            socket.write_all(format!("{head}4\r\nbody\r\n0\r\nx-sum: 42\r\n\r\n").as_bytes()).await.ok()?;
            return Some(Connection::KeepOpen);
        }
        "truncate" => {
            socket.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\n{\"cut\":").await.ok()?;
        }
        "truncate-chunked" => {
            let answer = format!("HTTP/1.1 201 Created\r\n{CHUNKED}5\r\nhello\r\n");
            socket.write_all(answer.as_bytes()).await.ok()?;
        }
        "closing" => {
            let coding =
                if value.is_empty() { String::new() } else { format!("transfer-encoding: {value}\r\n") };
            let head = format!("HTTP/1.1 201 Created\r\n{coding}\r\n");
            socket.write_all(&[head.as_bytes(), &answer.body].concat()).await.ok()?;
        }
        "endless" => {
            socket.write_all(format!("HTTP/1.1 200 OK\r\n{CHUNKED}").as_bytes()).await.ok()?;
            let chunk = format!("400\r\n{}\r\n", "e".repeat(1024));
            // Until the gateway closes the connection.
            loop {
                socket.write_all(chunk.as_bytes()).await.ok()?;
            }
        }
        "sse" => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{CHUNKED}");
            socket.write_all(head.as_bytes()).await.ok()?;
            socket.write_all(b"d\r\ndata: first\n\n\r\n").await.ok()?;
            api.hold(value).released.acquire().await.ok()?.forget();
            socket.write_all(b"e\r\ndata: second\n\n\r\n0\r\n\r\n").await.ok()?;
            return Some(Connection::KeepOpen);
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
        other => panic!("the ledger cannot behave as {other:?}"),
    }
    Some(Connection::Close)
}
