//! A running gateway: everything that `serve` and `demo` start, reload and stop.

mod receipts;
mod reload;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use onceward::http::IdempotencyLayer;
use onceward::plumbing::time::{instant, sleep};
use onceward::{
    Engine, Identity, Limits as EngineLimits, OpenError, RecordId,
    engine::{IdentityChange, IdentityRefused, Observation, Observer},
    record::RecordFormat,
    store::{Clock as _, SystemClock},
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use self::reload::{ReloadError, Reloaded};

use crate::Failure;
use crate::admin::{self, AdminState, Readiness, Tokens};
use crate::front::tls::{self, Certificate};
use crate::front::{Ended, Front};
use crate::gateway::Gateway;
use crate::proxy::Proxy;
use crate::settings::Settings;
use crate::stores::{self, OpenStore};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Tracer;

/// The shortest limit for the whole body of a keyed request. `body_timeout` limits its pauses; this limits a client that sends a
/// byte now and then.
const WHOLE_BODY: Duration = Duration::from_secs(60);

/// How long after its timeout an answer is still accepted. Meanwhile it holds a connection to the upstream, and an upstream that
/// hangs must not hold all of them for long.
const LINGER: Duration = Duration::from_secs(30);
/// The time to write the last answers after the last work has ended.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// A gateway that takes requests.
#[derive(Debug)]
pub struct Running {
    /// Where clients come in.
    pub address: SocketAddr,
    /// Where operators come in.
    pub admin: SocketAddr,
    settings: Settings,
    engine: Engine,
    store: OpenStore,
    gateway: Gateway,
    certificate: Option<tls::CurrentCertificate>,
    tokens: Arc<ArcSwap<Tokens>>,
    tracer: Tracer,
    readiness: Readiness,
    /// The stage that ends each listener.
    stage: watch::Sender<Stage>,
    front: JoinHandle<Ended>,
    operators: JoinHandle<()>,
    /// What is done for receipt tables in the background.
    keeping: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Open,
    Draining,
    /// Connections that are still open are cut off.
    Cutting,
    Over,
}

impl Running {
    /// Opens the store and starts both listeners. `observers` get every observation of the engine.
    pub async fn start(
        settings: Settings,
        identity_change: IdentityChange,
        observers: Vec<Arc<dyn Observer>>,
    ) -> Result<Self, Failure> {
        // Errors are found before the store is opened.
        let proxy = Proxy::new(&settings.upstream, &settings.forwarding, &settings.limits)?;
        let certificate = settings.tls.as_ref().map(Certificate::load).transpose()?;
        certificate.iter().for_each(warn_of_expiry);
        let certificate: Option<tls::CurrentCertificate> =
            certificate.map(|certificate| Arc::new(ArcSwap::from_pointee(certificate)));
        let tracer = Tracer::start(&settings.telemetry)?;
        let metrics = Metrics::new(settings.routes.names())?;
        let listener = listen("listen", settings.listen).await?;
        let operators = listen("admin.listen", settings.admin.listen).await?;
        let store = OpenStore::open(&settings.store).await?;
        store.measure(&metrics);
        let tokens = Arc::new(ArcSwap::from_pointee(Tokens::of(&settings)?));

        let identity = Identity::in_namespace(&settings.namespace).scoped_by(&settings.scope)?;
        let secret = store.secret(settings.secret.as_ref(), &identity).await?;
        let identity = secret.clone().into_iter().fold(identity, Identity::with_secret);
        if let Some(outdated) = settings.scope.outdated() {
            tracing::warn!("{}", stores::outdated_scope(&*store.store(), &identity, &outdated).await?);
        }
        let mut observers = observers;
        observers.push(metrics.observer());
        let mut builder = Engine::builder(metrics.measured(store.store()))
            .identity_change(identity_change)
            .observer(Arc::new(EachOf(observers)))
            .sweeping(store.sweeping(settings.expiry))
            .limits(engine_limits(&settings));
        if let Some(cache) = stores::cache(&settings).await {
            builder = builder.shared_cache(cache);
        }
        if let Some(format) = settings.store.record_format(settings.record_format) {
            builder = builder.record_format(format);
        }
        let finder = stores::receipt_finder(&settings)?;
        if let Some(finder) = finder.clone() {
            metrics.receipts(finder.clone());
            builder = builder.reconciler(finder);
        }
        let builder = builder.reconciling(settings.reconciling.clone());
        let engine = builder.open(identity).await.map_err(|error| open_error(error, &settings, &store))?;
        if let Some(warning) = store.secret_warning(secret.as_ref()) {
            tracing::warn!("{warning}");
        }
        if engine.record_format() < RecordFormat::Two {
            tracing::warn!(
                "records are written in format 1, which gateways of older versions read: set record_format = 2 once every \
                 gateway on this store has this version, so that operations are named by their window"
            );
        }
        let layer = layer(&engine, &settings)?;
        let gateway = Gateway::new(layer, proxy, metrics.clone(), tracer.clone());

        let (stage, reached) = watch::channel(Stage::Open);
        let keeping = finder.map(|finder| receipts::keep(finder, engine.clone(), reached.clone()));
        let readiness = Readiness::default();
        let (address, admin) = (listener.local_addr()?, operators.local_addr()?);
        let front = Front { limits: settings.limits.clone(), tls: certificate.clone() };
        let front = tokio::spawn(front.serve(
            listener,
            gateway.clone(),
            until(reached.clone(), Stage::Draining),
            until(reached.clone(), Stage::Cutting),
        ));
        let state = AdminState {
            engine: engine.clone(),
            metrics,
            readiness: readiness.clone(),
            tokens: tokens.clone(),
            listener: admin,
        };
        let operators = tokio::spawn(admin::serve(operators, state, until(reached, Stage::Over)));
        Ok(Self {
            address,
            admin,
            settings,
            engine,
            store,
            gateway,
            certificate,
            tokens,
            tracer,
            readiness,
            stage,
            front,
            operators,
            keeping,
        })
    }

    /// Stops: fails readiness first, then takes no new work, waits for running work within the drain time, and settles the rest
    /// as unknown. The admin listener ends last.
    pub async fn stop(mut self) {
        let (drain, begun) = (self.settings.limits.drain, instant());
        self.readiness.draining();
        self.stage.send_replace(Stage::Draining);
        // Work that still runs after that time is settled as unknown, and its clients get that answer.
        self.engine.shut_down(drain).await;
        // Requests without a key have the same time. Settling may have used it up, and the last answers must still be written.
        let left = drain.saturating_sub(instant().duration_since(begun)).max(LAST_ANSWERS);
        let ended = tokio::select! {
            biased;
            ended = &mut self.front => ended,
            () = sleep(left) => {
                self.stage.send_replace(Stage::Cutting);
                self.front.await
            }
        };
        match ended {
            Ok(Ended::Drained) => tracing::info!("stopping: every request was answered"),
            Ok(Ended::CutOff { connections }) => {
                tracing::warn!(
                    connections,
                    next = "raise limits.drain, and the time that the gateway has to stop, if requests take this long",
                    "stopping: connections were cut off because limits.drain was over; operations among them were logged as unknown"
                );
            }
            Err(error) => {
                tracing::error!(cause = %error, "the listener panicked, which is a bug: please report it")
            }
        }
        self.stage.send_replace(Stage::Over);
        if let Some(keeping) = self.keeping
            && let Err(error) = keeping.await
        {
            tracing::error!(cause = %error, "the task that keeps the receipts panicked, which is a bug: please report it");
        }
        if let Err(error) = self.operators.await {
            tracing::error!(cause = %error, "the admin listener panicked, which is a bug: please report it");
        }
        self.tracer.shut_down().await;
        self.store.close().await;
    }
}

/// Ends when a stage is reached, or when the sender is gone.
async fn until(mut reached: watch::Receiver<Stage>, stage: Stage) {
    drop(reached.wait_for(|found| *found >= stage).await);
}

async fn listen(key: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        format!("{key} = \"{address}\" cannot be listened on: {error}. Choose another address or port, or stop what uses it")
            .into()
    })
}

/// Logs a warning about a certificate that has expired or soon will.
fn warn_of_expiry(certificate: &Certificate) {
    if let Some(advice) = certificate.advice(SystemClock.now()) {
        tracing::warn!("{advice}");
    }
}

/// Adds to the engine's error what only the gateway knows: the flag that accepts a change, and where the secret lies.
fn open_error(error: OpenError, settings: &Settings, store: &OpenStore) -> Failure {
    let OpenError::Identity(refused) = &error else { return error.into() };
    match refused {
        IdentityRefused::Changed { .. } => {
            let advice = store.secret_advice(settings.secret.as_ref());
            format!("{error} (`onceward serve --accept-identity-change`){advice}").into()
        }
        IdentityRefused::NewNamespace { .. } => {
            format!("{error} (`onceward serve --accept-identity-change`)").into()
        }
        IdentityRefused::Full { .. } | IdentityRefused::Store(_) => error.into(),
    }
}

/// The engine's limits for these settings.
pub(crate) fn engine_limits(settings: &Settings) -> EngineLimits {
    let defaults = EngineLimits::default();
    let reply_bytes = defaults.reply_bytes.max(settings.limits.reply_bytes);
    defaults.linger(LINGER).cache_bytes(settings.limits.cache_bytes).reply_bytes(reply_bytes)
}

/// The layer of these settings.
pub(crate) fn layer(
    engine: &Engine,
    settings: &Settings,
) -> Result<IdempotencyLayer, onceward::http::LayerError> {
    IdempotencyLayer::new(engine.clone(), settings.scope.clone(), settings.routes.clone())?
        .held_bytes(settings.limits.buffered_bytes)?
        .body_patience(WHOLE_BODY.max(settings.limits.body_timeout.saturating_mul(2)))?
        .base_url(&settings.public_url)
}

/// Passes every observation to each of several observers.
struct EachOf(Vec<Arc<dyn Observer>>);

impl Observer for EachOf {
    fn observe(&self, route: &str, id: RecordId, what: Observation) {
        self.0.iter().for_each(|observer| observer.observe(route, id, what));
    }
}
