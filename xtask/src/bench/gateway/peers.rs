//! What stands around the gateway in a measurement, each in a process of its own: the API behind, and the least proxy that
//! hyper's own client and server make.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::Done;

/// Which one to be. Started by the measurement itself.
#[derive(clap::Subcommand)]
pub enum Peer {
    /// Reads every request and answers it with 500 bytes.
    Upstream,
    /// Passes every request on.
    Proxy {
        /// Where to.
        upstream: SocketAddr,
    },
}

pub fn run(peer: &Peer) -> Done {
    match peer {
        // One thread: it must leave the machine to what is measured.
        Peer::Upstream => {
            tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(upstream())
        }
        Peer::Proxy { upstream } => {
            tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(proxy(*upstream))
        }
    }
}

async fn listen() -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(listener)
}

async fn upstream() -> Done {
    let listener = listen().await?;
    let answer = Bytes::from(format!("{{\"charge\":\"{}\"}}", "c".repeat(487)));
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let answer = answer.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = answer.clone();
            async move {
                request.into_body().collect().await?;
                let response = Response::builder().status(201).header("content-type", "application/json");
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(response.body(Full::new(answer))?)
            }
        });
        // A connection that ends is the end of a measurement.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
    }
}

async fn proxy(upstream: SocketAddr) -> Done {
    let listener = listen().await?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<HttpConnector, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let client = client.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let client = client.clone();
            async move {
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                match Uri::builder()
                    .scheme("http")
                    .authority(upstream.to_string())
                    .path_and_query(path)
                    .build()
                {
                    Ok(uri) => *request.uri_mut() = uri,
                    Err(error) => return Ok::<_, Infallible>(failed(&error)),
                }
                Ok(match client.request(request).await {
                    Ok(response) => response.map(http_body_util::Either::Left),
                    Err(error) => failed(&error),
                })
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
    }
}

type Passed = http_body_util::Either<Incoming, Full<Bytes>>;

fn failed(error: &dyn std::error::Error) -> Response<Passed> {
    let mut response =
        Response::new(http_body_util::Either::Right(Full::new(Bytes::from(error.to_string()))));
    *response.status_mut() = hyper::StatusCode::BAD_GATEWAY;
    response
}
