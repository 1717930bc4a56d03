//! A client that reads and writes HTTP/1.1 without a library, so that a test sees and sends every byte.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::message::{Request, Response};
use super::wait::within;

/// One connection.
pub struct Client(pub TcpStream);

impl Client {
    pub async fn connect(address: std::net::SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub async fn send(&mut self, request: Request<'_>) -> Response {
        self.write(&request.bytes()).await;
        let answer = self.read_answer_to(request.method).await;
        answer.unwrap_or_else(|| panic!("no answer to {request:?}"))
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// The next response. Nothing where the connection ends before the response does.
    pub async fn read(&mut self) -> Option<Response> {
        self.read_answer_to("POST").await
    }

    /// The same: an answer to HEAD has no body, whatever its headers say.
    async fn read_answer_to(&mut self, method: &str) -> Option<Response> {
        within("an answer, or the end of its connection", self.read_unbounded(method)).await
    }

    async fn read_unbounded(&mut self, method: &str) -> Option<Response> {
        let head = read_head(&mut self.0).await?;
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut response = Response { status, headers, body: Vec::new() };
        if method == "HEAD" || matches!(status, 100..=199 | 204 | 304) {
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

    /// The next chunk of a streamed answer: `Some(None)` at its end, nothing where it broke off.
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

    /// Waits until the gateway closes the connection. Whether it sent nothing before.
    pub async fn closed(&mut self) -> bool {
        let mut rest = Vec::new();
        let read = within("the end of a connection", self.0.read_to_end(&mut rest)).await;
        // A reset is an end as well.
        read.is_err() || rest.is_empty()
    }
}

/// Sends a charge to a gateway that may be killed meanwhile. Nothing where it gave no answer.
pub async fn try_charge(gateway: std::net::SocketAddr, key: &str) -> Option<Response> {
    let mut client = Client(TcpStream::connect(gateway).await.ok()?);
    client.0.write_all(&Request::charge(key).header("x-answer", key).bytes()).await.ok()?;
    client.read().await
}

/// Reads the head of a message, and nothing behind it. Nothing where the connection ends before.
pub async fn read_head(socket: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}
