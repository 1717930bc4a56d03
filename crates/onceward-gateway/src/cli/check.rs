//! `onceward check`: everything that can be looked at before the gateway is started.

mod embedded;
mod loaders;
mod servers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onceward::store::Store;
use onceward::{
    Engine, Identity, OpenError, RecordId, Secret, Timestamp,
    engine::{IdentityChange, IdentityRefused},
    record::RecordFormat,
    store::{Clock as _, SystemClock},
};
use serde_json::json;

use crate::config::{ConfigErrors, Loaded, Sources};
use crate::proxy::{self, ExamineError, ProxyError};
use crate::settings::{Settings, StoreUrl};
use crate::stores;

/// Long enough for a far network, short enough for a person who waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than a slow answer can explain.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// What was found, in order.
#[derive(Debug, Default)]
pub(super) struct Report(Vec<Finding>);

#[derive(Debug)]
struct Finding {
    level: Level,
    about: &'static str,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Ok,
    Warning,
    Error,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl Report {
    pub(super) fn failed(&self) -> bool {
        self.0.iter().any(|finding| finding.level == Level::Error)
    }

    fn say(&mut self, level: Level, about: &'static str, text: impl Into<String>) {
        self.0.push(Finding { level, about, text: text.into() });
    }

    fn configuration(&mut self, errors: &ConfigErrors) {
        for problem in errors.problems() {
            self.say(Level::Error, "configuration", problem.to_string());
        }
    }

    pub(super) fn to_json(&self) -> String {
        let finding = |found: &Finding| json!({ "level": found.level.name(), "about": found.about, "text": found.text });
        let findings: Vec<_> = self.0.iter().map(finding).collect();
        format!("{:#}\n", json!({ "ok": !self.failed(), "findings": findings }))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { level, about, text } in &self.0 {
            writeln!(f, "{:8} {about}: {text}", level.name())?;
        }
        let count = |level| self.0.iter().filter(|finding| finding.level == level).count();
        match (count(Level::Error), count(Level::Warning)) {
            (0, 0) => writeln!(f, "All is well."),
            (0, warnings) => writeln!(f, "It can start. Worth a look: {warnings}."),
            (errors, _) => writeln!(f, "To be fixed: {errors}."),
        }
    }
}

/// Looks at everything. A configuration that is wrong is a finding too.
pub(super) async fn run(sources: &Sources) -> Report {
    let mut report = Report::default();
    let Loaded { settings, advice, .. } = match sources.load() {
        Ok(loaded) => loaded,
        Err(errors) => {
            report.configuration(&errors);
            return report;
        }
    };
    let name =
        sources.file().map_or("flags, variables and defaults".to_owned(), |path| path.display().to_string());
    report.say(Level::Ok, "configuration", format!("{name} can be used"));
    for problem in advice {
        report.say(Level::Warning, "configuration", problem.to_string());
    }
    loaders::run(&settings, &mut report).await;
    match &settings.store {
        // The configuration's advice has said what there is to say.
        StoreUrl::Memory => {}
        StoreUrl::Sqlite(path) => embedded::run(path, &settings, &mut report).await,
        StoreUrl::Postgres(url) => servers::postgres(url, &settings, &mut report).await,
        StoreUrl::Redis(url) => servers::redis(url, &settings, &mut report).await,
    }
    if let Some(url) = &settings.cache {
        servers::cache(url, &mut report).await;
    }
    upstream(&settings, &mut report).await;
    report
}

/// Where a store keeps its identity; asked for only to tell whether it has one.
const IDENTITY: RecordId = RecordId::from_bytes([0; 16]);

/// Whether the store knows the identity that it would be opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recognised {
    /// It is new.
    New,
    /// It does.
    Known,
    /// It does not, or cannot be asked. An error was reported.
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
        // An engine would now write its identity, and a check must change nothing.
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
            let advice = match &settings.store {
                StoreUrl::Sqlite(path) if changed => stores::secret_advice(settings.secret.as_ref(), path),
                StoreUrl::Sqlite(_) | StoreUrl::Memory | StoreUrl::Postgres(_) | StoreUrl::Redis(_) => {
                    String::new()
                }
            };
            report.say(Level::Error, "identity", format!("{error}{advice}"));
            Recognised::Refused
        }
    }
}

/// What format the store's records are written in, and what that means.
fn record_format(noted: RecordFormat, settings: &Settings, report: &mut Report) {
    let shared = match settings.store {
        StoreUrl::Memory | StoreUrl::Sqlite(_) => false,
        StoreUrl::Postgres(_) | StoreUrl::Redis(_) => true,
    };
    match settings.record_format.unwrap_or(if shared { noted } else { RecordFormat::Two }) {
        RecordFormat::Two => report.say(Level::Ok, "record_format", "records are written in format 2"),
        RecordFormat::One => report.say(
            Level::Warning,
            "record_format",
            "records are written in format 1, which gateways of older versions read: set record_format = 2 once every \
             gateway on this store has this version",
        ),
    }
}

/// Recognises the identity, and tells the format that the store notes.
async fn identity(
    store: Arc<dyn Store>,
    settings: &Settings,
    secret: Option<&Secret>,
) -> Result<RecordFormat, crate::Failure> {
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

/// Whether the upstream speaks HTTP/1.1. One that cannot be reached is only a warning: it may be started later.
async fn upstream(settings: &Settings, report: &mut Report) {
    let authority = &settings.upstream.authority;
    let examined = tokio::time::timeout(PATIENCE, proxy::examine(&settings.upstream, &settings.limits));
    let (level, text) = match examined.await {
        Ok(Ok(())) => (Level::Ok, format!("{authority} speaks HTTP/1.1")),
        Ok(Err(ExamineError::Upstream(error))) => (Level::Error, error.to_string()),
        Ok(Err(ExamineError::Proxy(ProxyError::OtherProtocol { speaks }))) => {
            (Level::Error, format!("{authority} {speaks}: no request would be taken"))
        }
        Ok(Err(ExamineError::Proxy(error @ ProxyError::Broken { .. }))) => {
            (Level::Warning, format!("{authority} took `OPTIONS *`, and did not answer in HTTP/1.1: {error}"))
        }
        Ok(Err(ExamineError::Proxy(error))) => (Level::Warning, error.to_string()),
        Err(_) => (Level::Warning, format!("{authority} did not answer `OPTIONS *` within {PATIENCE:?}")),
    };
    report.say(level, "upstream", text);
}
