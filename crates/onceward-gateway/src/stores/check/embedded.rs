//! A store in a file: whether it can be opened, its identity, and its secret.

use std::path::Path;
use std::sync::Arc;

use onceward::{Identity, Secret};
use onceward_sqlite::{OpenError, Options, SqliteStore};

use super::{Recognised, contents};
use crate::Failure;
use crate::check::{Level, Report};
use crate::settings::Settings;
use crate::stores::{USED_WITHOUT_SECRET, readable_by_all};

pub(super) async fn check(path: &Path, settings: &Settings, report: &mut Report) {
    if !path.exists() {
        return check_new(path, settings, report);
    }
    let opened = tokio::task::spawn_blocking({
        let path = path.to_owned();
        move || SqliteStore::open(path, Options::default())
    });
    let store = match opened.await {
        Ok(Ok(store)) => store,
        Ok(Err(error @ OpenError::InUse { .. })) => {
            let text = format!("{error}. If that is this gateway, all is well; its content was not checked");
            return report.say(Level::Warning, "store", text);
        }
        Ok(Err(error)) => return report.say(Level::Error, "store", error.to_string()),
        Err(error) => return report.say(Level::Error, "store", format!("opening it failed: {error}")),
    };
    report.say(Level::Ok, "store", format!("{path:?} can be opened and locked; it has {}", size(path)));
    for text in readable_by_all(path) {
        report.say(Level::Warning, "store", text);
    }
    damage(&store, report).await;
    content(&store, settings, report).await;
    store.close().await;
}

/// Whether the database is damaged: if an index has lost an id, its key would be taken for new.
async fn damage(store: &SqliteStore, report: &mut Report) {
    let name = store.path().display().to_string();
    let found = tokio::task::spawn_blocking({
        let store = store.clone();
        move || store.damage()
    });
    match found.await {
        Ok(Ok(faults)) if faults.is_empty() => {
            report.say(Level::Ok, "store", format!("{name} is not damaged"))
        }
        Ok(Ok(faults)) => {
            let text = format!(
                "{name} is damaged: {}. A key may be taken for new, and execute again: do not start the gateway. Copy the file, \
                 then rebuild its indexes (`sqlite3 {name} REINDEX`) and check again, or restore a backup",
                faults.join("; ")
            );
            report.say(Level::Error, "store", text);
        }
        Ok(Err(error)) => report.say(Level::Error, "store", error.to_string()),
        Err(error) => report.say(Level::Error, "store", format!("looking for damage failed: {error}")),
    }
}

fn check_new(path: &Path, settings: &Settings, report: &mut Report) {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let text = format!("{path:?} cannot be made, because {parent:?} is no directory: create it first");
        return report.say(Level::Error, "store", text);
    }
    report.say(Level::Ok, "store", format!("{path:?} is not there yet, and will be made at the first start"));
    if let Some(outdated) = settings.scope.outdated() {
        report.say(Level::Error, "scope", outdated.to_string());
    }
    let secret = SqliteStore::secret_path(path);
    match (&settings.secret, secret.exists()) {
        (Some(_), _) => {}
        (None, true) => report.say(Level::Ok, "secret", format!("{secret:?} is there, and will be used")),
        (None, false) => report.say(Level::Ok, "secret", will_be_made(&secret)),
    }
}

fn will_be_made(secret: &Path) -> String {
    format!("none is configured: {secret:?} will be made at the first start; back it up with the store")
}

async fn content(store: &SqliteStore, settings: &Settings, report: &mut Report) {
    let path = SqliteStore::secret_path(store.path());
    let secret = match &settings.secret {
        Some(secret) => Some(secret.clone()),
        None => match own_secret(store, settings).await {
            Ok(secret) => secret,
            Err(error) => return report.say(Level::Error, "secret", error.to_string()),
        },
    };
    let kept = settings.secret.is_none();
    if let Some(advice) = SqliteStore::secret_advice(store.path()).filter(|_| kept) {
        report.say(Level::Warning, "secret", advice);
    }
    let recognised = contents(Arc::new(store.clone()), settings, secret.as_ref(), report).await;
    match (recognised, &secret) {
        (Recognised::New | Recognised::Known, Some(_)) if kept => {
            report.say(
                Level::Ok,
                "secret",
                format!("{path:?} is there, and is used; back it up with the store"),
            );
        }
        (Recognised::New, None) => report.say(Level::Ok, "secret", will_be_made(&path)),
        (Recognised::Known, None) => report.say(Level::Warning, "secret", USED_WITHOUT_SECRET),
        // The secret is configured, or a part of the identity's error.
        (Recognised::New | Recognised::Known, Some(_)) | (Recognised::Refused, _) => {}
    }
}

/// The secret beside the store.
async fn own_secret(store: &SqliteStore, settings: &Settings) -> Result<Option<Secret>, Failure> {
    let identity = Identity::in_namespace(&settings.namespace).scoped_by(&settings.scope)?;
    Ok(store.secret(&identity).await?)
}

/// The size of the database and its log.
fn size(path: &Path) -> String {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    let total = bytes(path) + bytes(Path::new(&log));
    if total < 10 << 20 { format!("{} KiB", total.div_ceil(1 << 10)) } else { format!("{} MiB", total >> 20) }
}
