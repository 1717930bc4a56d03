//! `onceward check`: everything that can be looked at before the gateway is started.

mod servers;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onceward::store::Store;
use onceward::{
    Clock as _, Engine, EngineOptions, Identity, IdentityChange, RecordFormat, RecordId, SystemClock,
    Timestamp,
};
use onceward_sqlite::{OpenError, Options, SqliteStore};
use serde_json::json;

use crate::config::{ConfigErrors, Sources};
use crate::proxy::{self, ExamineError, ProxyError};
use crate::settings::{Settings, StoreUrl};

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
    let (settings, advice) = match (sources.load(), sources.advice()) {
        (Ok(loaded), Ok(advice)) => (loaded.settings, advice),
        (Err(errors), _) | (_, Err(errors)) => {
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
    files(&settings, &mut report);
    match &settings.store {
        // The configuration's advice has said what there is to say.
        StoreUrl::Memory => {}
        StoreUrl::Sqlite(path) => sqlite(path, &settings, &mut report).await,
        StoreUrl::Postgres(url) => servers::postgres(url, &settings, &mut report).await,
        StoreUrl::Redis(url) => servers::redis(url, &settings, &mut report).await,
    }
    if let Some(url) = &settings.cache {
        servers::cache(url, &mut report).await;
    }
    upstream(&settings, &mut report).await;
    report
}

fn files(settings: &Settings, report: &mut Report) {
    let tls =
        settings.tls.iter().flat_map(|tls| [("tls.certificate", &tls.certificate), ("tls.key", &tls.key)]);
    for (key, path) in tls.chain(settings.upstream.ca.iter().map(|path| ("upstream_tls.ca", path))) {
        match std::fs::read_to_string(path) {
            Ok(text) if text.contains("-----BEGIN ") => {
                report.say(Level::Ok, "tls", format!("{key} can be read"))
            }
            Ok(_) => report.say(Level::Error, "tls", format!("{key} = {path:?} is no PEM file")),
            Err(error) => {
                report.say(Level::Error, "tls", format!("{key} = {path:?} cannot be read: {error}"))
            }
        }
    }
}

async fn sqlite(path: &Path, settings: &Settings, report: &mut Report) {
    if !path.exists() {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if parent.is_dir() {
            report.say(
                Level::Ok,
                "store",
                format!("{path:?} is not there yet, and will be made at the first start"),
            );
        } else {
            let text =
                format!("{path:?} cannot be made, because {parent:?} is no directory: create it first");
            report.say(Level::Error, "store", text);
        }
        return;
    }
    let options = Options::default();
    let opened = tokio::task::spawn_blocking({
        let path = path.to_owned();
        move || SqliteStore::open(path, options)
    });
    let store = match opened.await {
        Ok(Ok(store)) => store,
        Ok(Err(error @ OpenError::InUse { .. })) => {
            let text =
                format!("{error}. If that is this gateway, all is well; what is in it was not looked at");
            return report.say(Level::Warning, "store", text);
        }
        Ok(Err(error)) => return report.say(Level::Error, "store", error.to_string()),
        Err(error) => return report.say(Level::Error, "store", format!("opening it failed: {error}")),
    };
    report.say(Level::Ok, "store", format!("{path:?} can be opened and locked; it has {}", size(path)));
    contents(Arc::new(store.clone()), settings, report).await;
    store.close().await;
}

/// Where a store keeps its identity; asked for only to tell whether it has one.
const IDENTITY: RecordId = RecordId::from_bytes([0; 16]);

async fn contents(store: Arc<dyn Store>, settings: &Settings, report: &mut Report) {
    let seen = match store.load(IDENTITY).await {
        Ok(seen) => seen,
        Err(error) => return report.say(Level::Error, "store", error.to_string()),
    };
    clock(SystemClock.now(), seen.now, report);
    if seen.record.is_none() {
        // An engine would now write its identity, and a check must change nothing.
        return report.say(Level::Ok, "identity", "the store is new, and takes this one at the first start");
    }
    match identity(store, settings).await {
        Ok(format) => {
            report.say(
                Level::Ok,
                "identity",
                "namespace, scope and secret are those that the store was used with",
            );
            record_format(format, settings, report);
        }
        Err(text) => report.say(Level::Error, "identity", text),
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
async fn identity(store: Arc<dyn Store>, settings: &Settings) -> Result<RecordFormat, String> {
    let identity =
        Identity::new(&settings.namespace, &settings.scope.to_string()).map_err(|error| error.to_string())?;
    let identity = match &settings.secret {
        Some(secret) => identity.with_secret(secret.clone()),
        None => identity,
    };
    let options =
        EngineOptions::new().map_err(|error| error.to_string())?.identity_change(IdentityChange::Refuse);
    let engine = Engine::open(store, identity, options).await.map_err(|error| error.to_string())?;
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

/// Of the database and its log.
fn size(path: &Path) -> String {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    let total = bytes(path) + bytes(Path::new(&log));
    if total < 10 << 20 { format!("{} KiB", total.div_ceil(1 << 10)) } else { format!("{} MiB", total >> 20) }
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
