//! The API behind the demo's gateway: payments that drop their answers on request, and the shop.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use onceward::plumbing::time::sleep;
use serde_json::json;
use tokio::net::TcpListener;

use super::console::Console;
use super::shop::{Dies, Order, Ordered, Shop};

/// How long a slow charge takes: longer than the client of the demo waits.
pub(super) const SLOW: Duration = Duration::from_secs(2);
/// A charge is one number.
const LARGEST_BODY: usize = 4096;

/// Every charge that was made, in cents. Two requests make two charges. Nothing else remembers them.
#[derive(Clone)]
pub(super) struct Api {
    charged: Arc<Mutex<Vec<u64>>>,
    shop: Shop,
    console: Console,
}

/// The API went away before it answered.
#[derive(Debug)]
struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the API went away, as it was asked to")
    }
}

impl std::error::Error for Gone {}

impl Api {
    pub(super) fn new(shop: Shop, console: Console) -> Self {
        Self { charged: Arc::default(), shop, console }
    }

    /// Serves until it is dropped.
    pub(super) async fn serve(self, listener: TcpListener) -> Infallible {
        loop {
            let socket = match listener.accept().await {
                Ok((socket, _)) => socket,
                Err(error) => {
                    tracing::warn!(%error, "the API could not accept a connection");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let api = self.clone();
            let service = service_fn(move |request| {
                let api = api.clone();
                async move { api.answer(request).await }
            });
            tokio::spawn(async move {
                if let Err(error) =
                    http1::Builder::new().serve_connection(TokioIo::new(socket), service).await
                {
                    tracing::debug!(%error, "a connection to the API ended");
                }
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Gone> {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/charges") => Ok(answer(StatusCode::OK, &self.list())),
            (&Method::POST, "/charges") => self.charge(request).await,
            (&Method::GET, "/orders") => self.orders(),
            (&Method::POST, "/orders") => self.order(request).await,
            _ => {
                Ok(answer(StatusCode::NOT_FOUND, &json!({ "error": "there are only /charges and /orders" })))
            }
        }
    }

    async fn charge(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Gone> {
        let wish = request.headers().get("demo").cloned();
        let amount = field(request, "amount").await?;
        let Some(cents) = amount.and_then(|amount| amount.parse().ok()) else {
            let error = json!({ "error": "send amount=CENTS, such as amount=1299" });
            return Ok(answer(StatusCode::BAD_REQUEST, &error));
        };
        let number = {
            let mut charged = self.charged();
            charged.push(cents);
            charged.len()
        };
        let charged = Euros(cents);
        self.console.say(format_args!("  payments API  charged {charged}: that is charge {number}"));
        match wish.as_ref().map(HeaderValue::as_bytes) {
            Some(b"slow") => sleep(SLOW).await,
            Some(b"gone") => return Err(Gone),
            Some(_) | None => {}
        }
        Ok(answer(StatusCode::CREATED, &json!({ "charge": number, "amount": cents })))
    }

    async fn order(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Gone> {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let operation = header("onceward-operation").unwrap_or_default().to_owned();
        let fence = header("onceward-fence").and_then(|fence| fence.parse().ok()).unwrap_or_default();
        let dies = match header("demo") {
            Some("die-before-commit") => Some(Dies::BeforeCommit),
            Some("die-after-commit") => Some(Dies::AfterCommit),
            Some(_) | None => None,
        };
        let Some(item) = field(request, "item").await? else {
            let error = json!({ "error": "send item=NAME, such as item=book" });
            return Ok(answer(StatusCode::BAD_REQUEST, &error));
        };
        let (shop, order) = (self.shop.clone(), Order { operation, fence, item, dies });
        match tokio::task::spawn_blocking(move || shop.order(&order)).await {
            Ok(Ok(Ordered::Answered(body))) => Ok(with_body(StatusCode::CREATED, body)),
            Ok(Ok(Ordered::Died)) | Err(_) => Err(Gone),
            Ok(Err(error)) => Ok(failed(&error)),
        }
    }

    fn orders(&self) -> Result<Response<Full<Bytes>>, Gone> {
        Ok(match self.shop.list() {
            Ok(list) => answer(StatusCode::OK, &list),
            Err(error) => failed(&error),
        })
    }

    fn list(&self) -> serde_json::Value {
        let charged = self.charged();
        json!({ "charges": *charged, "count": charged.len(), "total": charged.iter().sum::<u64>() })
    }

    fn charged(&self) -> MutexGuard<'_, Vec<u64>> {
        // A panic while the lock is held cannot leave half a charge.
        self.charged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cents, as people write them.
struct Euros(u64);

impl fmt::Display for Euros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// A field of a form.
async fn field(request: Request<Incoming>, name: &str) -> Result<Option<String>, Gone> {
    let Ok(body) = Limited::new(request.into_body(), LARGEST_BODY).collect().await else {
        return Err(Gone);
    };
    let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let value = body.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    Ok(value.map(str::to_owned))
}

fn failed(error: &rusqlite::Error) -> Response<Full<Bytes>> {
    answer(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "error": error.to_string() }))
}

fn answer(status: StatusCode, body: &serde_json::Value) -> Response<Full<Bytes>> {
    with_body(status, format!("{body}\n"))
}

fn with_body(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
