//! Whether the receipts of each route prove anything, as this process saw it last.

use std::sync::Arc;

use onceward::receipts::RouteStatus;
use opentelemetry::metrics::Meter;

use super::Instruments;

type Gauge = (&'static str, &'static str, fn(&RouteStatus) -> bool);

const GAUGES: [Gauge; 2] = [
    (
        "api_idempotency_receipt_voids_suspended",
        "1 while nothing is released on a route with receipts, because a request was answered as done without one",
        |status| status.suspended,
    ),
    (
        "api_idempotency_receipt_voids_controlled",
        "1 once a handler of a route with receipts was seen to write one; before that nothing is released",
        |status| status.controlled,
    ),
];

impl Instruments {
    /// Routes without receipts have no sample.
    pub(super) fn instrument_receipts(self: &Arc<Self>, meter: &Meter) {
        for (name, help, read) in GAUGES {
            meter
                .u64_observable_gauge(name)
                .with_description(help)
                .with_callback(self.on_scrape(move |all, scrape| {
                    let Some(finder) = all.receipts.get() else { return };
                    for status in finder.statuses() {
                        let label = &all.routes.labels[all.routes.place(&status.route)];
                        scrape.observe(u64::from(read(&status)), label);
                    }
                }))
                .build();
        }
    }
}
