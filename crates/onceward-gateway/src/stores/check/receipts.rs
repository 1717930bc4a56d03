//! Whether the receipt tables can be used, and what their databases lack.

use onceward::receipts::ReceiptFinder;
use onceward::store::{Clock as _, Finding, Health, SystemClock};

use crate::check::{Level, Report};
use crate::settings::{ReceiptRoute, ReceiptsUrl, Settings};
use crate::stores::receipt_finder;

/// Checks the receipt table of every route that has one.
pub(super) async fn check(settings: &Settings, report: &mut Report) {
    let mut checked: Vec<&ReceiptRoute> = Vec::new();
    for route in &settings.receipts {
        if checked.iter().any(|other| other.url == route.url && other.table == route.table) {
            continue;
        }
        checked.push(route);
        table(route, report).await;
    }
    match receipt_finder(settings) {
        Ok(Some(finder)) => voids(&finder, report).await,
        Ok(None) => {}
        Err(error) => report.say(Level::Error, "receipts", error.to_string()),
    }
}

async fn table(route: &ReceiptRoute, report: &mut Report) {
    let now = SystemClock.now();
    let found = match &route.url {
        ReceiptsUrl::Sqlite(path) => {
            // It reads a file, which may wait for a disk or a lock.
            let (path, table) = (path.clone(), route.table.clone());
            let read =
                tokio::task::spawn_blocking(move || onceward_sqlite::receipts::examine(&path, &table, now));
            read.await.map_err(|error| error.to_string())
        }
        ReceiptsUrl::Postgres(url) => onceward_postgres::receipts::examine(url, &route.table, now)
            .await
            .map_err(|error| error.to_string()),
    };
    match found {
        Ok(findings) => findings.into_iter().for_each(|finding| say(route, finding, report)),
        Err(error) => report.say(Level::Error, "receipts", format!("{}: {error}", route.route)),
    }
}

fn say(route: &ReceiptRoute, Finding { health, subject, text }: Finding, report: &mut Report) {
    let level = match health {
        Health::Good => Level::Ok,
        Health::Warning => Level::Warning,
        Health::Problem => Level::Error,
    };
    report.say(level, subject, format!("{}: {text}", route.route));
}

/// Whether voids release anything.
async fn voids(finder: &ReceiptFinder, report: &mut Report) {
    if let Err(error) = finder.refresh().await {
        report.say(Level::Error, "receipt voids", format!("{error}"));
        return;
    }
    for status in finder.statuses() {
        let route = &status.route;
        if status.suspended {
            let text = format!(
                "{route}: a request was answered as done without a receipt, so nothing is released: correct the handler, then run \
                 `onceward receipts --config FILE --resume-voids {route:?}`"
            );
            report.say(Level::Error, "receipt voids", text);
        } else if !status.controlled {
            let text = format!(
                "{route}: no handler was seen to write a receipt yet, so nothing is released before the first one"
            );
            report.say(Level::Warning, "receipt voids", text);
        } else {
            report.say(Level::Ok, "receipt voids", format!("{route}: its handlers write receipts"));
        }
    }
}
