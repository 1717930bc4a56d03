//! Cut networks, terminated backends and killed servers: nothing happens twice, and nothing acknowledged is lost.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use onceward::store::{Store, StoreError, StoreFuture, Swapped};
use onceward::{Claim, Engine, Fingerprint, Identity, Key, Outcome, Ran, RecordId, Reply, Scope};
use onceward_postgres::{Migrate, Options, PostgresStore, PostgresUrl};
use onceward_testkit::servers::{Cut, Postgres, Wire};
use onceward_testkit::{sample, wait};
use support::{applied, name, open, port, put, schema};
use tokio::task::JoinSet;

/// A store behind a network that can be cut.
async fn behind_a_wire() -> (PostgresStore, Wire) {
    behind_a_wire_for(Duration::from_secs(2)).await
}

/// The same, for a store with this answer timeout.
async fn behind_a_wire_for(answer_timeout: Duration) -> (PostgresStore, Wire) {
    let wire = Wire::to(port()).await;
    let text = format!(
        "postgres://postgres@127.0.0.1:{}/{}?schema={}&pool=1&sslmode=disable",
        wire.port(),
        name(),
        schema()
    );
    let options = Options { statement_timeout: Duration::from_secs(1), answer_timeout, ..Options::default() };
    (open(&PostgresUrl::parse(&text).unwrap(), options).await, wire)
}

const CUTS: [Cut; 5] = [
    Cut::Before,
    Cut::Sent,
    Cut::Answered { bytes: 0 },
    Cut::Answered { bytes: 1 },
    Cut::Answered { bytes: 40 },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_whose_connection_is_cut_is_ambiguous_and_a_later_look_tells_what_became_of_it() {
    let (store, wire) = behind_a_wire().await;
    for (n, cut) in (1..).zip(CUTS) {
        let (claimed, completed) = (sample::id(2 * n), sample::id(2 * n + 1));
        let version = put(&store, completed, None, sample::record("k")).await;
        // Claims contain the key, loads do not.
        wire.arm("needle", cut);
        let answer = store.swap(claimed, None, sample::record("needle")).await;
        assert!(matches!(answer, Err(StoreError::Ambiguous { .. })), "{cut:?}: {answer:?}");
        wire.made(2 * n - 1).await;
        wire.arm("needle", cut);
        let next = sample::in_state("needle", sample::completed(sample::START));
        let answer = store.swap(completed, Some(version), next.clone()).await;
        assert!(matches!(answer, Err(StoreError::Ambiguous { .. })), "{cut:?}: {answer:?}");
        wire.made(2 * n).await;
        let claim = store.load(claimed).await.unwrap().record;
        let update = store.load(completed).await.unwrap().record.unwrap();
        match cut {
            Cut::Before => assert!(claim.is_none() && update.version == version, "nothing was sent"),
            Cut::Answered { .. } => {
                assert_eq!(
                    claim.unwrap().record,
                    sample::record("needle"),
                    "it was answered, so it was done"
                );
                assert_eq!(update.record, next);
            }
            // Either is possible.
            Cut::Sent | Cut::Stall | Cut::Unanswered => {}
        }
    }
    assert_eq!(store.statistics().ambiguous, 2 * CUTS.len() as u64);
}

/// A caller that learns that nothing was written may continue without a store, although the key may be held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_the_same_id_as_one_whose_answer_was_lost_are_ambiguous_too() {
    let (store, wire) = behind_a_wire().await;
    wire.arm("busy", Cut::Stall);
    let busy = tokio::spawn({
        let store = store.clone();
        async move { store.swap(sample::id(1), None, sample::record("busy")).await }
    });
    wire.made(1).await;
    wire.arm("needle", Cut::Before);
    // Both are queued before the only connection is free again.
    let claim = || store.swap(sample::id(2), None, sample::record("needle"));
    let (first, second, ()) = tokio::join!(claim(), claim(), async { wire.release() });
    assert!(matches!(first, Err(StoreError::Ambiguous { .. })), "{first:?}");
    assert!(matches!(second, Err(StoreError::Ambiguous { .. })), "{second:?}");
    applied(busy.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_whose_connection_is_cut_is_unavailable_and_the_next_one_is_answered() {
    let (store, wire) = behind_a_wire().await;
    put(&store, sample::id(1), None, sample::record("k")).await;
    for (n, cut) in (1..).zip(CUTS) {
        wire.arm(sample::id(1).as_bytes(), cut);
        let answer = store.load(sample::id(1)).await;
        assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{cut:?}: {answer:?}");
        wire.made(n).await;
        assert!(store.load(sample::id(1)).await.unwrap().record.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_even_sent_is_unavailable_and_never_ambiguous() {
    let (store, wire) = behind_a_wire().await;
    put(&store, sample::id(1), None, sample::record("k")).await;
    wire.refuse();
    wire.cut();
    // The first may have been sent over the connection that was cut.
    drop(store.swap(sample::id(2), None, sample::record("k")).await);
    let answer = store.swap(sample::id(3), None, sample::record("k")).await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    wire.accept();
    assert_eq!(store.load(sample::id(3)).await.unwrap().record, None);
    put(&store, sample::id(3), None, sample::record("k")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_hangs_is_given_up_and_the_outcome_is_ambiguous() {
    let (store, wire) = behind_a_wire().await;
    wire.arm("needle", Cut::Stall);
    let answer = store.swap(sample::id(1), None, sample::record("needle")).await;
    assert!(
        matches!(&answer, Err(StoreError::Ambiguous { reason }) if reason.contains("did not answer")),
        "{answer:?}"
    );
    put(&store, sample::id(2), None, sample::record("k")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_waits_too_long_for_a_lock_is_given_up_by_the_server_and_wrote_nothing() {
    let (store, _wire) = behind_a_wire().await;
    let url = support::url("");
    let options = Options {
        statement_timeout: Duration::from_millis(50),
        answer_timeout: Duration::from_secs(60),
        ..Options::default()
    };
    drop(store);
    let store = open(&url, options).await;
    let mut other = support::client(support::database()).await;
    let lock = other.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {}.operations IN ACCESS EXCLUSIVE MODE", url.schema()))
        .await
        .unwrap();
    let answer = store.swap(sample::id(1), None, sample::record("k")).await;
    assert!(matches!(&answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    lock.rollback().await.unwrap();
    assert_eq!(store.load(sample::id(1)).await.unwrap().record, None);
}

/// Submits a call and leaves it pending.
async fn submit<T>(call: &mut StoreFuture<'_, T>) {
    let pending = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending())).await;
    assert!(pending, "it was answered although no connection is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swaps_that_were_given_up_while_a_statement_stalled_are_never_sent_and_their_followers_are() {
    let (store, wire) = behind_a_wire_for(Duration::from_secs(60)).await;
    let held = put(&store, sample::id(9), None, sample::record("held")).await;
    wire.arm("busy", Cut::Stall);
    let busy = tokio::spawn({
        let store = store.clone();
        async move { store.swap(sample::id(1), None, sample::record("busy")).await }
    });
    wire.made(1).await;
    // All of these wait for the only connection: a claim alone, a claim and a renewal with one follower each, and a load.
    let claim = |n: u64, text: &str| store.swap(sample::id(n), None, sample::record(text));
    let renew = |text: &str| store.swap(sample::id(9), Some(held), sample::record(text));
    let (mut alone, mut leader, mut follower) = (claim(2, "alone"), claim(3, "leader"), claim(3, "follower"));
    let (mut renewal, mut next_renewal) = (renew("renewal"), renew("next renewal"));
    for call in [&mut alone, &mut leader, &mut follower, &mut renewal, &mut next_renewal] {
        submit(call).await;
    }
    let mut load = store.load(sample::id(2));
    submit(&mut load).await;
    drop((alone, leader, renewal, load));
    let statements = store.statistics().statements;
    wire.release();
    applied(busy.await.unwrap());
    let (followed, renewed) = tokio::join!(follower, next_renewal);
    let (followed, renewed) = (applied(followed), applied(renewed));
    assert_eq!(store.statistics().statements, statements + 2, "one for the claim and one for the renewal");
    assert_eq!(store.load(sample::id(2)).await.unwrap().record, None, "an abandoned claim was written");
    let found = store.load(sample::id(3)).await.unwrap().record.unwrap();
    assert_eq!((found.version, found.record), (followed, sample::record("follower")));
    let found = store.load(sample::id(9)).await.unwrap().record.unwrap();
    assert_eq!((found.version, found.record), (renewed, sample::record("next renewal")));
}

#[tokio::test]
async fn a_swap_that_was_given_up_while_its_batch_was_locked_out_leaves_its_place_to_its_follower() {
    let url = support::url("pool=1");
    let options = Options { statement_timeout: Duration::from_secs(1), ..Options::default() };
    let store = open(&url, options).await;
    let held = put(&store, sample::id(1), None, sample::record("held")).await;
    let mut other = support::client(support::database()).await;
    let lock = other.transaction().await.unwrap();
    let sql = format!("SELECT FROM {}.operations WHERE id = '{}' FOR UPDATE", url.schema(), sample::id(1));
    assert_eq!(lock.query(&sql, &[]).await.unwrap().len(), 1);
    let released = put(&store, sample::id(2), None, sample::record("released")).await;
    let batches = store.statistics().batches;
    // One statement for both ids. It waits for the lock until the server cancels it, and then each id is sent alone.
    let mut locked_out = store.swap(sample::id(1), Some(held), sample::record("locked out"));
    let mut leader = store.swap(sample::id(2), Some(released), sample::record("leader"));
    let mut follower = store.swap(sample::id(2), Some(released), sample::record("follower"));
    for call in [&mut locked_out, &mut leader, &mut follower] {
        submit(call).await;
    }
    let sent = async || wait::seen(store.statistics().batches, |&now| now != batches);
    wait::until("the batch is sent", sent).await;
    drop(leader);
    let followed = applied(follower.await);
    assert!(matches!(locked_out.await, Err(StoreError::Unavailable { .. })));
    let found = store.load(sample::id(2)).await.unwrap().record.unwrap();
    assert_eq!((found.version, found.record), (followed, sample::record("follower")));
    lock.rollback().await.unwrap();
}

fn claim(key: &str) -> Claim {
    Claim::new(Scope::new("acme").unwrap(), Key::new(key).unwrap(), Fingerprint::of_bytes(b"{}"))
}

async fn engine(store: PostgresStore) -> Engine {
    let identity = Identity::in_namespace("tests").scoped_by("fixed").unwrap();
    Engine::builder(Arc::new(store)).open(identity).await.unwrap()
}

/// Work that counts its executions.
fn counted(
    ledger: &Arc<AtomicU64>,
) -> impl FnOnce(onceward::Operation) -> std::future::Ready<Outcome> + Send + use<> {
    let ledger = ledger.clone();
    move |_| {
        ledger.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Outcome::completed(Reply::new("paid")))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_whose_network_is_cut_at_any_step_executes_once_and_answers_from_the_record() {
    for cut in CUTS {
        // The claim's statement contains one state, and the completion's another; both contain the key.
        for step in ["in_progress", "completed"] {
            let (store, wire) = behind_a_wire().await;
            let engine = engine(store).await;
            let ledger = Arc::new(AtomicU64::new(0));
            wire.arm(step, cut);
            let first = engine.run(claim("pay-1"), counted(&ledger)).await;
            wire.made(1).await;
            let again = engine.run(claim("pay-1"), counted(&ledger)).await.unwrap();
            assert_eq!(ledger.load(Ordering::SeqCst), 1, "{cut:?} at {step}: {first:?}");
            assert!(matches!(again, Ran::Replayed { .. }), "{cut:?} at {step}: {first:?}, then {again:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_that_are_ended_under_load_lose_nothing_that_was_acknowledged_and_do_nothing_twice() {
    let url = support::url("");
    let store = open(&url, Options::default()).await;
    let engine = engine(store.clone()).await;
    let ledgers: Arc<Vec<Arc<AtomicU64>>> = Arc::new((0..300).map(|_| Arc::default()).collect());
    let mut tasks = JoinSet::new();
    for (n, ledger) in ledgers.iter().enumerate() {
        let (engine, ledger) = (engine.clone(), ledger.clone());
        tasks.spawn(async move { (n, engine.run(claim(&format!("pay-{n}")), counted(&ledger)).await) });
    }
    let killer = support::client(support::database()).await;
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE pid <> pg_backend_pid() AND query LIKE '%{}.%'",
        url.schema()
    );
    let mut answered = Vec::new();
    while let Some(done) = tasks.join_next().await {
        if answered.len() % 20 == 0 {
            killer.execute(&end, &[]).await.unwrap();
        }
        answered.push(done.unwrap());
    }
    for (n, first) in answered {
        let count = ledgers[n].load(Ordering::SeqCst);
        assert!(count <= 1, "pay-{n} was executed {count} times");
        if matches!(first, Ok(Ran::Executed { .. })) {
            let id: RecordId =
                engine.id_of(&Scope::new("acme").unwrap(), &Key::new(&format!("pay-{n}")).unwrap());
            let seen = wait::until("the store notices the terminated backends", async || {
                match store.load(id).await {
                    Ok(seen) => Ok(seen),
                    Err(error @ StoreError::Unavailable { .. }) => Err(error),
                    Err(error) => panic!("{error}"),
                }
            })
            .await;
            let state = seen.record.unwrap().record.state;
            assert_eq!(state.name(), "completed", "pay-{n} was acknowledged");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_under_load_has_everything_that_was_acknowledged() {
    let mut server = Postgres::start();
    let url = PostgresUrl::parse(&server.create_database()).unwrap();
    let store = open(&url, Options::default()).await;
    let mut acknowledged = Vec::new();
    for round in 0..2 {
        let mut tasks = JoinSet::new();
        for n in 0..400 {
            let store = store.clone();
            let id = sample::id(round * 1_000 + n);
            tasks.spawn(async move { (id, store.swap(id, None, sample::record("k")).await) });
        }
        let mut seen = 0;
        while let Some(done) = tasks.join_next().await {
            let (id, answer) = done.unwrap();
            seen += 1;
            if seen == 50 {
                server.kill();
            }
            match answer {
                Ok(Swapped::Applied { version, .. }) => acknowledged.push((id, version)),
                Err(StoreError::Ambiguous { .. } | StoreError::Unavailable { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        server.restart();
    }
    assert!(acknowledged.len() >= 100);
    for (id, version) in acknowledged {
        let stored = store.load(id).await.unwrap().record;
        assert_eq!(stored.map(|stored| stored.version), Some(version), "{id} was acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_standby_that_is_promoted_between_claim_and_completion_has_the_claim() {
    let mut primary = Postgres::start();
    let database = primary.create_database();
    let standby = primary.start_standby();
    let at = |port: u16| {
        let name = database.rsplit_once('/').unwrap().1;
        format!("postgres://postgres@127.0.0.1:{port}/{name}?sslmode=disable")
    };
    let store = open(&PostgresUrl::parse(&at(primary.port())).unwrap(), Options::default()).await;
    let version = put(&store, sample::id(1), None, sample::record("k")).await;
    // A standby must not be read: it may lack the last claim.
    let refused = PostgresStore::connect(
        &PostgresUrl::parse(&at(standby.server().port())).unwrap(),
        Options { migrate: Migrate::Expect, ..Options::default() },
    )
    .await;
    assert!(refused.is_err(), "a standby was taken for the primary");
    primary.kill();
    let promoted = standby.promote();
    let store = open(&PostgresUrl::parse(&at(promoted.port())).unwrap(), Options::default()).await;
    let stored = store.load(sample::id(1)).await.unwrap().record.unwrap();
    assert_eq!((stored.version, stored.record), (version, sample::record("k")));
    let next = sample::in_state("k", sample::completed(sample::START));
    applied(store.swap(sample::id(1), Some(version), next).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_no_longer_waiting_for_its_standby_is_ambiguous() {
    let primary = Postgres::start();
    let url = PostgresUrl::parse(&primary.create_database()).unwrap();
    let store = open(&url, Options::default()).await;
    let mut standby = primary.start_standby();
    put(&store, sample::id(1), None, sample::record("k")).await;
    standby.stop();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.swap(sample::id(2), None, sample::record("k")).await }
    });
    // An operator cancels the wait for the standby.
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let cancelled = || wait::seen(primary.sql("postgres", cancel), |count| count != "0");
    wait::until_blocking("a commit that waits for its standby is cancelled", cancelled);
    let answer = waiting.await.unwrap();
    assert!(matches!(answer, Err(StoreError::Ambiguous { .. })), "{answer:?}");
    // The row is visible and could still be lost, so a load of it waits for the standby too.
    let looking = tokio::spawn({
        let store = store.clone();
        async move { store.load(sample::id(2)).await }
    });
    // So does a claim that is answered with the row.
    let claiming = tokio::spawn({
        let store = store.clone();
        async move { store.swap(sample::id(2), None, sample::record("k")).await }
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    wait::until_blocking("the load and the claim wait for the standby", || {
        assert!(
            !looking.is_finished() && !claiming.is_finished(),
            "a row that only one machine has was answered"
        );
        wait::seen(primary.sql("postgres", waiting), |count| count == "2")
    });
    standby.restart();
    let seen = looking.await.unwrap().unwrap();
    assert!(seen.record.is_some(), "{seen:?}");
    let met = claiming.await.unwrap();
    assert!(matches!(met, Ok(Swapped::Conflict(_))), "{met:?}");
}
