//! `onceward demo`: a gateway in front of an API of its own, with commands to paste. `--auto` pastes them itself.

mod api;
mod auto;
mod console;
mod script;
mod shop;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onceward::engine::IdentityChange;
use onceward::event::Expiry;
use onceward::http::{Policy, Routes, ScopeRules};
use onceward::receipts::TableName;
use onceward::reconcile::{FindTerms, Reconciling};
use onceward::record::Receipts;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use self::api::{Api, SLOW};
use self::console::Console;
use self::script::{GIVE_UP_AFTER_SECONDS, Step, after_the_verdict, before_the_verdict};
use self::shop::Shop;
use crate::Failure;
use crate::admin::token;
use crate::running::Running;
use crate::settings::{
    Admin, Forwarding, Keepalive, Limits, ReceiptRoute, ReceiptsUrl, Scheme, Settings, StoreUrl, Telemetry,
    Upstream,
};

/// Any free port on this machine.
const FREE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The route whose handler writes receipt rows.
const ORDERS: &str = "POST /orders";

/// Who pastes the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paste {
    /// A person, in another terminal.
    ByHand,
    /// The demo itself. It ends after the last line, and fails where a line shows something else than was promised.
    Auto,
}

/// Runs the demo until Ctrl-C, until nothing reads what it prints, or until its last line.
pub(crate) async fn run(paste: Paste) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let folder = tempfile::Builder::new().prefix("onceward-demo-").tempdir()?;
    let listener = TcpListener::bind(FREE).await?;
    let api = listener.local_addr()?;
    let (console, mut failures, mut dead_letters) = Console::new();
    let shop = Shop::open(folder.path(), console.clone())?;
    let serving = tokio::spawn(Api::new(shop, console.clone()).serve(listener));
    let settings = settings(api, folder.path()).await?;
    let token = token::path(&settings);
    let running = Running::start(settings, IdentityChange::Refuse, vec![Arc::new(console.clone())]).await?;
    console.resolve_at(running.admin, token);
    console.say(introduction(&running, api, paste));
    let played = async {
        match paste {
            Paste::ByHand => std::future::pending().await,
            Paste::Auto => auto::play(&console, running.address, &mut dead_letters).await,
        }
    };
    let ended = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        Some(failed) = failures.recv() => Err(failed.into()),
        played = played => played,
    };
    console.say("\nStopping: what runs is finished first.");
    running.stop().await;
    serving.abort();
    folder.close()?;
    console.say("Stopped. The demo's files are gone.");
    ended
}

async fn settings(api: SocketAddr, folder: &Path) -> Result<Settings, Failure> {
    let routes = Routes::new(Policy::new())?.route(ORDERS, Policy::new().receipts(Receipts::Kept))?;
    Ok(Settings {
        listen: free_or(Settings::LISTEN).await,
        upstream: Upstream {
            scheme: Scheme::Http,
            authority: api.to_string().parse()?,
            base_path: None,
            ca: None,
            keepalive: Keepalive::default(),
        },
        forwarding: Forwarding::default(),
        store: StoreUrl::Sqlite(folder.join("onceward.db")),
        cache: None,
        scope: ScopeRules::parse(["fixed:demo"])?,
        namespace: "demo".to_owned(),
        record_format: None,
        secret: None,
        admin: Admin { listen: free_or(Admin::LISTEN).await, tokens: Vec::new() },
        routes,
        reconciling: Reconciling::default().give_up_after(Duration::from_secs(GIVE_UP_AFTER_SECONDS)),
        receipts: vec![ReceiptRoute {
            route: ORDERS.to_owned(),
            url: ReceiptsUrl::Sqlite(Shop::file(folder)),
            table: TableName::default(),
            terms: FindTerms::default(),
        }],
        expiry: Expiry::Delete,
        public_url: String::new(),
        tls: None,
        limits: Limits { drain: SLOW * 2, ..Limits::default() },
        telemetry: Telemetry::default(),
    })
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

fn introduction(running: &Running, api: SocketAddr, paste: Paste) -> String {
    let (gateway, admin) = (running.address, running.admin);
    let places = format!(
        "A payments API that charges a card for every POST it gets, a shop, and Onceward in front of both.

  gateway       http://{gateway}   send requests here
  API           http://{api}   payments and shop, behind it
  admin         http://{admin}   /metrics, /readyz, /v1/operations
"
    );
    match paste {
        Paste::Auto => places,
        Paste::ByHand => {
            let steps = before_the_verdict(gateway).into_iter().chain(after_the_verdict(gateway));
            let steps: Vec<String> = (1..).zip(steps).map(|(number, step)| shown(number, &step)).collect();
            format!(
                "{places}
Paste these lines into another terminal, one after the other, and watch this one.

{}
Ctrl-C ends the demo and removes its files. `onceward demo --auto` pastes by itself. What is decided appears here:
",
                steps.join("\n")
            )
        }
    }
}

/// A step with its lines, for a person.
fn shown(number: usize, step: &Step) -> String {
    let lines: String = step.lines.iter().map(|line| format!("   {}\n", line.command)).collect();
    format!("{number}. {}\n{lines}", step.says)
}
