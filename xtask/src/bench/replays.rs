//! What a replay from memory costs, on one core.

use std::sync::Arc;

use onceward::{
    Claim, Engine, Fingerprint, Identity, Key, MemoryStore, Outcome, Ran, Reply, Scope, plumbing::time,
};

use super::median;
use crate::Done;

const KEYS: usize = 10_000;
const ROUNDS: usize = 20;

pub fn run() -> Done {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure())
}

async fn measure() -> Done {
    let identity = Identity::in_namespace("bench").scoped_by("fixed")?;
    let engine = Engine::builder(Arc::new(MemoryStore::default())).open(identity).await?;
    let mut claims = Vec::with_capacity(KEYS);
    for number in 0..KEYS {
        let key = Key::new(&format!("6b1f4d39-9c1e-4c7e-8f2a-{number:012}"))?;
        claims.push(Claim::new(Scope::new("acme")?, key, Fingerprint::of_bytes(b"{}")));
    }
    for claim in &claims {
        engine.run(claim.clone(), async |_| Outcome::completed(Reply::new(vec![b'x'; 500]))).await?;
    }
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let again = claims.clone();
        let started = time::instant();
        for claim in again {
            let ran = engine.run(claim, async |_| Outcome::lost("a replay executed")).await?;
            if !matches!(ran, Ran::Replayed { .. }) {
                return Err(format!("a replay was expected, and this came: {ran:?}").into());
            }
        }
        rates.push(KEYS as f64 / started.elapsed().as_secs_f64());
    }
    println!("replays from memory, {KEYS} keys, answers of 500 bytes, one core");
    println!("  replays a second {:>9.0}    (to reach: 1000000)\n", median(rates));
    Ok(())
}
