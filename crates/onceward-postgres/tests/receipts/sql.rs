//! The SQL that users run: the DDL, and what the functions refuse at a user's first test.

use onceward::OperationId;
use onceward::receipts::{ReceiptTable, TableName};
use onceward::store::{Clock, SystemClock};
use onceward_postgres::receipts::print_sql;
use onceward_testkit::receipts::HandlerError;
use onceward_testkit::sample;
use onceward_testkit::servers::shared_postgres;
use tokio_postgres::Client;

use crate::handler::{Table, failed, table, table_in};
use crate::support::client;

fn operation(n: u64) -> OperationId {
    OperationId::bare(sample::id(n))
}

/// A fence of now.
fn now() -> u64 {
    SystemClock.now().as_micros()
}

async fn value(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// What a statement fails with: the code, and the words or the constraint.
async fn refusal(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => panic!("{sql} was not refused"),
        Err(error) => {
            let db_error = error.as_db_error().unwrap();
            format!("{} {} {:?}", db_error.code().code(), db_error.message(), db_error.constraint())
        }
    }
}

#[tokio::test]
async fn the_ddl_runs_twice_and_keeps_what_is_there() {
    let table = table().await;
    let row = table.receipts().void(operation(1), onceward::Fence::from_number(7)).await.unwrap();
    let owner = client(&table.url).await;
    owner.batch_execute(&print_sql(&table.name)).await.unwrap();
    assert_eq!(table.receipts().read(operation(1)).await.unwrap(), Some(row));
}

#[tokio::test]
async fn the_table_has_the_columns_of_the_contract_in_their_order() {
    let table = table().await;
    let owner = client(&table.url).await;
    let sql = format!(
        "SELECT string_agg(attname || ' ' || format_type(atttypid, NULL) || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END, \
             ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = '{}'::regclass AND attnum > 0",
        table.name.quoted()
    );
    assert_eq!(
        value(&owner, &sql).await,
        "operation text NOT NULL, fence bigint NOT NULL, point text, data text, entered text, \
         entered_at timestamp with time zone, dedup_until timestamp with time zone, status integer, headers text, body bytea, \
         at timestamp with time zone NOT NULL"
    );
}

/// A migration without a schema's name puts all of it into the first schema of its path.
#[tokio::test]
async fn the_functions_find_their_table_whatever_the_callers_search_path_is() {
    let database = shared_postgres();
    let owner = client(&database).await;
    let ddl = print_sql(&TableName::default());
    owner
        .batch_execute("CREATE SCHEMA shop; CREATE SCHEMA decoy; SET search_path = shop, public")
        .await
        .unwrap();
    owner.batch_execute(&ddl).await.unwrap();
    owner.batch_execute("SET search_path = decoy").await.unwrap();
    owner.batch_execute(&ddl).await.unwrap();
    let complete = |n| format!("SELECT shop.onceward_complete('{}', {}, 200)", operation(n), now());
    for (n, path) in [(1, "decoy, shop"), (2, "''"), (3, "pg_temp, decoy")] {
        let handler = client(&database).await;
        handler.batch_execute(&format!("SET search_path = {path}")).await.unwrap();
        // A temporary table of this name is another decoy.
        handler
            .batch_execute(
                "CREATE TEMPORARY TABLE onceward_receipts (LIKE shop.onceward_receipts INCLUDING ALL)",
            )
            .await
            .unwrap();
        handler.batch_execute(&complete(n)).await.unwrap();
    }
    assert_eq!(value(&owner, "SELECT count(*)::text FROM shop.onceward_receipts").await, "3");
    assert_eq!(value(&owner, "SELECT count(*)::text FROM decoy.onceward_receipts").await, "0");
}

#[tokio::test]
async fn a_reserved_word_can_name_a_table() {
    let database = shared_postgres();
    let name: TableName = "order".parse().unwrap();
    client(&database).await.batch_execute(&print_sql(&name)).await.unwrap();
    let receipts = Table { url: database, name }.receipts();
    assert_eq!(
        receipts.void(operation(1), onceward::Fence::from_number(7)).await.unwrap().fence.as_number(),
        7
    );
    let old = receipts.aged(std::time::Duration::ZERO, None, 9).await.unwrap();
    assert_eq!(receipts.delete(old).await.unwrap(), 1);
}

/// The rights that the comments of the DDL name are enough, and no more than enough.
#[tokio::test]
async fn each_role_needs_the_rights_that_the_ddl_names() {
    let table = table_in(&shared_postgres()).await;
    let (owner, quoted, schema) =
        (client(&table.url).await, table.name.quoted(), table.name.schema().unwrap());
    // Roles belong to the server, which other programs use too.
    let (app, gateway) = (format!("app_{}", now()), format!("gateway_{}", now()));
    owner
        .batch_execute(&format!(
            "CREATE ROLE {app} LOGIN; CREATE ROLE {gateway} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {app}, {gateway};
             GRANT SELECT, INSERT, UPDATE ON {quoted} TO {app};"
        ))
        .await
        .unwrap();
    let handler = client(&table.url).await;
    handler.batch_execute(&format!("SET ROLE {app}")).await.unwrap();
    let step = |function: &str, rest: &str| {
        format!("SELECT {schema}.onceward_{function}('{}', {}, {rest})", operation(1), now())
    };
    handler.batch_execute(&step("checkpoint", "'a', '{}'")).await.unwrap();
    handler.batch_execute(&step("enter", "'b', '1h', 'a'")).await.unwrap();
    handler.batch_execute(&step("complete", "201, '[]', 'done', 'b'")).await.unwrap();
    let receipts = table.receipts_at(&table.url.replace("postgres@", &format!("{gateway}@")));
    let refused = receipts.void(operation(1), onceward::Fence::from_number(7)).await.unwrap_err().to_string();
    assert!(refused.contains("GRANT SELECT, INSERT, UPDATE, DELETE"), "{refused}");
    owner
        .batch_execute(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {quoted} TO {gateway}"))
        .await
        .unwrap();
    let row = receipts.void(operation(1), onceward::Fence::from_number(7)).await.unwrap();
    assert_eq!(row.reply.unwrap().unwrap().status, 201);
    let old = receipts.aged(std::time::Duration::ZERO, None, 9).await.unwrap();
    assert_eq!(receipts.delete(old).await.unwrap(), 1);
    drop(receipts);
    owner
        .batch_execute(&format!("DROP OWNED BY {app}, {gateway}; DROP ROLE {app}, {gateway}"))
        .await
        .unwrap();
}

#[tokio::test]
async fn arguments_that_cannot_be_meant_fail_at_the_first_test() {
    let table = table().await;
    let (handler, schema) = (client(&table.url).await, table.name.schema().unwrap().to_owned());
    let (id, fence) = (operation(1), now());
    for (call, expected) in [
        (format!("complete(NULL, {fence}, 200)"), "22023 onceward: the operation must be"),
        (format!("complete('', {fence}, 200)"), "22023 onceward: the operation must be"),
        (format!("complete('the-clients-key', {fence}, 200)"), "22023 onceward: the operation must be"),
        (format!("complete('onceward:store', {fence}, 200)"), "22023 onceward: the operation must be"),
        (format!("complete('{id}', NULL, 200)"), "22023 onceward: the fence must be"),
        (format!("complete('{id}', -1, 200)"), "22023 onceward: the fence must be"),
        (format!("complete('{id}', {fence}, NULL)"), "22023 onceward: a checkpoint"),
        (format!("complete('{id}', {fence}, 199)"), "status_is_200_to_599"),
        (format!("complete('{id}', {fence}, 600)"), "status_is_200_to_599"),
        (format!("complete('{id}', {fence}, 200, 'x')"), "22P02"),
        (format!("complete('{id}', {fence}, 200, '{{}}')"), "headers_are_a_json_array_of_pairs_of_strings"),
        (
            format!("complete('{id}', {fence}, 200, '[[\"a\"]]')"),
            "headers_are_a_json_array_of_pairs_of_strings",
        ),
        (
            format!("complete('{id}', {fence}, 200, '[[\"a\", 1]]')"),
            "headers_are_a_json_array_of_pairs_of_strings",
        ),
        (
            format!("complete('{id}', {fence}, 200, '[\"a\", \"b\"]')"),
            "headers_are_a_json_array_of_pairs_of_strings",
        ),
        (format!("checkpoint('{id}', {fence}, NULL)"), "22023 onceward: a checkpoint"),
        (format!("checkpoint('{id}', {fence}, '')"), "point_has_1_to_64_bytes"),
        (format!("checkpoint('{id}', {fence}, '{}é')", "a".repeat(63)), "point_has_1_to_64_bytes"),
        (format!("checkpoint('{id}', {fence}, 'a', 'not json')"), "22P02"),
        (
            format!("checkpoint('{id}', {fence}, 'a', '\"{}\"')", "d".repeat(4_095)),
            "data_is_json_of_at_most_4096_bytes",
        ),
        (format!("enter('{id}', {fence}, NULL)"), "22023 onceward: a checkpoint"),
        (format!("enter('{id}', {fence}, '')"), "entered_has_1_to_64_bytes"),
        (format!("enter('{id}', {fence}, 'a', '0s')"), "22023 onceward: dedup"),
        (format!("enter('{id}', {fence}, 'a', '-1h')"), "22023 onceward: dedup"),
    ] {
        let said = refusal(&handler, &format!("SELECT {schema}.onceward_{call}")).await;
        assert!(said.contains(expected), "{call}: {said}");
    }
    assert_eq!(table.receipts().read(id).await.unwrap(), None);
    for call in [
        format!("checkpoint('{id}', {fence}, '{}', '\"{}\"')", "a".repeat(64), "d".repeat(4_094)),
        format!(
            "complete(operation => '{id}', fence => '{fence}', status => 599, headers => NULL, body => NULL, after => '{}')",
            "a".repeat(64)
        ),
    ] {
        handler.batch_execute(&format!("SELECT {schema}.onceward_{call}")).await.unwrap();
    }
    let reply = table.receipts().read(id).await.unwrap().unwrap().reply.unwrap().unwrap();
    assert_eq!((reply.status, reply.headers.len(), reply.body.len()), (599, 0, 0));
}

/// The row of a handler whose clock cannot be right, with the words that lead to the clock.
#[tokio::test]
async fn a_handler_is_told_why_it_must_not_commit() {
    let table = table().await;
    let (handler, schema) = (client(&table.url).await, table.name.schema().unwrap().to_owned());
    let complete = |fence: u64, after: &str| {
        format!("SELECT {schema}.onceward_complete('{}', {fence}, 200, after => {after})", operation(1))
    };
    let said = async |sql: String| match handler.batch_execute(&sql).await {
        Ok(()) => panic!("{sql} was not refused"),
        Err(error) => failed(&error),
    };
    let fence = now();
    let HandlerError::Fenced(words) = said(complete(fence / 1_000, "NULL")).await else {
        panic!("not fenced")
    };
    assert!(words.contains("has no row") && words.contains("clock of this database"), "{words}");
    let HandlerError::Moved(words) = said(complete(fence, "'paid'")).await else { panic!("not moved") };
    assert!(words.contains("after 'paid'") && words.contains("pass null"), "{words}");
    handler.batch_execute(&complete(fence, "NULL")).await.unwrap();
    let HandlerError::Completed(words) = said(complete(fence, "NULL")).await else { panic!("not completed") };
    assert!(words.contains("status 200") && words.contains("Roll this transaction back"), "{words}");
    let HandlerError::Fenced(words) = said(complete(fence - 1, "NULL")).await else { panic!("not fenced") };
    assert!(words.contains(&fence.to_string()), "{words}");
}

/// Times that no function writes are no reason to leave an operation unknown for ever.
#[tokio::test]
async fn a_row_with_extreme_times_can_be_read() {
    let table = table().await;
    let owner = client(&table.url).await;
    for (n, dedup, micros) in [
        (1, "'infinity'", i64::MAX.unsigned_abs()),
        (2, "'-infinity'", 0),
        (3, "'294276-12-31 23:59:59'", i64::MAX.unsigned_abs()),
        (4, "'1960-01-01'", 0),
        (5, "'2026-01-01 00:00:00.000001+00'", 1_767_225_600_000_001),
    ] {
        owner
            .batch_execute(&format!(
                "INSERT INTO {} (operation, fence, entered, entered_at, dedup_until) VALUES ('{}', 7, 'a', now(), {dedup})",
                table.name.quoted(),
                operation(n)
            ))
            .await
            .unwrap();
        let entered = table.receipts().read(operation(n)).await.unwrap().unwrap().entered.unwrap();
        assert_eq!(entered.dedup_until.unwrap().as_micros(), micros, "{dedup}");
    }
}

/// Bodies are limited before they cross the network.
#[tokio::test]
async fn an_answer_that_is_too_large_stays_in_the_database_and_completes_all_the_same() {
    let table = table().await;
    let (handler, schema) = (client(&table.url).await, table.name.schema().unwrap().to_owned());
    for (n, bytes, kept) in [(1, 16 << 20, true), (2, (16 << 20) + 1, false)] {
        handler
            .batch_execute(&format!(
                "SELECT {schema}.onceward_complete('{}', {}, 200, body => convert_to(repeat('x', {bytes}), 'UTF8'))",
                operation(n),
                now()
            ))
            .await
            .unwrap();
        let receipts =
            table.receipts_with(&table.url, onceward_postgres::receipts::ReceiptOptions::default());
        let reply =
            receipts.void(operation(n), onceward::Fence::from_number(7)).await.unwrap().reply.unwrap();
        match reply {
            Ok(reply) => assert!(kept && reply.body.len() == bytes),
            Err(why) => assert!(!kept && why.contains("16777217 bytes"), "{why}"),
        }
    }
}
