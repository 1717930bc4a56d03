//! The receipt tables of the configured routes, in the handlers' own databases.

use std::sync::Arc;

use onceward::Identity;
use onceward::receipts::{ReceiptFinder, ReceiptTable};
use onceward_postgres::receipts::PostgresReceipts;
use onceward_sqlite::receipts::SqliteReceipts;

use crate::Failure;
use crate::settings::{ReceiptRoute, ReceiptsUrl, Settings, StoreUrl};

impl ReceiptsUrl {
    /// Parses it. The error ends a sentence that begins with "it", and does not repeat it.
    pub fn parse(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "must be \"postgres://USER@HOST/DATABASE\" or \"sqlite:PATH\", the database of the handlers";
        match StoreUrl::parse(text) {
            Ok(StoreUrl::Sqlite(path)) => Ok(Self::Sqlite(path)),
            Ok(StoreUrl::Postgres(url)) => Ok(Self::Postgres(Box::new(url))),
            Ok(StoreUrl::Memory | StoreUrl::Redis(_)) => Err(EXPECTED.to_owned()),
            Err(_)
                if !["postgres://", "postgresql://", "sqlite:"]
                    .iter()
                    .any(|known| text.starts_with(known)) =>
            {
                Err(match text.split_once("://") {
                    Some((scheme, _)) => format!("{EXPECTED}, and its scheme is {scheme:?}"),
                    None => EXPECTED.to_owned(),
                })
            }
            Err(reason) => Err(reason),
        }
    }

    fn table(&self, route: &ReceiptRoute) -> Result<Arc<dyn ReceiptTable>, Failure> {
        Ok(match self {
            Self::Sqlite(path) => Arc::new(SqliteReceipts::new(
                path,
                route.table.clone(),
                onceward_sqlite::receipts::ReceiptOptions::default(),
            )?),
            Self::Postgres(url) => Arc::new(PostgresReceipts::new(
                url,
                route.table.clone(),
                onceward_postgres::receipts::ReceiptOptions::default(),
            )?),
        })
    }
}

/// What finds unknown outcomes out by receipts. `None` where no route has any. Nothing is connected yet.
pub fn receipt_finder(settings: &Settings) -> Result<Option<Arc<ReceiptFinder>>, Failure> {
    let mut finder = ReceiptFinder::new(Identity::in_namespace(&settings.namespace), &settings.reconciling);
    let mut tables: Vec<(&ReceiptRoute, Arc<dyn ReceiptTable>)> = Vec::new();
    for route in &settings.receipts {
        let same = |(other, _): &&(&ReceiptRoute, _)| other.url == route.url && other.table == route.table;
        let table = match tables.iter().find(same) {
            Some((_, table)) => table.clone(),
            None => route.url.table(route)?,
        };
        finder = finder.route(&route.route, table.clone(), route.terms);
        tables.push((route, table));
    }
    Ok((!settings.receipts.is_empty()).then(|| Arc::new(finder)))
}
