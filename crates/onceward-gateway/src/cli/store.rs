//! `onceward migrate` and `onceward store`: for whoever looks after a store that gateways share.

use onceward_redis::RedisStore;
use serde_json::{Value, json};

use super::Failure;
use crate::settings::StoreUrl;

/// What was done, for people and for programs.
#[derive(Debug)]
pub(super) struct Done {
    text: String,
    json: Value,
}

impl Done {
    pub(super) fn said(&self, as_json: bool) -> String {
        if as_json { format!("{:#}\n", self.json) } else { format!("{}\n", self.text) }
    }
}

fn refused(text: impl Into<String>) -> Failure {
    Failure::Failed(text.into().into())
}

fn not_postgres() -> Failure {
    refused(
        "only a PostgreSQL store has tables to migrate: name one with --store postgres://… or in the file",
    )
}

/// The statements, without a look at the database.
pub(super) fn sql(store: &StoreUrl) -> Result<String, Failure> {
    let StoreUrl::Postgres(url) = store else { return Err(not_postgres()) };
    onceward_postgres::print_sql(url.flavor(), url.partitions(), url.schema()).map_err(refused)
}

/// Makes what is missing.
pub(super) async fn migrate(store: &StoreUrl) -> Result<Done, Failure> {
    let StoreUrl::Postgres(url) = store else { return Err(not_postgres()) };
    let applied = onceward_postgres::migrate(url).await.map_err(|error| refused(error.to_string()))?;
    let text = match applied.as_slice() {
        [] => format!("{url} is up to date."),
        versions => {
            let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
            format!("{url} was migrated: schema version {} was applied.", versions.join(", "))
        }
    };
    Ok(Done { text, json: json!({ "applied": applied }) })
}

/// The operator knows that keys were lost, and wants to go on without them.
pub(super) async fn accept_loss(store: &StoreUrl) -> Result<Done, Failure> {
    let StoreUrl::Redis(url) = store else {
        return Err(refused(
            "only a Redis store can lose keys without an error: name one with --store redis://…",
        ));
    };
    RedisStore::accept_loss(url).await.map_err(|error| refused(error.to_string()))?;
    let text = format!(
        "{url} answers again. Keys that were lost are new keys now: a retry of one of them executes again."
    );
    Ok(Done { text, json: json!({ "accepted": true }) })
}
