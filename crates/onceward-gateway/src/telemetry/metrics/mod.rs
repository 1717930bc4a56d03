//! Metrics: counts since the start, and the current state.
//!
//! They are OpenTelemetry instruments, exposed as Prometheus text. On the path of a request nothing is done but adding to
//! an atomic number: the counters are observable instruments, which are read when metrics are scraped. There is no observable
//! histogram, so the histograms are Prometheus' own, in the same registry; OpenTelemetry's would look an attribute set
//! up under a lock for every request.

mod backlog;
mod counter;
mod measured_store;
mod receipts;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use onceward::http::Disposition;
use onceward::receipts::ReceiptFinder;
use onceward::store::Store;
use onceward::{
    Engine, RecordId,
    engine::{FindResult, Observation, Observer},
};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter, MeterProvider as _};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Histogram, HistogramOpts, HistogramVec, Registry, TextEncoder};

use self::backlog::Backlog;
use self::counter::{COUNTERS, Counted, counted_as};

/// The label of every route that was not configured at the start.
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

impl From<Disposition> for Handled {
    fn from(disposition: Disposition) -> Self {
        match disposition {
            Disposition::Passed | Disposition::Published | Disposition::Observed => Self::Passed,
            Disposition::Executed | Disposition::Released => Self::Executed,
            Disposition::Replayed => Self::Replayed,
            Disposition::Refused(_) | Disposition::Unanswered(_) => Self::Refused,
            Disposition::Unprotected => Self::Unprotected,
        }
    }
}

/// Everything that is measured. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Metrics {
    instruments: Arc<Instruments>,
}

struct Instruments {
    routes: Routes,
    /// For each route, a number for each counter.
    counts: Box<[[AtomicU64; COUNTERS.len()]]>,
    /// For each route, a number for each result of a find.
    finds: Box<[[AtomicU64; FindResult::ALL.len()]]>,
    in_flight: AtomicI64,
    receipts: OnceLock<Arc<ReceiptFinder>>,
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

/// The routes that were configured at the start, each with its index.
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
    /// Statements that were sent to a server.
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
        let instruments = Arc::new(Instruments {
            counts: names.iter().map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            finds: names.iter().map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            in_flight: AtomicI64::new(0),
            receipts: OnceLock::new(),
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
            .with_registry(instruments.registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()?;
        let provider = SdkMeterProvider::builder().with_reader(exporter).build();
        instruments.instrument(&provider.meter("onceward"));
        // The cell is empty: nothing else has it yet.
        drop(instruments.provider.set(provider));
        Ok(Self { instruments })
    }

    /// An observer for an engine, which counts every observation.
    pub fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(self.clone())
    }

    /// A request was answered.
    pub fn request(&self, route: &str, handled: Handled, seconds: f64) {
        self.instruments.requests[self.instruments.routes.place(route)][handled as usize].observe(seconds);
    }

    /// The upstream answered, or failed to.
    pub fn upstream(&self, route: &str, seconds: f64) {
        self.instruments.upstream[self.instruments.routes.place(route)].observe(seconds);
    }

    /// A request has come in, and is in flight until this is dropped.
    pub fn in_flight(&self) -> InFlight {
        self.instruments.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self.clone())
    }

    /// The same store, with its calls measured.
    pub fn measured(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(measured_store::Measured { store, metrics: self.clone() })
    }

    /// Sets the function that reads the size of batches. Only the first call counts.
    pub fn batches(&self, read: impl Fn() -> Batches + Send + Sync + 'static) {
        drop(self.instruments.batches.set(Box::new(read)));
    }

    /// Sets what finds outcomes out by receipts, whose state is shown. Only the first call counts.
    pub fn receipts(&self, finder: Arc<ReceiptFinder>) {
        drop(self.instruments.receipts.set(finder));
    }

    /// Counts the unknown outcomes in the store, with bounded work and a short timeout. Call it before [`text`](Self::text).
    pub async fn count_unknown(&self, engine: &Engine) {
        self.instruments.backlog.count(engine, &self.instruments.routes).await;
    }

    /// Everything, as Prometheus reads it.
    pub fn text(&self) -> String {
        let families = self.instruments.registry.gather();
        TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
            tracing::error!(cause = %error, "the metrics could not be written, which is a bug: please report it");
            String::new()
        })
    }

    fn swapped(&self, took: Duration) {
        self.instruments.swaps.observe(took.as_secs_f64());
    }

    fn loaded(&self, took: Duration) {
        self.instruments.loads.observe(took.as_secs_f64());
    }
}

impl Observer for Metrics {
    fn observe(&self, route: &str, _: RecordId, what: Observation) {
        let place = self.instruments.routes.place(route);
        let count = match counted_as(what) {
            Counted::As(counter) => &self.instruments.counts[place][counter as usize],
            Counted::Find(result) => &self.instruments.finds[place][result as usize],
        };
        count.fetch_add(1, Ordering::Relaxed);
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
        self.0.instruments.in_flight.fetch_sub(1, Ordering::Relaxed);
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

impl Instruments {
    /// Registers everything that is read when metrics are scraped.
    fn instrument(self: &Arc<Self>, meter: &Meter) {
        for (counter, name, help) in COUNTERS {
            meter
                .u64_observable_counter(name)
                .with_description(help)
                .with_callback(self.on_scrape(move |all, scrape| {
                    for (counts, label) in all.counts.iter().zip(&all.routes.labels) {
                        scrape.observe(counts[counter as usize].load(Ordering::Relaxed), label);
                    }
                }))
                .build();
        }
        self.instrument_finds(meter);
        self.instrument_receipts(meter);
        for (name, help, read) in backlog::GAUGES {
            meter
                .f64_observable_gauge(name)
                .with_description(help)
                .with_callback(self.on_scrape(move |all, scrape| {
                    for (value, label) in all.backlog.read(read).into_iter().zip(&all.routes.labels) {
                        scrape.observe(value, label);
                    }
                }))
                .build();
        }
        meter
            .i64_observable_gauge("api_idempotency_in_flight")
            .with_description("Requests that are being answered")
            .with_callback(
                self.on_scrape(|all, scrape| scrape.observe(all.in_flight.load(Ordering::Relaxed), &[])),
            )
            .build();
        self.instrument_batches(meter);
    }

    /// One counter for all finds, so that its rates can be compared by result.
    fn instrument_finds(self: &Arc<Self>, meter: &Meter) {
        let names = &self.routes.names;
        let label = |route: &str, result: FindResult| {
            [KeyValue::new("route", route.to_owned()), KeyValue::new("result", result.name())]
        };
        let labels: Vec<_> =
            names.iter().map(|route| FindResult::ALL.map(|result| label(route, result))).collect();
        meter
            .u64_observable_counter("api_idempotency_reconcile_finds")
            .with_description("Finds that ended, by their result")
            .with_callback(self.on_scrape(move |all, scrape| {
                for (counts, labels) in all.finds.iter().zip(&labels) {
                    for (count, label) in counts.iter().zip(labels) {
                        scrape.observe(count.load(Ordering::Relaxed), label);
                    }
                }
            }))
            .build();
    }

    fn instrument_batches(self: &Arc<Self>, meter: &Meter) {
        type Read = fn(Batches) -> u64;
        let counters: [(&str, &str, Read); 3] = [
            ("api_idempotency_store_batches", "Commits of the store", |batches| batches.batches),
            ("api_idempotency_store_writes", "Writes that the store's commits answered", |batches| {
                batches.writes
            }),
            (
                "api_idempotency_store_statements",
                "Statements that were sent to the store's server",
                |batches| batches.statements,
            ),
        ];
        for (name, help, read) in counters {
            meter
                .u64_observable_counter(name)
                .with_description(help)
                .with_callback(
                    self.on_scrape(move |all, scrape| scrape.observe(read(all.read_batches()), &[])),
                )
                .build();
        }
        meter
            .f64_observable_gauge("api_idempotency_batch_size")
            .with_description("Writes in one commit of the store, on average since the start")
            .with_callback(self.on_scrape(|all, scrape| {
                let Batches { batches, writes, .. } = all.read_batches();
                // Before the first commit there is no average, and the gauge shows 0.
                scrape.observe(writes as f64 / batches.max(1) as f64, &[]);
            }))
            .build();
    }

    /// A callback that holds the instruments weakly, because they hold the callback.
    fn on_scrape<T>(
        self: &Arc<Self>,
        observe: impl Fn(&Self, &dyn AsyncInstrument<T>) + Send + Sync + 'static,
    ) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync + 'static {
        let instruments = Arc::downgrade(self);
        move |scrape| {
            if let Some(instruments) = instruments.upgrade() {
                observe(&instruments, scrape);
            }
        }
    }

    fn read_batches(&self) -> Batches {
        self.batches.get().map_or_else(Batches::default, |read| read())
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics")
            .field("routes", &self.instruments.routes.names.len())
            .finish_non_exhaustive()
    }
}
