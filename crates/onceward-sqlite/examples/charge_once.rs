//! A payment that is charged, retried, changed, raced and interrupted, on a real file.
//!
//! ```console
//! cargo run --release --example charge_once
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onceward::event::Resolution;
use onceward::{
    Claim, Engine, Fingerprint, Identity, Key, Outcome, Ran, Refusal, Reply, Scope, engine::Resolve,
    plumbing::time,
};
use onceward_sqlite::{Options, SqliteStore};

/// The payment provider. Its own count is the only truth about what was charged.
#[derive(Default)]
struct Provider {
    charges: AtomicU32,
}

impl Provider {
    async fn charge(&self, amount: u32) -> String {
        time::sleep(Duration::from_millis(300)).await;
        let number = self.charges.fetch_add(1, Ordering::SeqCst) + 1;
        format!("charge {number} of {amount} cents")
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("onceward.db");
    let provider = Arc::new(Provider::default());
    let engine = open(&file).await?;

    say("A customer pays 12.99.");
    show(&pay(&engine, &provider, "order-1", 1299).await?);

    say("The response got lost, and the app sends it again.");
    show(&pay(&engine, &provider, "order-1", 1299).await?);

    say("A bug in the app reuses the key for another amount.");
    show(&pay(&engine, &provider, "order-1", 9900).await?);

    say("A double click: two at once. One of them waits for the other.");
    let (first, second) =
        tokio::join!(pay(&engine, &provider, "order-2", 500), pay(&engine, &provider, "order-2", 500));
    show(&first?);
    show(&second?);

    say("The app goes away in the middle of it. The charge goes on without it.");
    let impatient = tokio::time::timeout(Duration::from_millis(100), pay(&engine, &provider, "order-3", 700));
    match impatient.await {
        Ok(_) => println!("   it was faster than expected"),
        Err(_) => println!("   the app has gone and hears no answer"),
    }
    say("It comes back and asks again.");
    show(&pay(&engine, &provider, "order-3", 700).await?);

    say("The connection to the provider breaks after the charge was sent: the outcome is unknown.");
    let broken = provider.clone();
    let ran = engine
        .run(claim("order-4", 800)?, async move |_| {
            broken.charge(800).await;
            Outcome::lost("the connection broke")
        })
        .await?;
    show(&ran);
    say("A retry is not allowed to guess.");
    show(&pay(&engine, &provider, "order-4", 800).await?);

    say("An operator finds the charge at the provider and says so. From now on that is the answer.");
    let id = identity()?.id_of(&Scope::new("shop")?, &Key::new("order-4")?);
    let verdict = Resolution::Completed(Arc::new(Reply::new("charge 4 of 800 cents").with_status(201)));
    engine
        .resolve(id, Resolve { verdict, by: "ann", reason: "found in the provider's dashboard", seen: None })
        .await?;
    show(&pay(&engine, &provider, "order-4", 800).await?);

    say("The process is restarted. Everything is still known.");
    engine.shut_down(Duration::from_secs(1)).await;
    drop(engine);
    let engine = open(&file).await?;
    show(&pay(&engine, &provider, "order-1", 1299).await?);

    let charges = provider.charges.load(Ordering::SeqCst);
    println!("\nFour orders, {charges} charges.");
    if charges == 4 { Ok(()) } else { Err("an order was not charged once".into()) }
}

async fn open(file: &std::path::Path) -> Result<Engine, Box<dyn Error>> {
    let store = SqliteStore::open(file, Options::default())?;
    Ok(Engine::builder(Arc::new(store)).open(identity()?).await?)
}

fn identity() -> Result<Identity, Box<dyn Error>> {
    Ok(Identity::in_namespace("example").scoped_by("one shop")?)
}

fn claim(order: &str, amount: u32) -> Result<Claim, Box<dyn Error>> {
    let fingerprint = Fingerprint::of_bytes(&amount.to_le_bytes());
    Ok(Claim::new(Scope::new("shop")?, Key::new(order)?, fingerprint).attach(Duration::from_secs(5))?)
}

async fn pay(
    engine: &Engine,
    provider: &Arc<Provider>,
    order: &str,
    amount: u32,
) -> Result<Ran, Box<dyn Error>> {
    let provider = provider.clone();
    let work = async move |_| Outcome::completed(Reply::new(provider.charge(amount).await).with_status(201));
    Ok(engine.run(claim(order, amount)?, work).await?)
}

fn say(what: &str) {
    println!("\n{what}");
}

fn show(ran: &Ran) {
    let body = |reply: &Reply| String::from_utf8_lossy(&reply.body).into_owned();
    match ran {
        Ran::Executed { reply, .. } => println!("   executed   {} {}", reply.status, body(reply)),
        Ran::Replayed { reply, .. } => println!("   replayed   {} {}", reply.status, body(reply)),
        Ran::Refused(Refusal::Mismatch(_)) => println!("   refused    this key names another request"),
        Ran::Refused(Refusal::Incomparable) => {
            println!("   refused    whether it is the same request cannot be told")
        }
        Ran::Refused(Refusal::InProgress { .. }) => println!("   refused    it is still running"),
        Ran::Refused(Refusal::Unknown { .. }) => {
            println!("   refused    it is unknown whether it was charged")
        }
        Ran::Retryable(why) => println!("   retryable  {why}"),
        Ran::Unknown(why) => println!("   unknown    {why}"),
    }
}
