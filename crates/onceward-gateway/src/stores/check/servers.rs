//! Stores and caches on servers: whether their settings weaken the promise, and what they hold.

use std::sync::Arc;

use onceward::store::{Finding, Health};
use onceward_postgres::{OpenError, PostgresStore, PostgresUrl};
use onceward_redis::{RedisStore, RedisUrl};

use super::contents;
use crate::check::{Level, Report};
use crate::settings::Settings;

/// Checks the server's settings, then the store's content.
pub(super) async fn postgres(url: &PostgresUrl, settings: &Settings, report: &mut Report) {
    if report_findings(report, onceward_postgres::examine(url).await) == Server::Unusable {
        return;
    }
    match PostgresStore::connect(url, onceward_postgres::Options::default()).await {
        Ok(store) => {
            contents(Arc::new(store.clone()), settings, settings.secret.as_ref(), report).await;
            store.close().await;
        }
        Err(error @ (OpenError::Absent { .. } | OpenError::Older { .. })) => {
            let text = format!("{error}, or let `onceward serve` do it when it starts");
            report.say(Level::Warning, "store", text);
        }
        Err(error) => report.say(Level::Error, "store", error.to_string()),
    }
}

/// Checks the server's settings, then the store's content. An empty server stays empty.
pub(super) async fn redis(url: &RedisUrl, settings: &Settings, report: &mut Report) {
    if report_findings(report, onceward_redis::examine(url).await) == Server::Unusable {
        return;
    }
    let options =
        onceward_redis::Options { first_use: onceward_redis::FirstUse::Refuse, ..Default::default() };
    match RedisStore::connect(url, options).await {
        Ok(store) => {
            contents(Arc::new(store), settings, settings.secret.as_ref(), report).await;
        }
        Err(onceward_redis::OpenError::Empty { .. }) => {
            report.say(Level::Ok, "store", "it is new, and is set up at the first start");
        }
        Err(error) => report.say(Level::Error, "store", error.to_string()),
    }
}

/// Only warnings: a gateway without its cache is slower, and still correct.
pub(super) async fn cache(url: &RedisUrl, report: &mut Report) {
    match onceward_redis::examine(url).await {
        Ok(_) => report.say(Level::Ok, "cache", format!("{url} can be used")),
        Err(error) => report.say(Level::Warning, "cache", format!("{error}: replays will ask the store")),
    }
}

#[derive(PartialEq, Eq)]
enum Server {
    Usable,
    Unusable,
}

fn report_findings<E: std::fmt::Display>(report: &mut Report, found: Result<Vec<Finding>, E>) -> Server {
    let findings = match found {
        Ok(findings) => findings,
        Err(error) => {
            report.say(Level::Error, "store", error.to_string());
            return Server::Unusable;
        }
    };
    let mut server = Server::Usable;
    for Finding { health, subject, text } in findings {
        let level = match health {
            Health::Good => Level::Ok,
            Health::Warning => Level::Warning,
            Health::Problem => {
                server = Server::Unusable;
                Level::Error
            }
        };
        report.say(level, "store", format!("{subject}: {text}"));
    }
    server
}
