//! Metrics: what happened since the start, and how things stand now.
//!
//! They are OpenTelemetry instruments, exposed as Prometheus text. On the path of a request nothing is done but adding to
//! an atomic number: the counters are observable instruments, which are read when somebody asks. There is no observable
//! histogram, so the histograms are Prometheus' own, in the same registry; OpenTelemetry's would look an attribute set
//! up under a lock for every request.

mod backlog;
mod counter;
mod store;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use onceward::http::How;
use onceward::store::Store;
use onceward::{
    Engine, RecordId,
    engine::{Observation, Observer},
};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Meter, MeterProvider as _};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Histogram, HistogramOpts, HistogramVec, Registry, TextEncoder};

use self::backlog::Backlog;
use self::counter::{COUNTERS, counter_of};

/// Where everything is counted whose route is not among those that were named at the start.
pub const OTHER: &str = "other";
/// The route of operations that were claimed through the operations API.
pub const OPERATIONS: &str = "operations";

/// A replay from memory takes tens of microseconds, and a timeout is seldom longer than a minute.
const SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10.0, 60.0];

/// How a request was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// It was not protected: no key, or not a method or route for one.
    Passed,
    /// The work was done now.
    Executed,
    /// It got the first answer.
    Replayed,
    /// It was refused, or its outcome is not known.
    Refused,
    /// The store was away, and the route lets requests through then.
    Unprotected,
}

impl Handled {
    const ALL: [Self; 5] = [Self::Passed, Self::Executed, Self::Replayed, Self::Refused, Self::Unprotected];

    /// As it stands in the label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Executed => "executed",
            Self::Replayed => "replayed",
            Self::Refused => "refused",
            Self::Unprotected => "unprotected",
        }
    }
}

impl From<How> for Handled {
    fn from(how: How) -> Self {
        match how {
            How::Passed | How::Published | How::Observed => Self::Passed,
            How::Executed | How::Released => Self::Executed,
            How::Replayed => Self::Replayed,
            How::Refused(_) | How::Unanswered(_) => Self::Refused,
            How::Unprotected => Self::Unprotected,
        }
    }
}

/// Everything that is measured. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    routes: Routes,
    /// For each route, a number for each counter.
    counts: Box<[[AtomicU64; COUNTERS.len()]]>,
    in_flight: AtomicI64,
    backlog: Backlog,
    requests: Box<[[Histogram; Handled::ALL.len()]]>,
    upstream: Box<[Histogram]>,
    swaps: Histogram,
    loads: Histogram,
    batches: OnceLock<Box<dyn Fn() -> Batches + Send + Sync>>,
    registry: Registry,
    /// Instruments work only as long as it lives.
    provider: OnceLock<SdkMeterProvider>,
}

/// The routes that were named at the start, each with its place.
struct Routes {
    /// In order. They are few: to look one up takes less than to hash it.
    names: Box<[Box<str>]>,
    labels: Box<[[KeyValue; 1]]>,
    other: usize,
}

/// What a store with group commit has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Batches {
    /// Commits.
    pub batches: u64,
    /// Writes that were answered by them.
    pub writes: u64,
    /// Statements that were sent to a server, for whatever reason.
    pub statements: u64,
}

/// Metrics that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// A histogram was refused.
    #[error("a histogram could not be registered: {0}")]
    Histogram(#[from] prometheus::Error),
    /// The exporter was refused.
    #[error("the Prometheus exporter could not be registered: {0}")]
    Exporter(#[from] opentelemetry_sdk::error::OTelSdkError),
}

impl Metrics {
    /// Metrics for these routes. Every counter begins at 0 for each, so that the first event is already a rate.
    pub fn new<'a>(routes: impl Iterator<Item = &'a str>) -> Result<Self, MetricsError> {
        let names: BTreeSet<&str> =
            routes.filter(|route| !route.is_empty()).chain([OPERATIONS, OTHER]).collect();
        let registry = Registry::new();
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            let options =
                HistogramOpts::new(format!("api_idempotency_{name}"), help).buckets(SECONDS.to_vec());
            let histogram = HistogramVec::new(options, labels)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let requests = histogram(
            "request_seconds",
            "How long requests took, by how they were handled",
            &["route", "handled"],
        )?;
        let upstream = histogram("upstream_seconds", "How long the upstream took to answer", &["route"])?;
        let swaps = histogram("store_swap_seconds", "How long writes to the store took", &[])?;
        let loads = histogram("store_load_seconds", "How long reads from the store took", &[])?;
        let shared = Arc::new(Shared {
            counts: names.iter().map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            in_flight: AtomicI64::new(0),
            backlog: Backlog::new(names.len()),
            requests: names
                .iter()
                .map(|route| {
                    Handled::ALL.map(|handled| requests.with_label_values(&[*route, handled.name()]))
                })
                .collect(),
            upstream: names.iter().map(|route| upstream.with_label_values(&[*route])).collect(),
            swaps: swaps.with_label_values::<&str>(&[]),
            loads: loads.with_label_values::<&str>(&[]),
            routes: Routes::new(names),
            batches: OnceLock::new(),
            provider: OnceLock::new(),
            registry,
        });
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(shared.registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()?;
        let provider = SdkMeterProvider::builder().with_reader(exporter).build();
        shared.instrument(&provider.meter("onceward"));
        // The cell was made a few lines above, and nobody else has seen it.
        drop(shared.provider.set(provider));
        Ok(Self { shared })
    }

    /// What to give to an engine: it counts everything.
    pub fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(self.clone())
    }

    /// A request was answered.
    pub fn request(&self, route: &str, handled: Handled, seconds: f64) {
        self.shared.requests[self.shared.routes.place(route)][handled as usize].observe(seconds);
    }

    /// The upstream answered, or failed to.
    pub fn upstream(&self, route: &str, seconds: f64) {
        self.shared.upstream[self.shared.routes.place(route)].observe(seconds);
    }

    /// A request has come in, and is in flight until this is dropped.
    pub fn in_flight(&self) -> InFlight {
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self.clone())
    }

    /// The same store, with its calls measured.
    pub fn measured(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(store::Measured { store, metrics: self.clone() })
    }

    /// Tells where to read the size of batches from. The first one stays.
    pub fn batches(&self, read: impl Fn() -> Batches + Send + Sync + 'static) {
        drop(self.shared.batches.set(Box::new(read)));
    }

    /// Looks at the unknown outcomes in the store: bounded work, soon given up, for whoever is about to ask for the text.
    pub async fn look(&self, engine: &Engine) {
        self.shared.backlog.look(engine, &self.shared.routes).await;
    }

    /// Everything, as Prometheus reads it.
    pub fn text(&self) -> String {
        let families = self.shared.registry.gather();
        TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
            tracing::error!(cause = %error, "the metrics could not be written, which is a bug: please report it");
            String::new()
        })
    }

    fn swapped(&self, took: Duration) {
        self.shared.swaps.observe(took.as_secs_f64());
    }

    fn loaded(&self, took: Duration) {
        self.shared.loads.observe(took.as_secs_f64());
    }
}

impl Observer for Metrics {
    fn observe(&self, route: &str, _: RecordId, what: Observation) {
        let place = self.shared.routes.place(route);
        self.shared.counts[place][counter_of(what) as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A request in flight.
#[must_use = "the request is in flight only as long as this lives"]
pub struct InFlight(Metrics);

impl InFlight {
    /// Where it is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Routes {
    fn new(names: BTreeSet<&str>) -> Self {
        let labels = names.iter().map(|name| [KeyValue::new("route", (*name).to_owned())]).collect();
        // A set is in order.
        let names: Box<[Box<str>]> = names.into_iter().map(Box::from).collect();
        let mut routes = Self { names, labels, other: 0 };
        routes.other = routes.place(OTHER);
        routes
    }

    fn place(&self, route: &str) -> usize {
        self.names.binary_search_by(|name| (**name).cmp(route)).unwrap_or(self.other)
    }
}

impl Shared {
    /// Sets up everything that is read when somebody asks. Callbacks hold this weakly: it holds them.
    fn instrument(self: &Arc<Self>, meter: &Meter) {
        for (counter, name, help) in COUNTERS {
            let shared = Arc::downgrade(self);
            meter
                .u64_observable_counter(name)
                .with_description(help)
                .with_callback(move |seen| {
                    let Some(shared) = shared.upgrade() else { return };
                    for (counts, label) in shared.counts.iter().zip(&shared.routes.labels) {
                        seen.observe(counts[counter as usize].load(Ordering::Relaxed), label);
                    }
                })
                .build();
        }
        for (name, help, read) in backlog::GAUGES {
            let shared = Arc::downgrade(self);
            meter
                .f64_observable_gauge(name)
                .with_description(help)
                .with_callback(move |seen| {
                    let Some(shared) = shared.upgrade() else { return };
                    for (value, label) in shared.backlog.read(read).into_iter().zip(&shared.routes.labels) {
                        seen.observe(value, label);
                    }
                })
                .build();
        }
        let shared = Arc::downgrade(self);
        meter
            .i64_observable_gauge("api_idempotency_in_flight")
            .with_description("Requests that are being answered")
            .with_callback(move |seen| {
                let Some(shared) = shared.upgrade() else { return };
                seen.observe(shared.in_flight.load(Ordering::Relaxed), &[]);
            })
            .build();
        self.instrument_batches(meter);
    }

    fn instrument_batches(self: &Arc<Self>, meter: &Meter) {
        type Read = fn(Batches) -> u64;
        let counters: [(&str, &str, Read); 3] = [
            ("api_idempotency_store_batches", "Commits of the store", |seen| seen.batches),
            ("api_idempotency_store_writes", "Writes that the store's commits answered", |seen| seen.writes),
            ("api_idempotency_store_statements", "Statements that were sent to the store's server", |seen| {
                seen.statements
            }),
        ];
        for (name, help, read) in counters {
            let shared = Arc::downgrade(self);
            meter
                .u64_observable_counter(name)
                .with_description(help)
                .with_callback(move |seen| {
                    let Some(shared) = shared.upgrade() else { return };
                    seen.observe(read(shared.read_batches()), &[]);
                })
                .build();
        }
        let shared = Arc::downgrade(self);
        meter
            .f64_observable_gauge("api_idempotency_batch_size")
            .with_description("Writes in one commit of the store, on average since the start")
            .with_callback(move |seen| {
                let Some(shared) = shared.upgrade() else { return };
                let Batches { batches, writes, .. } = shared.read_batches();
                // Before the first commit there is no average, and a gauge has no better word for it.
                seen.observe(writes as f64 / batches.max(1) as f64, &[]);
            })
            .build();
    }

    fn read_batches(&self) -> Batches {
        self.batches.get().map_or_else(Batches::default, |read| read())
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("routes", &self.shared.routes.names.len()).finish_non_exhaustive()
    }
}
