//! A cache that several engines share: it saves calls of the store, and is never believed for too long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::store::Store;
use onceward::{
    Engine, Limits, MemoryStore, Ran, RecordId, Refusal,
    engine::{CacheError, CacheFuture, Operated, SharedCache},
};
use onceward_testkit::{Fault, FaultyStore, Method};

use super::{Ledger, SECOND, builder, claim_of, clock, id, identity_of_tests, pay, retry};

/// A map that counts, hangs or fails as a test says.
#[derive(Default)]
struct Map {
    entries: Mutex<BTreeMap<RecordId, Vec<u8>>>,
    manner: Mutex<Manner>,
    gets: Mutex<u64>,
    filled: tokio::sync::Notify,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Manner {
    #[default]
    Works,
    Hangs,
    Fails,
}

impl Map {
    fn is(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    fn change(&self, id: RecordId, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.entries.lock().unwrap().get_mut(&id).unwrap());
    }

    fn gets(&self) -> u64 {
        *self.gets.lock().unwrap()
    }

    async fn act(&self) -> Result<(), CacheError> {
        let manner = *self.manner.lock().unwrap();
        match manner {
            Manner::Works => Ok(()),
            Manner::Hangs => std::future::pending().await,
            Manner::Fails => Err(CacheError { reason: "as the test asked".to_owned() }),
        }
    }
}

impl SharedCache for Map {
    fn get(&self, id: RecordId) -> CacheFuture<'_, Option<Vec<u8>>> {
        Box::pin(async move {
            *self.gets.lock().unwrap() += 1;
            self.act().await?;
            Ok(self.entries.lock().unwrap().get(&id).cloned())
        })
    }

    fn put(&self, id: RecordId, entry: Vec<u8>, _: Duration) -> CacheFuture<'_, ()> {
        Box::pin(async move {
            self.act().await?;
            self.entries.lock().unwrap().insert(id, entry);
            self.filled.notify_one();
            Ok(())
        })
    }
}

async fn with(cache: &Arc<Map>, store: impl Store, instance: u64) -> Engine {
    let builder = builder(Arc::new(store), instance).shared_cache(cache.clone());
    builder.open(identity_of_tests()).await.unwrap()
}

/// A store, a filled cache, and another engine that has nothing in memory.
async fn paid() -> (MemoryStore, Arc<Map>, Ledger, Engine) {
    let (store, cache, ledger) =
        (MemoryStore::with_clock(clock()), Arc::new(Map::default()), Ledger::default());
    let first = with(&cache, store.clone(), 1).await;
    pay(&first, &ledger).await.unwrap();
    cache.filled.notified().await;
    let other = with(&cache, store.clone(), 2).await;
    (store, cache, ledger, other)
}

/// An engine whose store does not answer a single call once it is open.
async fn without_a_store(store: MemoryStore, cache: &Arc<Map>) -> Engine {
    let dead = FaultyStore::new(store, |call| match (call.method, call.nth) {
        (Method::Load, 1) => Fault::None,
        _ => Fault::Unavailable,
    });
    with(cache, dead, 3).await
}

#[tokio::test(start_paused = true)]
async fn another_engines_answer_is_replayed_without_touching_the_store() {
    let (store, cache, ledger, _) = paid().await;
    let engine = without_a_store(store, &cache).await;
    for _ in 0..2 {
        let ran = retry(&engine).await.unwrap();
        assert!(matches!(&ran, Ran::Replayed { reply, .. } if reply.body == "execution 1"), "{ran:?}");
    }
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_request_under_a_shared_key_is_refused_like_any_other() {
    let (store, cache, _, _) = paid().await;
    let engine = without_a_store(store, &cache).await;
    let ran = engine.run(claim_of("k", "another body"), async |_| panic!("it must not execute")).await;
    assert!(matches!(ran, Ok(Ran::Refused(Refusal::Mismatch(_)))), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_hangs_costs_one_patience_and_is_then_not_used_for_a_while() {
    let (_, cache, ledger, engine) = paid().await;
    cache.is(Manner::Hangs);
    let before = onceward::plumbing::time::instant();
    assert!(matches!(retry(&engine).await, Ok(Ran::Replayed { .. })));
    let waited = onceward::plumbing::time::instant() - before;
    assert!(waited <= Duration::from_millis(25), "{waited:?} of paused time");
    let asked = cache.gets();
    for n in 0..100 {
        engine.run(claim_of(&format!("n{n}"), "b"), async |_| Ledger::default().execute()).await.unwrap();
    }
    assert_eq!(cache.gets(), asked, "a cache that hung is not asked again within a second");
    onceward::plumbing::time::sleep(SECOND * 2).await;
    cache.is(Manner::Works);
    engine.run(claim_of("later", "b"), async |_| Ledger::default().execute()).await.unwrap();
    assert_eq!(cache.gets(), asked + 1, "it is asked again after that");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dead_cache_costs_nothing_but_reads_of_the_store() {
    let (_, cache, ledger, engine) = paid().await;
    cache.is(Manner::Fails);
    for _ in 0..5 {
        assert!(matches!(retry(&engine).await, Ok(Ran::Replayed { .. })));
        onceward::plumbing::time::sleep(SECOND * 30).await;
    }
    assert_eq!(ledger.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_anywhere_in_an_entry_is_a_miss() {
    let (store, cache, _, _) = paid().await;
    let whole = cache.entries.lock().unwrap()[&id()].clone();
    let engine = without_a_store(store, &cache).await;
    for bit in 0..whole.len() * 8 {
        cache.change(id(), |entry| {
            entry.clone_from(&whole);
            entry[bit / 8] ^= 1 << (bit % 8);
        });
        // The store is away, so a miss is an error; a hit would be an answer.
        let ran = retry(&engine).await;
        assert!(ran.is_err(), "bit {bit} of {} was believed: {ran:?}", whole.len() * 8);
    }
    for nonsense in [&b""[..], b"x", &[0xff; 40]] {
        cache.change(id(), |entry| *entry = nonsense.to_vec());
        assert!(retry(&engine).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn the_entry_of_another_key_or_of_another_store_is_a_miss() {
    let (store, cache, ledger, engine) = paid().await;
    let mine = cache.entries.lock().unwrap()[&id()].clone();
    let other = identity_of_tests()
        .id_of(&onceward::Scope::new("acme").unwrap(), &onceward::Key::new("other").unwrap());
    cache.entries.lock().unwrap().insert(other, mine);
    let worker = ledger.clone();
    let ran = engine.run(claim_of("other", "body"), async move |_| worker.execute()).await.unwrap();
    assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
    // Staging and production share a cache by mistake: the same key, another store.
    onceward::plumbing::time::sleep(SECOND).await;
    let clock = clock();
    clock.advance(SECOND * 7);
    let elsewhere = with(&cache, MemoryStore::with_clock(clock), 4).await;
    let ran = pay(&elsewhere, &ledger).await.unwrap();
    assert!(matches!(ran, Ran::Executed { .. }), "{ran:?}");
    drop(store);
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_caches_is_believed_no_longer_than_one() {
    let (store, cache, _, _) = paid().await;
    let engine = without_a_store(store.clone(), &cache).await;
    onceward::plumbing::time::sleep(SECOND * 59).await;
    assert!(matches!(retry(&engine).await, Ok(Ran::Replayed { .. })));
    // Memory took the entry over a second before its time was over, and must not start that time again.
    onceward::plumbing::time::sleep(SECOND * 2).await;
    assert!(retry(&engine).await.is_err(), "the store had to be asked");
}

#[tokio::test(start_paused = true)]
async fn an_operators_early_expiry_is_honoured_by_engines_that_read_the_cache() {
    let (_, cache, ledger, other) = paid().await;
    onceward::plumbing::time::sleep(SECOND * 30).await;
    assert!(matches!(retry(&other).await, Ok(Ran::Replayed { .. })));
    let stale = cache.entries.lock().unwrap()[&id()].clone();
    assert!(matches!(other.expire(id(), None).await.unwrap(), Operated::Applied(_)));
    cache.filled.notified().await;
    // An older entry comes late, as from another engine's queue.
    cache.change(id(), |entry| *entry = stale);
    let limits = Limits::default();
    onceward::plumbing::time::sleep(limits.cache_revalidate + limits.claim_patience + SECOND).await;
    assert!(matches!(pay(&other, &ledger).await, Ok(Ran::Executed { .. })));
    assert_eq!(ledger.count(), 2);
}
