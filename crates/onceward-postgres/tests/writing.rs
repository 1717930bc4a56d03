//! Batches: which swaps share a statement, which fail together, and what losers are answered.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use onceward::store::{Stamped, Store, StoreError, Swapped};
use onceward_postgres::{Batching, Options, PostgresStore};
use onceward_testkit::{sample, wait};
use support::{applied, client, database, observer, open, put, url};
use tokio::task::JoinSet;

/// Swaps of different ids, all at once.
async fn claim_many(store: &PostgresStore, ids: std::ops::Range<u64>) {
    let mut tasks = JoinSet::new();
    for n in ids {
        let store = store.clone();
        tasks.spawn(async move { applied(store.swap(sample::id(n), None, sample::record("k")).await) });
    }
    tasks.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swaps_of_sixty_four_callers_share_their_statements() {
    const CALLERS: u64 = 64;
    const EACH: u64 = 20;
    let store = open(&url(""), Options::default()).await;
    let before = store.statistics();
    let mut tasks = JoinSet::new();
    for caller in 0..CALLERS {
        let store = store.clone();
        tasks.spawn(async move {
            for n in 0..EACH {
                let id = sample::id(caller * EACH + n);
                let version = put(&store, id, None, sample::record("k")).await;
                put(&store, id, Some(version), sample::in_state("k", sample::completed(sample::START))).await;
            }
        });
    }
    tasks.join_all().await;
    let after = store.statistics();
    let (swaps, statements) = (after.swaps - before.swaps, after.statements - before.statements);
    assert_eq!(swaps, CALLERS * EACH * 2);
    assert!(statements * 4 < swaps, "{statements} statements for {swaps} swaps");
    assert!(after.largest_batch > 4, "{after:?}");
    let unbatched = open(&url(""), Options { batching: Batching::Off, ..Options::default() }).await;
    claim_many(&unbatched, 0..CALLERS).await;
    assert_eq!(unbatched.statistics().statements, CALLERS, "without batching each is a statement");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_claims_of_one_key_have_one_winner_and_few_statements() {
    let store = open(&url(""), Options::default()).await;
    let mut tasks = JoinSet::new();
    for n in 0..1_000 {
        let store = store.clone();
        tasks.spawn(
            async move { store.swap(sample::id(1), None, sample::record(&n.to_string())).await.unwrap() },
        );
    }
    let answers = tasks.join_all().await;
    let winners = answers.iter().filter(|answer| matches!(answer, Swapped::Applied { .. })).count();
    assert_eq!(winners, 1);
    let stored = store.load(sample::id(1)).await.unwrap().record;
    for answer in answers {
        if let Swapped::Conflict(seen) = answer {
            assert_eq!(seen.record, stored, "a loser was not shown the winner");
        }
    }
    assert!(store.statistics().statements < 200, "{:?}", store.statistics());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_swaps_of_one_version_have_one_winner_and_few_statements() {
    let store = open(&url(""), Options::default()).await;
    let id = sample::id(1);
    let version = put(&store, id, None, sample::record("released")).await;
    let before = store.statistics().statements;
    let mut tasks = JoinSet::new();
    for n in 0..1_000 {
        let store = store.clone();
        tasks.spawn(
            async move { store.swap(id, Some(version), sample::record(&n.to_string())).await.unwrap() },
        );
    }
    let answers = tasks.join_all().await;
    let winners = answers.iter().filter(|answer| matches!(answer, Swapped::Applied { .. })).count();
    assert_eq!(winners, 1);
    let stored = store.load(id).await.unwrap().record;
    for answer in answers {
        if let Swapped::Conflict(seen) = answer {
            assert_eq!(seen.record, stored, "a loser was not shown the winner");
        }
    }
    let statements = store.statistics().statements - before;
    assert!(statements < 200, "{statements} statements");
}

#[tokio::test]
async fn of_two_claims_in_one_batch_one_wins_and_the_other_is_shown_it() {
    let store = open(&url("pool=1"), Options::default()).await;
    let id = sample::id(1);
    // Both are queued before the only connection is free, so they are in one batch.
    let (first, second) = tokio::join!(
        store.swap(id, None, sample::record("first")),
        store.swap(id, None, sample::record("second"))
    );
    let version = applied(first);
    match second.unwrap() {
        Swapped::Conflict(seen) => {
            assert_eq!(seen.record, Some(Stamped { record: sample::record("first"), version }));
        }
        answer => panic!("the second got {answer:?}"),
    }
    assert_eq!(store.statistics().batches, 1);
}

#[tokio::test]
async fn a_row_that_the_database_refuses_fails_alone() {
    let url = url("pool=1");
    let store = open(&url, Options::default()).await;
    let bad = sample::id(2);
    observer()
        .await
        .batch_execute(&format!("ALTER TABLE {}.operations ADD CHECK (id <> '{bad}')", url.schema()))
        .await
        .unwrap();
    let calls = tokio::join!(
        store.swap(sample::id(1), None, sample::record("k")),
        store.swap(bad, None, sample::record("k")),
        store.swap(bad, None, sample::record("follows")),
        store.swap(sample::id(3), None, sample::record("k")),
    );
    applied(calls.0);
    assert!(matches!(&calls.1, Err(StoreError::Refused { .. })), "{:?}", calls.1);
    assert!(matches!(&calls.2, Err(StoreError::Refused { .. })), "{:?}", calls.2);
    applied(calls.3);
    assert_eq!(store.load(bad).await.unwrap().record, None);
}

/// Takes the lock of a row, in a transaction that stays open.
async fn lock<'a>(
    other: &'a mut tokio_postgres::Client,
    schema: &str,
    id: onceward::RecordId,
) -> tokio_postgres::Transaction<'a> {
    let lock = other.transaction().await.unwrap();
    let sql = format!("SELECT FROM {schema}.operations WHERE id = '{id}' FOR UPDATE");
    assert_eq!(lock.query(&sql, &[]).await.unwrap().len(), 1);
    lock
}

#[tokio::test]
async fn a_row_that_another_client_has_locked_fails_alone() {
    let url = url("pool=1");
    let options = Options { statement_timeout: Duration::from_secs(1), ..Options::default() };
    let store = open(&url, options).await;
    let mut versions = Vec::new();
    for n in 1..=3 {
        versions.push(put(&store, sample::id(n), None, sample::record("k")).await);
    }
    let mut other = client(database()).await;
    let held = lock(&mut other, url.schema(), sample::id(2)).await;
    let write = |n: usize| {
        let done = sample::in_state("k", sample::completed(sample::START));
        store.swap(sample::id(n as u64), Some(versions[n - 1]), done)
    };
    let calls = tokio::join!(write(1), write(2), write(3));
    applied(calls.0);
    assert!(matches!(&calls.1, Err(StoreError::Unavailable { .. })), "{:?}", calls.1);
    applied(calls.2);
    held.rollback().await.unwrap();
    applied(write(2).await);
}

#[tokio::test]
async fn a_row_whose_storage_is_damaged_fails_alone() {
    let url = url("pool=1");
    let store = open(&url, Options::default()).await;
    for n in 1..=3 {
        put(&store, sample::id(n), None, sample::record("k")).await;
    }
    store.close().await;
    let (schema, bad) = (url.schema(), sample::id(2));
    // Every read of a large value with a missing part gives this error.
    let sql = format!(
        "CREATE FUNCTION {schema}.damaged() RETURNS bytea LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'missing chunk number 0' USING ERRCODE = 'XX001'; END $$;
         ALTER TABLE {schema}.operations RENAME TO kept;
         CREATE VIEW {schema}.operations AS SELECT id, version,
             CASE WHEN id = '{bad}' THEN {schema}.damaged() ELSE record END AS record FROM {schema}.kept"
    );
    observer().await.batch_execute(&sql).await.unwrap();
    let store = PostgresStore::connect(&url, Options::default()).await.unwrap();
    let calls = tokio::join!(store.load(sample::id(1)), store.load(bad), store.load(sample::id(3)));
    assert!(calls.0.unwrap().record.is_some());
    assert!(matches!(&calls.1, Err(StoreError::Unavailable { .. })), "{:?}", calls.1);
    assert!(calls.2.unwrap().record.is_some());
}

#[tokio::test]
async fn no_error_text_repeats_a_key_or_a_body() {
    let url = url("pool=1");
    let store = open(&url, Options::default()).await;
    observer()
        .await
        .batch_execute(&format!("ALTER TABLE {}.operations ADD CHECK (key <> 'secret-key')", url.schema()))
        .await
        .unwrap();
    let refused = store.swap(sample::id(1), None, sample::record("secret-key")).await.unwrap_err();
    assert!(!format!("{refused} {refused:?}").contains("secret-key"), "{refused:?}");
}

/// Waits until a statement of another client waits for a lock.
async fn until_another_client_waits(client: &tokio_postgres::Client) {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock'";
    wait::until("a statement of another client waits for a lock", async || {
        let waiting: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        wait::seen(waiting, |&waiting| waiting > 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loser_that_cannot_see_the_winners_row_is_still_answered_with_it() {
    let url = url("");
    let store = open(&url, Options::default()).await;
    let (id, schema) = (sample::id(1), url.schema());
    // The claim of another client, written to another schema first, for its bytes.
    let other_url = support::url("");
    let other = open(&other_url, Options::default()).await;
    let version = put(&other, id, None, sample::record("winner")).await;
    let mut winner = client(database()).await;
    let transaction = winner.transaction().await.unwrap();
    let copy = format!(
        "INSERT INTO {schema}.operations SELECT * FROM {}.operations WHERE id = '{id}'",
        other_url.schema()
    );
    assert_eq!(transaction.execute(&copy, &[]).await.unwrap(), 1);
    let loser = tokio::spawn({
        let store = store.clone();
        async move { store.swap(id, None, sample::record("loser")).await }
    });
    until_another_client_waits(&observer().await).await;
    transaction.commit().await.unwrap();
    match loser.await.unwrap().unwrap() {
        Swapped::Conflict(seen) => {
            assert_eq!(seen.record, Some(Stamped { record: sample::record("winner"), version }));
        }
        answer => panic!("the loser got {answer:?}"),
    }
    assert_eq!(store.statistics().looked_again, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_that_lost_while_it_waited_is_shown_the_row_that_it_lost_to_and_not_the_one_before() {
    let url = url("");
    let store = open(&url, Options::default()).await;
    let id = sample::id(1);
    let version = put(&store, id, None, sample::record("first")).await;
    let mut other = client(database()).await;
    let transaction = other.transaction().await.unwrap();
    let raise = format!("UPDATE {}.operations SET version = version + 1 WHERE id = '{id}'", url.schema());
    transaction.execute(&raise, &[]).await.unwrap();
    let loser = tokio::spawn({
        let store = store.clone();
        async move { store.swap(id, Some(version), sample::record("late")).await }
    });
    until_another_client_waits(&observer().await).await;
    transaction.commit().await.unwrap();
    match loser.await.unwrap().unwrap() {
        Swapped::Conflict(seen) => {
            let found = seen.record.unwrap();
            assert_eq!(found.version.as_number(), version.as_number() + 1);
        }
        answer => panic!("the loser got {answer:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_lost_a_deadlock_or_could_not_be_serialized_is_sent_again() {
    for code in ["40P01", "40001"] {
        let url = url("pool=1");
        let store = open(&url, Options::default()).await;
        let schema = url.schema();
        // A sequence keeps its number when a transaction is rolled back, so only the first attempt fails.
        let sql = format!(
            "CREATE SEQUENCE {schema}.attempts;
             CREATE FUNCTION {schema}.fail_once() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF nextval('{schema}.attempts') = 1 THEN RAISE EXCEPTION 'in the way' USING ERRCODE = '{code}'; END IF;
                 RETURN new;
             END $$;
             CREATE TRIGGER fail_once BEFORE INSERT ON {schema}.operations
             FOR EACH ROW EXECUTE FUNCTION {schema}.fail_once()"
        );
        observer().await.batch_execute(&sql).await.unwrap();
        put(&store, sample::id(1), None, sample::record("k")).await;
        assert_eq!(store.statistics().retries, 1, "{code}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stricter_isolation_than_is_needed_costs_retries_and_no_errors() {
    let url = onceward_postgres::PostgresUrl::parse(&onceward_testkit::servers::shared_postgres()).unwrap();
    let store = open(&url, Options::default()).await;
    let name = url.to_string().rsplit_once('/').unwrap().1.to_owned();
    observer()
        .await
        .batch_execute(&format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"))
        .await
        .unwrap();
    store.close().await;
    let store = Arc::new(open(&url, Options { batching: Batching::Off, ..Options::default() }).await);
    let mut tasks = JoinSet::new();
    for n in 0..200 {
        let store = store.clone();
        tasks.spawn(async move { store.swap(sample::id(n % 5), None, sample::record("k")).await.unwrap() });
    }
    let answers = tasks.join_all().await;
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Swapped::Applied { .. })).count(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_sheds_before_anything_is_sent() {
    let url = url("pool=1");
    let store = open(&url, Options { queue_limit: 2, batch_limit: 1, ..Options::default() }).await;
    let mut other = client(database()).await;
    let lock = other.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {}.operations IN ACCESS EXCLUSIVE MODE", url.schema()))
        .await
        .unwrap();
    let submit = |n| {
        let store = store.clone();
        tokio::spawn(async move { store.swap(sample::id(n), None, sample::record("k")).await })
    };
    let held = submit(0);
    until_another_client_waits(&observer().await).await;
    let mut waiting: Vec<_> = (1..=3).map(submit).collect();
    // Two fit. The third was refused, and is answered at once.
    let (shed, place, _) = futures_first(&mut waiting).await;
    assert_eq!(shed, Err(StoreError::Overloaded { waiting: 2 }));
    drop(waiting.remove(place));
    lock.rollback().await.unwrap();
    applied(held.await.unwrap());
    for call in waiting {
        applied(call.await.unwrap());
    }
}

/// The first of these to end.
async fn futures_first<T>(calls: &mut [tokio::task::JoinHandle<T>]) -> (T, usize, ()) {
    std::future::poll_fn(|context| {
        for (place, call) in calls.iter_mut().enumerate() {
            if let std::task::Poll::Ready(done) = std::pin::Pin::new(call).poll(context) {
                return std::task::Poll::Ready((done.unwrap(), place, ()));
            }
        }
        std::task::Poll::Pending
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_store_sends_what_waits_and_takes_nothing_more() {
    let url = url("pool=1");
    let store = open(&url, Options { batch_limit: 2, ..Options::default() }).await;
    let mut tasks = JoinSet::new();
    for n in 0..9 {
        let store = store.clone();
        tasks.spawn(async move { store.swap(sample::id(n), None, sample::record("k")).await });
    }
    tasks.join_next().await;
    store.close().await;
    let later = store.swap(sample::id(99), None, sample::record("k")).await;
    assert!(
        matches!(&later, Err(StoreError::Unavailable { reason }) if reason.contains("closed")),
        "{later:?}"
    );
    let answers = tasks.join_all().await;
    let reader = open(&url, Options::default()).await;
    let mut written = 0;
    for n in 0..9 {
        written += usize::from(reader.load(sample::id(n)).await.unwrap().record.is_some());
    }
    // The first one was removed above; those of the others that were refused came after the close.
    assert_eq!(written, 1 + answers.iter().filter(|answer| answer.is_ok()).count());
}

#[tokio::test]
async fn a_version_never_comes_back_after_the_record_was_forgotten() {
    let store = open(&url("pool=1"), Options::default()).await;
    let mut given = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let first = put(&store, sample::id(1), None, sample::record("k")).await;
        let second = put(&store, sample::id(1), Some(first), sample::record("k")).await;
        assert!(given.insert(first) && given.insert(second), "{first} or {second} came back");
        assert_eq!(store.forget(vec![(sample::id(1), second)]).await, Ok(1));
    }
}

#[tokio::test]
async fn a_record_that_is_too_large_is_refused_before_it_waits() {
    let store = open(&url("pool=1"), Options::default()).await;
    let mut record = sample::record("k");
    std::sync::Arc::make_mut(&mut record.subject).route = "r".repeat(65 << 20);
    let answer = store.swap(sample::id(1), None, record).await;
    assert!(
        matches!(&answer, Err(StoreError::Refused { reason }) if reason.contains("67108864")),
        "{answer:?}"
    );
}
