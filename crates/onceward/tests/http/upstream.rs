//! The service behind the layer. Its header `x-do` chooses how it behaves, and it counts its executions.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use onceward::Operation;
use onceward::http::EndsWithConnection;
use tokio::sync::Notify;

use super::SECOND;

#[derive(Clone, Default)]
pub struct Upstream {
    pub ledger: Arc<AtomicU64>,
    /// Notified when work that hangs has begun.
    pub began: Arc<Notify>,
    /// Lets that work go on.
    pub go: Arc<Notify>,
    /// The head of the last request.
    pub saw: Arc<Mutex<HeaderMap>>,
}

/// How a service fails without an answer.
#[derive(Debug, Clone, Copy)]
pub enum Broke {
    Refused,
    Late,
    Off,
}

impl std::fmt::Display for Broke {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

impl std::error::Error for Broke {}

/// A body of given frames, which then ends, breaks off or goes on for ever.
pub struct Frames {
    frames: std::vec::IntoIter<Frame<Bytes>>,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Proper,
    Broken,
    Never,
}

impl Body for Frames {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Poll::Ready(match (self.frames.next(), self.end) {
            (Some(frame), _) => Some(Ok(frame)),
            (None, End::Proper) => None,
            (None, End::Broken) => Some(Err(std::io::ErrorKind::ConnectionReset.into())),
            (None, End::Never) => Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 4096])))),
        })
    }
}

impl Upstream {
    pub async fn answer<B>(self, request: Request<B>) -> Result<Response<Frames>, Broke>
    where
        B: Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        *self.saw.lock().unwrap() = parts.headers.clone();
        let what = parts.headers.get("x-do").map_or("", |what| what.to_str().unwrap()).to_owned();
        let (what, argument) = what.split_once(':').unwrap_or((&what, ""));
        if what == "refused" {
            return Err(Broke::Refused);
        }
        let number = self.ledger.fetch_add(1, Ordering::SeqCst) + 1;
        let mut frames = vec![Frame::data(Bytes::from(format!("execution {number} of ")))];
        frames.push(Frame::data(body));
        let mut end = End::Proper;
        let mut response = Response::builder().status(201).header("content-type", "text/plain");
        match what {
            "" => {}
            "status" => response = response.status(argument.parse::<u16>().unwrap()),
            "word" => {
                let (word, status) = argument.split_once(':').unwrap();
                response = response.header("onceward-outcome", word).status(status.parse::<u16>().unwrap());
            }
            "panic" => std::panic::resume_unwind(Box::new("on purpose")),
            "log" => tracing::info!("the service was called"),
            "late" => return Err(Broke::Late),
            "off" => return Err(Broke::Off),
            "broken" => end = End::Broken,
            "short" => response = response.header("content-length", "1000"),
            // As a proxy marks an answer that ended with its connection.
            "closing" => {
                frames = vec![Frame::data(argument.to_owned().into())];
                response = Response::builder().status(201).header("content-type", "application/json");
                response = response.extension(EndsWithConnection);
            }
            "endless" => end = End::Never,
            "bytes" => frames = vec![Frame::data(vec![b'x'; argument.parse().unwrap()].into())],
            "hang" => {
                self.began.notify_one();
                self.go.notified().await;
            }
            "slow" => onceward::plumbing::time::sleep(SECOND * argument.parse().unwrap()).await,
            "operation" => {
                let id = parts.extensions.get::<Operation>().unwrap().operation_id();
                frames = vec![Frame::data(id.to_string().into())];
            }
            "own-operation" => {
                let status = argument.parse::<u16>().unwrap();
                response = response.status(status).header("onceward-operation", "its own");
            }
            "links" => {
                for number in 0..argument.parse::<u32>().unwrap() {
                    response = response.header("link", format!("</{number}>"));
                }
            }
            // Encodes whatever `Accept-Encoding` says.
            "encoded" => {
                response = response.header("content-encoding", argument).header("etag", "\"encoded\"");
                frames = vec![Frame::data(Bytes::from_static(b"\x0b\x02\x80 encoded"))];
            }
            "trailers" => {
                let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
                frames.push(Frame::trailers(trailers));
            }
            "headers" => {
                for (name, value) in [
                    ("x-many", "one"),
                    ("x-many", "two, three"),
                    ("x-many", "one"),
                    ("set-cookie", "session=1"),
                    ("set-cookie", "theme=dark"),
                    ("date", "Tue, 15 Nov 1994 08:12:31 GMT"),
                    ("connection", "close, X-Hop"),
                    ("x-hop", "only here"),
                    ("keep-alive", "timeout=5"),
                    ("location", "/payments/1"),
                    ("etag", "\"1\""),
                ] {
                    response = response.header(name, value);
                }
            }
            other => panic!("the upstream cannot {other}"),
        }
        Ok(response.body(Frames { frames: frames.into_iter(), end }).unwrap())
    }
}
