//! Whether the configured store and cache can be used, and whether the store was used with this identity. A check changes
//! nothing.

mod embedded;
mod receipts;
mod servers;

use std::sync::Arc;
use std::time::Duration;

use onceward::store::Store;
use onceward::{
    Engine, Identity, OpenError, RecordId, Secret, Timestamp,
    engine::{IdentityChange, IdentityRefused},
    record::RecordFormat,
    store::{Clock as _, SystemClock},
};

use super::secret_advice;
use crate::Failure;
use crate::check::{Level, Report};
use crate::settings::{Settings, StoreUrl};

/// More than a slow answer can explain.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// Checks the store and the cache of these settings.
pub(crate) async fn check(settings: &Settings, report: &mut Report) {
    match &settings.store {
        // The configuration's advice has a warning about it.
        StoreUrl::Memory => {}
        StoreUrl::Sqlite(path) => embedded::check(path, settings, report).await,
        StoreUrl::Postgres(url) => servers::postgres(url, settings, report).await,
        StoreUrl::Redis(url) => servers::redis(url, settings, report).await,
    }
    if let Some(url) = &settings.cache {
        servers::cache(url, report).await;
    }
    receipts::check(settings, report).await;
}

/// The record of a store's identity; it is read to find out whether the store has one.
const IDENTITY: RecordId = RecordId::from_bytes([0; 16]);

/// Whether the store knows the identity that it would be opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recognised {
    /// It is new.
    New,
    /// It does.
    Known,
    /// It does not, or could not be read. An error was reported.
    Refused,
}

async fn contents(
    store: Arc<dyn Store>,
    settings: &Settings,
    secret: Option<&Secret>,
    report: &mut Report,
) -> Recognised {
    let seen = match store.load(IDENTITY).await {
        Ok(seen) => seen,
        Err(error) => {
            report.say(Level::Error, "store", error.to_string());
            return Recognised::Refused;
        }
    };
    clock(SystemClock.now(), seen.now, report);
    if seen.record.is_none() {
        if let Some(outdated) = settings.scope.outdated() {
            report.say(Level::Error, "scope", outdated.to_string());
        }
        // Opening an engine would write its identity, and a check must change nothing.
        report.say(Level::Ok, "identity", "the store is new, and takes this one at the first start");
        return Recognised::New;
    }
    match identity(store, settings, secret).await {
        Ok(format) => {
            report.say(
                Level::Ok,
                "identity",
                "namespace, scope and secret are those that the store was used with",
            );
            record_format(format, settings, report);
            if let Some(outdated) = settings.scope.outdated() {
                let text =
                    format!("{outdated}. This store was used with it and may go on; a new one is refused it");
                report.say(Level::Warning, "scope", text);
            }
            Recognised::Known
        }
        Err(error) => {
            let changed = error
                .downcast_ref::<OpenError>()
                .is_some_and(|error| matches!(error, OpenError::Identity(IdentityRefused::Changed { .. })));
            let file = settings.store.file().filter(|_| changed);
            let advice = file.map(|file| secret_advice(settings.secret.as_ref(), file)).unwrap_or_default();
            report.say(Level::Error, "identity", format!("{error}{advice}"));
            Recognised::Refused
        }
    }
}

/// Reports the format that records will be written in.
fn record_format(noted: RecordFormat, settings: &Settings, report: &mut Report) {
    match settings.store.record_format(settings.record_format).unwrap_or(noted) {
        RecordFormat::Two => report.say(Level::Ok, "record_format", "records are written in format 2"),
        RecordFormat::One => report.say(
            Level::Warning,
            "record_format",
            "records are written in format 1, which gateways of older versions read: set record_format = 2 once every \
             gateway on this store has this version",
        ),
    }
}

/// Opens an engine on the store, which verifies the identity, and returns the store's record format.
async fn identity(
    store: Arc<dyn Store>,
    settings: &Settings,
    secret: Option<&Secret>,
) -> Result<RecordFormat, Failure> {
    let identity = Identity::in_namespace(&settings.namespace).scoped_by(&settings.scope)?;
    let identity = secret.cloned().into_iter().fold(identity, Identity::with_secret);
    let engine = Engine::builder(store).identity_change(IdentityChange::Refuse).open(identity).await?;
    let format = engine.record_format();
    engine.shut_down(Duration::ZERO).await;
    Ok(format)
}

fn clock(machine: Timestamp, store: Timestamp, report: &mut Report) {
    let apart = machine.since(store).max(store.since(machine));
    if apart > CLOCK_TOLERANCE {
        let text = format!(
            "the store's clock and this machine's are {apart:?} apart: set them by the same time server"
        );
        report.say(Level::Warning, "clock", text);
    } else {
        report.say(Level::Ok, "clock", "the store's and this machine's agree");
    }
}
