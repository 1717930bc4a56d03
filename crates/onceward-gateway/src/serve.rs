//! `onceward serve`: runs the gateway until SIGTERM or SIGINT, and reloads its configuration on SIGHUP.

use std::io::{self, Write as _};

use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;
use crate::config::{Loaded, Problem, Sources};
use crate::running::Running;
use crate::settings::Settings;
use crate::telemetry::logs;

/// Serves until SIGTERM or SIGINT. SIGHUP reloads routes, certificate and tokens.
pub async fn run(loaded: Loaded) -> Result<(), Failure> {
    let Loaded { settings, advice, sources, identity_change } = loaded;
    logs::start(&settings.telemetry)?;
    warn(&advice);
    // Registered before the first request, so that no signal is missed.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    log_start(&settings);
    let mut running = Running::start(settings, identity_change, Vec::new()).await?;
    announce(&format!("listening on {scheme}://{}\nadmin on http://{}\n", running.address, running.admin));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => reload(&mut running, &sources),
        }
    }
    tracing::info!("stopping: what runs is finished first");
    // A second signal ends the process at once.
    tokio::select! {
        () = running.stop() => Ok(()),
        _ = terminate.recv() => Err("stopped at once: what was under way is unknown when its lease lapses".into()),
        _ = interrupt.recv() => Err("stopped at once: what was under way is unknown when its lease lapses".into()),
    }
}

/// Prints the listeners' addresses to standard output, for scripts that wait for them. A closed output is only a warning;
/// `println!` would panic.
fn announce(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::warn!(%error, "the addresses of the listeners could not be printed");
    }
}

/// Logs the settings that an operator checks first.
fn log_start(settings: &Settings) {
    tracing::info!(
        upstream = %settings.upstream.authority,
        store = ?settings.store,
        scope = %settings.scope,
        namespace = settings.namespace,
        "starting"
    );
}

/// Logs the same warnings that `onceward check` prints.
fn warn(advice: &[Problem]) {
    for problem in advice {
        tracing::warn!("{problem}");
    }
}

/// Reloads what can change while the gateway runs, all or nothing, and logs the result.
fn reload(running: &mut Running, sources: &Sources) {
    let loaded = match sources.load() {
        Ok(loaded) => loaded,
        Err(errors) => {
            return tracing::error!(error = %errors, "nothing was reloaded: the configuration is wrong");
        }
    };
    match running.reload(loaded.settings) {
        Ok(reloaded) => {
            warn(&loaded.advice);
            tracing::info!("{reloaded}");
        }
        Err(error) => tracing::error!(%error, "nothing was reloaded"),
    }
}
