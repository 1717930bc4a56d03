//! Creates the tables, also if many gateways start at once.
//!
//! The only lock is that of a row: the process that inserts a version's row creates that version's tables in the same
//! transaction. Other processes wait for that row, and then find it.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::schema::{self, KNOWN};
use crate::{OpenError, PostgresUrl, error, tls};

/// Each failed attempt means that another process created the same object.
const ATTEMPTS_MAX: u32 = 50;

/// Creates missing tables, and returns the versions that this call applied.
///
/// Many processes may call it at once, and repeatedly. A newer schema is refused and not changed.
pub async fn migrate(url: &PostgresUrl) -> Result<Vec<i32>, OpenError> {
    let failed = |reason: String| OpenError::Unreachable { url: url.to_string(), reason };
    let mut client = connect(url).await?;
    let found = installed(&client, url).await.map_err(|error| failed(error::words(&error)))?;
    check_newer(url, found)?;
    if found == Some(KNOWN) {
        // A role that may only read the tables needs no right to create them.
        return Ok(Vec::new());
    }
    for statement in schema::groundwork(&url.schema) {
        let mut attempts = 0;
        // `IF NOT EXISTS` checks before it creates, and another process may create the object in between.
        while let Err(error) = client.batch_execute(&statement).await {
            attempts += 1;
            if !lost_a_race(&error) || attempts == ATTEMPTS_MAX {
                return Err(failed(error::words(&error)));
            }
        }
    }
    let mut applied = Vec::new();
    for (version, sql) in schema::migrations(url.flavor, url.partitions, &url.schema) {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match apply(&mut client, url, version, &sql).await {
                Ok(AppliedBy::ThisCall) => applied.push(version),
                Ok(AppliedBy::AnotherProcess) => {}
                Err(error) if lost_a_race(&error) && attempts < ATTEMPTS_MAX => continue,
                Err(error) => return Err(failed(error::words(&error))),
            }
            break;
        }
    }
    Ok(applied)
}

enum AppliedBy {
    ThisCall,
    AnotherProcess,
}

async fn apply(
    client: &mut Client,
    url: &PostgresUrl,
    version: i32,
    sql: &str,
) -> Result<AppliedBy, tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    // Simple queries, which every pooler passes on.
    let note = format!(
        "INSERT INTO {}.migrations (version) VALUES ({version}) ON CONFLICT DO NOTHING RETURNING version",
        url.schema
    );
    let noted = transaction.simple_query(&note).await?;
    if !noted.iter().any(|message| matches!(message, tokio_postgres::SimpleQueryMessage::Row(_))) {
        return Ok(AppliedBy::AnotherProcess);
    }
    transaction.batch_execute(sql).await?;
    transaction.commit().await?;
    Ok(AppliedBy::ThisCall)
}

fn lost_a_race(error: &tokio_postgres::Error) -> bool {
    let known = [
        SqlState::UNIQUE_VIOLATION,
        SqlState::DUPLICATE_SCHEMA,
        SqlState::DUPLICATE_TABLE,
        SqlState::DUPLICATE_OBJECT,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        // "tuple concurrently updated"
        SqlState::INTERNAL_ERROR,
    ];
    error.code().is_some_and(|code| known.contains(code))
}

/// One plain connection, for rare tasks.
pub(crate) async fn connect(url: &PostgresUrl) -> Result<Client, OpenError> {
    let tls = tls::connector(url)?;
    let (client, connection) = url
        .config
        .connect(tls)
        .await
        .map_err(|error| OpenError::Unreachable { url: url.to_string(), reason: error::words(&error) })?;
    tokio::spawn(async move {
        // Pending queries get the error from the client.
        if let Err(error) = connection.await {
            tracing::debug!(reason = error::words(&error), "a connection to the database ended");
        }
    });
    Ok(client)
}

/// The schema's version; `None` if there is no schema, or no version in it.
pub(crate) async fn installed(
    client: &Client,
    url: &PostgresUrl,
) -> Result<Option<i32>, tokio_postgres::Error> {
    let select = format!("SELECT max(version) FROM {}.migrations", url.schema);
    let messages = match client.simple_query(&select).await {
        Ok(messages) => messages,
        Err(error)
            if error.code().is_some_and(|code| {
                *code == SqlState::UNDEFINED_TABLE || *code == SqlState::INVALID_SCHEMA_NAME
            }) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    Ok(messages.iter().find_map(|message| {
        let tokio_postgres::SimpleQueryMessage::Row(row) = message else { return None };
        row.get(0)?.parse().ok()
    }))
}

/// Refuses a schema that this program cannot use.
pub(crate) fn check(url: &PostgresUrl, found: Option<i32>) -> Result<(), OpenError> {
    check_newer(url, found)?;
    match found {
        None => Err(OpenError::Absent { url: url.to_string(), schema: url.schema.clone() }),
        Some(found) if found < KNOWN => Err(OpenError::Older { url: url.to_string(), found, known: KNOWN }),
        Some(_) => Ok(()),
    }
}

fn check_newer(url: &PostgresUrl, found: Option<i32>) -> Result<(), OpenError> {
    match found {
        Some(found) if found > KNOWN => Err(OpenError::Newer { url: url.to_string(), found, known: KNOWN }),
        Some(_) | None => Ok(()),
    }
}
