//! HTTP/1.1 as the API reads and writes it.

use std::collections::HashMap;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::process::Api;
use crate::harness::read_head;

/// A request, as the API read it.
pub struct ReceivedRequest {
    pub method: String,
    pub path: String,
    /// By lower-case name; the last value of each.
    pub headers: HashMap<String, String>,
    /// The head as it came, without its last line ends.
    pub head: String,
    pub body: Vec<u8>,
}

impl ReceivedRequest {
    /// Reads a whole request. Nothing where the connection ends before.
    pub async fn read(api: &Api, socket: &mut TcpStream) -> Option<Self> {
        let head = read_head(socket).await?.trim_end_matches("\r\n").to_owned();
        let mut lines = head.split("\r\n");
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
            let upload = headers.get("x-behave").and_then(|how| how.strip_prefix("upload="));
            body = read_chunks(socket, || {
                upload.inspect(|name| api.hold(name).held.add_permits(1));
            })
            .await?;
        }
        Some(Self { method, path, headers, head, body })
    }
}

/// Reads a chunked body, and reports that its first chunk has come.
async fn read_chunks(socket: &mut TcpStream, first_chunk_has_come: impl Fn()) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let length = usize::from_str_radix(read_line(socket).await?.trim(), 16).ok()?;
        let start = body.len();
        body.resize(start + length, 0);
        socket.read_exact(&mut body[start..]).await.ok()?;
        read_line(socket).await?;
        if start == 0 {
            first_chunk_has_come();
        }
        if length == 0 {
            return Some(body);
        }
    }
}

async fn read_line(socket: &mut TcpStream) -> Option<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        line.push(socket.read_u8().await.ok()?);
    }
    String::from_utf8(line).ok()
}

/// An answer with a length.
pub struct Answer {
    pub status: u16,
    /// Lines, each with its end.
    pub headers: String,
    pub body: Vec<u8>,
    /// An answer to HEAD has a length and no body.
    pub is_to_head: bool,
}

impl Answer {
    pub fn to(request: &ReceivedRequest) -> Self {
        let chosen = request.headers.get("x-answer");
        Self {
            status: 201,
            headers: String::new(),
            body: chosen.map_or("{\"charged\":true}", String::as_str).into(),
            is_to_head: request.method == "HEAD",
        }
    }

    pub async fn send(&self, socket: &mut TcpStream) -> Option<()> {
        let bodiless = matches!(self.status, 100..=199 | 204 | 304);
        let length =
            if bodiless { String::new() } else { format!("content-length: {}\r\n", self.body.len()) };
        let head = format!("HTTP/1.1 {} Status\r\ncontent-type: application/json\r\n{length}", self.status);
        let mut bytes = format!("{head}{}\r\n", self.headers).into_bytes();
        if !bodiless && !self.is_to_head {
            bytes.extend_from_slice(&self.body);
        }
        socket.write_all(&bytes).await.ok()
    }
}
