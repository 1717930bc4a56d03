//! `onceward demo`: a gateway in front of a payments API of its own, with commands to paste.

mod console;
mod payments;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use onceward::engine::IdentityChange;
use onceward::event::Expiry;
use onceward::http::{Policy, Routes, ScopeRules};
use onceward::reconcile::Reconciling;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use self::console::Console;
use self::payments::{Payments, SLOW};
use crate::Failure;
use crate::running::Running;
use crate::settings::{
    Admin, Forwarding, Keepalive, Limits, Scheme, Settings, StoreUrl, Telemetry, Upstream,
};

/// Any free port on this machine.
const FREE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Runs the demo until Ctrl-C, or until nothing reads what it prints.
pub async fn run() -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let folder = tempfile::Builder::new().prefix("onceward-demo-").tempdir()?;
    let listener = TcpListener::bind(FREE).await?;
    let api = listener.local_addr()?;
    let (console, mut failures) = Console::new();
    let payments = tokio::spawn(Payments::new(console.clone()).serve(listener));
    let settings = Settings {
        listen: free_or(Settings::LISTEN).await,
        upstream: Upstream {
            scheme: Scheme::Http,
            authority: api.to_string().parse()?,
            base_path: None,
            ca: None,
            keepalive: Keepalive::default(),
        },
        forwarding: Forwarding::default(),
        store: StoreUrl::Sqlite(folder.path().join("onceward.db")),
        cache: None,
        scope: ScopeRules::parse(["fixed:demo"])?,
        namespace: "demo".to_owned(),
        record_format: None,
        secret: None,
        admin: Admin { listen: free_or(Admin::LISTEN).await, tokens: Vec::new() },
        routes: Routes::new(Policy::new())?,
        reconciling: Reconciling::default(),
        receipts: Vec::new(),
        expiry: Expiry::Delete,
        public_url: String::new(),
        tls: None,
        limits: Limits { drain: SLOW * 2, ..Limits::default() },
        telemetry: Telemetry::default(),
    };
    let running = Running::start(settings, IdentityChange::Refuse, vec![Arc::new(console.clone())]).await?;
    console.say(introduction(&running, api));
    let failed = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        failed = failures.recv() => failed,
    };
    console.say("\nStopping: what runs is finished first.");
    running.stop().await;
    payments.abort();
    folder.close()?;
    console.say("Stopped. The demo's files are gone.");
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// The usual port, so that the commands are those of the README; a free one if it is taken.
async fn free_or(usual: SocketAddr) -> SocketAddr {
    match TcpListener::bind(usual).await {
        Ok(listener) => {
            drop(listener);
            usual
        }
        Err(_) => FREE,
    }
}

fn introduction(running: &Running, api: SocketAddr) -> String {
    let (url, admin) = (format!("http://{}/charges", running.address), running.admin);
    format!(
        "A payments API that charges a card for every POST it gets, and Onceward in front of it.

  gateway       http://{}   send requests here
  payments API  http://{api}   behind it
  admin         http://{admin}   /metrics, /readyz

Paste these lines into another terminal, one after the other, and watch this one.

1. A charge:
   curl -i {url} -H 'Idempotency-Key: order-1' -d amount=1299

2. The same again, from a client that lost the answer. It is replayed, and charged once:
   curl -i {url} -H 'Idempotency-Key: order-1' -d amount=1299

3. Another amount under the same key. It is refused (422), and nothing is charged:
   curl -i {url} -H 'Idempotency-Key: order-1' -d amount=9999

4. Two at once. One is charged (201), the other is told to wait (409):
   for i in 1 2; do curl -s -w '%{{http_code}}\\n' -o /dev/null {url} -H 'Idempotency-Key: order-2' -H 'Demo: slow' -d amount=500 & done; wait

5. The answer gets lost: the client gives up after a second, and the API charges all the same.
   Two seconds later the client tries again, gets the answer, and was charged once:
   curl -m 1 {url} -H 'Idempotency-Key: order-3' -H 'Demo: slow' -d amount=700; sleep 2; curl -i {url} -H 'Idempotency-Key: order-3' -H 'Demo: slow' -d amount=700

6. The API dies after it charged. Nobody can know that here (502), so the retry is not sent (409):
   curl -i {url} -H 'Idempotency-Key: order-4' -H 'Demo: gone' -d amount=300
   curl -i {url} -H 'Idempotency-Key: order-4' -d amount=300

7. What was charged in the end, by the API's own account:
   curl {url}

Ctrl-C ends the demo and removes its files. What is decided appears here:
",
        running.address,
    )
}
