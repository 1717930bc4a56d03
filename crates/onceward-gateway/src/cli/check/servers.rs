//! Stores and caches on servers: what they are set to, and what that means.

use std::sync::Arc;

use onceward::store::{Finding, Health};
use onceward_postgres::{OpenError, PostgresStore, PostgresUrl};
use onceward_redis::{RedisStore, RedisUrl};

use super::{Level, Report, contents};
use crate::settings::Settings;

/// What the server is set to; then what is in the store.
pub(super) async fn postgres(url: &PostgresUrl, settings: &Settings, report: &mut Report) {
    if told(report, "store", onceward_postgres::examine(url).await) == Told::Unusable {
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

/// The same. A server that was never used is left as it is.
pub(super) async fn redis(url: &RedisUrl, settings: &Settings, report: &mut Report) {
    if told(report, "store", onceward_redis::examine(url).await) == Told::Unusable {
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

/// Only a warning: a gateway without its cache is slower, and no less right.
pub(super) async fn cache(url: &RedisUrl, report: &mut Report) {
    match onceward_redis::examine(url).await {
        Ok(_) => report.say(Level::Ok, "cache", format!("{url} can be used")),
        Err(error) => report.say(Level::Warning, "cache", format!("{error}: replays will ask the store")),
    }
}

#[derive(PartialEq, Eq)]
enum Told {
    Usable,
    Unusable,
}

fn told<E: std::fmt::Display>(
    report: &mut Report,
    about: &'static str,
    found: Result<Vec<Finding>, E>,
) -> Told {
    let findings = match found {
        Ok(findings) => findings,
        Err(error) => {
            report.say(Level::Error, about, error.to_string());
            return Told::Unusable;
        }
    };
    let mut told = Told::Usable;
    for Finding { health, subject, text } in findings {
        let level = match health {
            Health::Good => Level::Ok,
            Health::Warning => Level::Warning,
            Health::Problem => {
                told = Told::Unusable;
                Level::Error
            }
        };
        report.say(level, about, format!("{subject}: {text}"));
    }
    told
}
