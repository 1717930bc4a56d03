//! An axum service whose retried payments happen once.
//!
//! ```console
//! cargo run --example axum_layer &
//! curl -i localhost:3000/payments -H 'Authorization: Bearer sk_1' -H 'Idempotency-Key: order-17' -d '{"amount":1299}'
//! ```
//!
//! The second `curl` gets the first answer, marked `Idempotency-Replayed: true`. <http://localhost:3000/.well-known/idempotency>
//! shows the policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::{Router, http::StatusCode, routing::post};
use onceward::http::{IdempotencyLayer, KeyRule, Policy, Routes, ScopeRules};
use onceward::{Engine, Identity, MemoryStore};

static PAYMENTS: AtomicU32 = AtomicU32::new(0);

async fn pay(body: String) -> (StatusCode, String) {
    let number = PAYMENTS.fetch_add(1, Ordering::SeqCst) + 1;
    (StatusCode::CREATED, format!("payment {number} made for {body}\n"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Every API key has its own keys. `MemoryStore` forgets: use `SqliteStore` from `onceward-sqlite` for real payments.
    let scope = ScopeRules::parse(["authorization"])?;
    let identity = Identity::in_namespace("payments").scoped_by(&scope)?;
    let engine = Engine::builder(Arc::new(MemoryStore::default())).open(identity).await?;

    let required = Policy::new().key(KeyRule::Required);
    let routes = Routes::new(Policy::new())?.route("POST /payments", required)?;
    let layer = IdempotencyLayer::new(engine.clone(), scope, routes)?;

    let app = Router::new().route("/payments", post(pay)).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
