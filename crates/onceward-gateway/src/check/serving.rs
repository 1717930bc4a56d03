//! What `onceward serve` makes from the configuration before it opens the store or listens, made here in the same way.

use std::sync::Arc;

use onceward::reconcile::{Finding, Plan, ReconcileFuture, Reconciler, UnknownOperation};
use onceward::{
    Engine, Identity, MemoryStore,
    store::{Clock as _, SystemClock},
};

use super::{Level, Report};
use crate::Failure;
use crate::admin::token;
use crate::front::tls::Certificate;
use crate::gateway::RequestBody;
use crate::proxy::Proxy;
use crate::running;
use crate::settings::{ReceiptRoute, Scheme, Settings};
use crate::telemetry::logs;
use crate::telemetry::traces::Tracer;

pub(super) async fn run(settings: &Settings, report: &mut Report) {
    if let Some(tls) = &settings.tls {
        match Certificate::load(tls) {
            Ok(certificate) => {
                report.say(Level::Ok, "tls", format!("{certificate} and its key can be used"));
                if let Some(advice) = certificate.advice(SystemClock.now()) {
                    report.say(Level::Warning, "tls", advice);
                }
            }
            Err(error) => report.say(Level::Error, "tls", error.to_string()),
        }
    }
    match Proxy::<RequestBody>::new(&settings.upstream, &settings.forwarding, &settings.limits) {
        Ok(_) if settings.upstream.scheme == Scheme::Https => {
            report.say(Level::Ok, "upstream_tls", "the certificates to trust can be read");
        }
        Ok(_) => {}
        Err(error) => report.say(Level::Error, "upstream", error.to_string()),
    }
    if let Err(error) = logs::subscriber(&settings.telemetry, std::io::sink) {
        report.say(Level::Error, "logs", error.to_string());
    }
    match Tracer::start(&settings.telemetry) {
        Ok(tracer) => tracer.shut_down().await,
        Err(error) => report.say(Level::Error, "traces", error.to_string()),
    }
    if let Err(error) = layer(settings).await {
        report.say(Level::Error, "routes", error.to_string());
    }
    if settings.admin.tokens.is_empty() && token::path(settings).is_none() {
        report.say(Level::Warning, "tokens", token::NO_PLACE);
    }
}

/// On an engine that is thrown away: the store's own may be in use, or not be there yet.
async fn layer(settings: &Settings) -> Result<(), Failure> {
    let identity = Identity::in_namespace(&settings.namespace).scoped_by(&settings.scope)?;
    let identity = settings.secret.clone().into_iter().fold(identity, Identity::with_secret);
    let builder = Engine::builder(Arc::new(MemoryStore::default())).limits(running::engine_limits(settings));
    let engine = builder.reconciler(Arc::new(Planned(settings.receipts.clone()))).open(identity).await?;
    let made = running::layer(&engine, settings);
    engine.shut_down(std::time::Duration::ZERO).await;
    made?;
    Ok(())
}

/// A reconciler for the routes with receipts that asks nothing, because a check must change nothing.
struct Planned(Vec<ReceiptRoute>);

impl Reconciler for Planned {
    fn find<'a>(&'a self, _: &'a UnknownOperation) -> ReconcileFuture<'a, Result<Finding, String>> {
        Box::pin(async { Err("a check asks nothing".to_owned()) })
    }

    fn plan(&self, route: &str) -> Plan {
        let known = self.0.iter().find(|known| known.route == route);
        known.map_or(Plan::Leave, |known| Plan::Find(known.terms))
    }
}
