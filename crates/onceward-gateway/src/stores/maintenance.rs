//! `onceward migrate`, `onceward store` and `onceward receipts`: what an operator does to databases by hand.

use onceward::receipts::{Resumed, TableName};
use onceward::store::{Clock as _, SystemClock};
use onceward_redis::RedisStore;
use serde_json::{Value, json};

use crate::Failure;
use crate::settings::{Settings, StoreUrl};

/// What was done, for people and for programs.
#[derive(Debug)]
pub(crate) struct Done {
    text: String,
    json: Value,
}

impl Done {
    pub(crate) fn to_text(&self) -> String {
        format!("{}\n", self.text)
    }

    pub(crate) fn to_json(&self) -> String {
        format!("{:#}\n", self.json)
    }
}

fn not_postgres() -> Failure {
    "only a PostgreSQL store has tables to migrate: name one with --store postgres://… or in the file".into()
}

/// The statements that make the tables. Does not connect to the database.
pub(crate) fn print_sql(store: &StoreUrl) -> Result<String, Failure> {
    let StoreUrl::Postgres(url) = store else { return Err(not_postgres()) };
    onceward_postgres::print_sql(url.flavor(), url.partitions(), url.schema()).map_err(Into::into)
}

/// Brings the tables up to date.
pub(crate) async fn migrate(store: &StoreUrl) -> Result<Done, Failure> {
    let StoreUrl::Postgres(url) = store else { return Err(not_postgres()) };
    let applied = onceward_postgres::migrate(url).await?;
    let text = match applied.as_slice() {
        [] => format!("{url} is up to date."),
        versions => {
            let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
            format!("{url} was migrated: schema version {} was applied.", versions.join(", "))
        }
    };
    Ok(Done { text, json: json!({ "applied": applied }) })
}

/// Lets a Redis store answer again after it lost keys: the operator accepts the loss.
pub(crate) async fn accept_loss(store: &StoreUrl) -> Result<Done, Failure> {
    let StoreUrl::Redis(url) = store else {
        return Err(
            "only a Redis store can lose keys without an error: name one with --store redis://…".into()
        );
    };
    RedisStore::accept_loss(url).await?;
    let text = format!(
        "{url} answers again. Keys that were lost are new keys now: a retry of one of them executes again."
    );
    Ok(Done { text, json: json!({ "accepted": true }) })
}

/// The statements that make a receipt table in the handlers' database.
pub(crate) fn receipts_sql(dialect: &str, table: &TableName) -> String {
    match dialect {
        "sqlite" => onceward_sqlite::receipts::print_sql(table),
        _ => onceward_postgres::receipts::print_sql(table),
    }
}

/// Lets the voids of a route release again: the operator says that its handler was corrected.
pub(crate) async fn resume_voids(settings: &Settings, route: &str) -> Result<Done, Failure> {
    let finder = super::receipt_finder(settings)?;
    let resumed = match &finder {
        Some(finder) => finder.resume_voids(route, SystemClock.now()).await,
        None => None,
    };
    let Some(resumed) = resumed else {
        let known: Vec<&str> = settings.receipts.iter().map(|known| known.route.as_str()).collect();
        return Err(format!(
            "the route {route:?} has no receipts: write its `match` as the configuration has it, one of {known:?}"
        )
        .into());
    };
    let text = match resumed? {
        Resumed::FromTheNextRow => format!(
            "The voids of {route} release again, from the next receipt on. Operations that were begun before it wait for a person."
        ),
        Resumed::WereNotSuspended => {
            format!("The voids of {route} are not suspended: nothing was changed.")
        }
    };
    Ok(Done { text, json: json!({ "resumed": route }) })
}
