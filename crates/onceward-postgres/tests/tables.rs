//! The schema: how it is created, which indexes it must not have, and how its tables age.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

mod support;

use std::sync::Arc;

use onceward::store::Store;
use onceward::{Reply, record::State};
use onceward_postgres::{Flavor, Migrate, OpenError, Options, PostgresStore, migrate, print_sql};
use onceward_testkit::{sample, wait};
use support::{observer, open, put, url};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_migrators_at_once_make_the_tables_once() {
    let url = url("");
    let mut tasks = JoinSet::new();
    for _ in 0..12 {
        let url = url.clone();
        tasks.spawn(async move { migrate(&url).await.unwrap() });
    }
    let applied: Vec<i32> = tasks.join_all().await.concat();
    assert_eq!(applied, [1]);
    assert_eq!(migrate(&url).await, Ok(Vec::new()), "and once more is nothing");
    PostgresStore::connect(&url, Options::default()).await.unwrap();
}

#[tokio::test]
async fn a_schema_that_is_absent_older_or_newer_is_refused_with_what_to_run() {
    let url = url("");
    let refused = PostgresStore::connect(&url, Options::default()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Absent { .. }), "{refused}");
    assert!(refused.to_string().contains("onceward migrate"), "{refused}");
    migrate(&url).await.unwrap();
    let set = |version: i32| format!("UPDATE {}.migrations SET version = {version}", url.schema());
    observer().await.batch_execute(&set(0)).await.unwrap();
    let refused = PostgresStore::connect(&url, Options::default()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Older { found: 0, .. }), "{refused}");
    observer().await.batch_execute(&set(99)).await.unwrap();
    for migrate in [Migrate::Expect, Migrate::Apply] {
        let options = Options { migrate, ..Options::default() };
        let refused = PostgresStore::connect(&url, options).await.unwrap_err();
        assert!(matches!(refused, OpenError::Newer { found: 99, .. }), "{refused}");
    }
}

#[tokio::test]
async fn what_is_printed_for_a_database_administrator_makes_a_store() {
    for partitions in [0, 4] {
        let url = url("");
        let sql = print_sql(Flavor::Postgres, partitions, url.schema()).unwrap();
        observer().await.batch_execute(&sql).await.unwrap();
        let store = PostgresStore::connect(&url, Options::default()).await.unwrap();
        put(&store, sample::id(1), None, sample::record("k")).await;
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_named_without_the_password() {
    let url = onceward_postgres::PostgresUrl::parse("postgres://app:hunter2@127.0.0.1:1/x?connect_timeout=1")
        .unwrap();
    let refused = PostgresStore::connect(&url, Options::default()).await.unwrap_err().to_string();
    assert!(refused.contains("127.0.0.1:1") && !refused.contains("hunter2"), "{refused}");
}

#[tokio::test]
async fn no_index_mentions_what_a_completion_changes() {
    for parameters in ["", "partitions=4"] {
        let url = url(parameters);
        migrate(&url).await.unwrap();
        let rows = observer()
            .await
            .query(
                "SELECT indexdef FROM pg_indexes WHERE schemaname = $1 AND tablename LIKE 'operations%'",
                &[&url.schema()],
            )
            .await
            .unwrap();
        assert!(rows.len() >= 2);
        for row in rows {
            let definition: &str = row.get(0);
            let (_, columns) = definition.split_once("USING").unwrap();
            assert!(columns.contains("(id)") || columns.contains("(created_at)"), "{definition}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_are_hot_updates_and_the_columns_are_there_to_be_read() {
    const CALLERS: u64 = 32;
    const EACH: u64 = 100;
    /// The size of a typical answer; smaller ones always fit.
    const ANSWER_BYTES: usize = 500;
    let url = url("");
    let store = open(&url, Options::default()).await;
    let mut completed = sample::in_state("k", sample::completed(sample::START));
    if let State::Completed { reply, .. } = &mut completed.state {
        *reply = Arc::new(Reply::new(vec![b'c'; ANSWER_BYTES]).with_status(201));
    }
    let mut tasks = JoinSet::new();
    for caller in 0..CALLERS {
        let (store, completed) = (store.clone(), completed.clone());
        tasks.spawn(async move {
            for n in 0..EACH {
                let id = sample::id(caller * EACH + n);
                let version = put(&store, id, None, sample::record("k")).await;
                put(&store, id, Some(version), completed.clone()).await;
            }
        });
    }
    tasks.join_all().await;
    // Backends report what they counted when they end.
    store.close().await;
    let observer = observer().await;
    let sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'operations'";
    let (updates, hot) = wait::until("the statistics count every update", async || {
        let row = observer.query_one(sql, &[&url.schema()]).await.unwrap();
        let counted: (i64, i64) = (row.get(0), row.get(1));
        wait::seen(counted, |&(updates, _)| updates >= i64::try_from(CALLERS * EACH).unwrap())
    })
    .await;
    assert!(hot * 10 >= updates * 9, "{hot} of {updates} updates were HOT");
    let read = format!(
        "SELECT scope, key, route, state, status, attempt, settled_at IS NOT NULL, expires_at IS NOT NULL, lease_until IS NULL
         FROM {}.operations LIMIT 1",
        url.schema()
    );
    let row = observer.query_one(&read, &[]).await.unwrap();
    let texts: [&str; 4] = [row.get(0), row.get(1), row.get(2), row.get(3)];
    assert_eq!(texts, ["acme", "k", "POST /payments", "completed"]);
    assert_eq!((row.get::<_, i32>(4), row.get::<_, i32>(5)), (201, 1));
    assert!(row.get(6) && row.get(7) && row.get(8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_claim_and_its_completion_write_one_row_and_nothing_into_due() {
    let url = url("");
    let store = open(&url, Options::default()).await;
    let now = store.load(sample::id(0)).await.unwrap().now;
    let mut record =
        sample::in_state("k", sample::in_progress(now.after(std::time::Duration::from_secs(60))));
    record.created_at = now;
    let version = put(&store, sample::id(1), None, record.clone()).await;
    let noted = format!("SELECT count(*) FROM {}.due", url.schema());
    let observer = observer().await;
    assert_eq!(observer.query_one(&noted, &[]).await.unwrap().get::<_, i64>(0), 0, "a fresh claim");
    let version = put(&store, sample::id(1), Some(version), record.clone()).await;
    assert_eq!(observer.query_one(&noted, &[]).await.unwrap().get::<_, i64>(0), 1, "a renewed lease");
    record.state = sample::completed(now);
    let version = put(&store, sample::id(1), Some(version), record).await;
    assert_eq!(store.forget(vec![(sample::id(1), version)]).await, Ok(1));
    assert_eq!(observer.query_one(&noted, &[]).await.unwrap().get::<_, i64>(0), 0, "forgotten");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_claim_finds_rows_through_the_unique_index() {
    for parameters in ["", "partitions=4"] {
        let url = url(parameters);
        let store = open(&url, Options::default()).await;
        let mut tasks = JoinSet::new();
        for n in 0..3_000 {
            let store = store.clone();
            tasks.spawn(async move { put(&store, sample::id(n), None, sample::record("k")).await });
        }
        tasks.join_all().await;
        let observer = observer().await;
        let schema = url.schema();
        observer.batch_execute(&format!("ANALYZE {schema}.operations")).await.unwrap();
        // The part of the claim, and of the completion, for which the planner has a choice.
        let claim = format!(
            "EXPLAIN WITH input AS MATERIALIZED (SELECT * FROM unnest(ARRAY[gen_random_uuid()]) AS input (id))
             SELECT input.id, stored.version FROM input CROSS JOIN LATERAL (
                 SELECT version, record FROM {schema}.operations WHERE id = input.id OFFSET 0) AS stored"
        );
        let update = format!(
            "EXPLAIN WITH input AS MATERIALIZED (SELECT * FROM unnest(ARRAY[gen_random_uuid()], ARRAY[1]) AS input (id, expected))
             UPDATE {schema}.operations AS o SET version = o.version + 1 FROM input
             WHERE o.id = input.id AND o.version = input.expected"
        );
        for sql in [claim, update] {
            let plan: Vec<String> =
                observer.query(&sql, &[]).await.unwrap().iter().map(|row| row.get::<_, String>(0)).collect();
            let plan = plan.join("\n");
            assert!(plan.contains("_pkey") && !plan.contains("Seq Scan on operations"), "{plan}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stores_own_statements_read_no_table_from_end_to_end() {
    const ROWS: u64 = 3_000;
    let url = url("");
    let store = open(&url, Options::default()).await;
    let write = |store: PostgresStore, expected: bool| async move {
        let mut tasks = JoinSet::new();
        for n in 0..ROWS {
            let store = store.clone();
            tasks.spawn(async move {
                let seen = store.swap(sample::id(n), None, sample::record("k")).await.unwrap();
                let onceward::store::Swapped::Conflict(seen) = seen else { return };
                assert!(expected, "the first claims are new");
                put(&store, sample::id(n), Some(seen.record.unwrap().version), sample::record("k")).await;
            });
        }
        tasks.join_all().await;
        store.close().await;
    };
    write(store, false).await;
    let observer = observer().await;
    observer.batch_execute(&format!("ANALYZE {}.operations", url.schema())).await.unwrap();
    // Backends report what they counted when they end.
    let counted = async |updates: i64| {
        let sql = "SELECT seq_scan, n_tup_ins, n_tup_upd FROM pg_stat_user_tables
                   WHERE schemaname = $1 AND relname = 'operations'";
        let (scans, ..) = wait::until("the statistics count every insert and update", async || {
            let row = observer.query_one(sql, &[&url.schema()]).await.unwrap();
            let counted: (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
            wait::seen(counted, |counted| counted.1 >= i64::try_from(ROWS).unwrap() && counted.2 >= updates)
        })
        .await;
        scans
    };
    let before = counted(0).await;
    // Small batches: for five hundred rows out of three thousand the planner rightly reads the whole table.
    write(open(&url, Options { batch_limit: 8, ..Options::default() }).await, true).await;
    let after = counted(i64::try_from(ROWS).unwrap()).await;
    assert_eq!(after - before, 0, "claims, conflicts and completions went through the index");
}
