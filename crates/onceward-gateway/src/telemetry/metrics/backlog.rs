//! How many outcomes are unknown, and for how long.
//!
//! They are counted in the store at each scrape and not in this process, because other processes, earlier runs and operators
//! change them too. A pass over very many is spread over several scrapes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::plumbing::time::sleep;
use onceward::store::{Cursor, Filter, Page, Scan, Which};
use onceward::{
    Engine, EngineError,
    record::{Letter, State, StateKind},
};

use super::Routes;

/// Records in one call to the store.
const PAGE: usize = 1_000;
/// Pages in one scrape: enough for any backlog that people work off, and few enough for a scrape every few seconds.
const PAGES_AT_ONCE: usize = 8;
/// A scrape waits no longer for the store than this, and then gets the last count.
const PATIENCE: Duration = Duration::from_secs(2);

/// The unknown outcomes of one route.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unknowns {
    count: f64,
    dead: f64,
    oldest_seconds: f64,
}

pub(super) type Gauge = (&'static str, &'static str, fn(&Unknowns) -> f64);

pub(super) const GAUGES: [Gauge; 3] = [
    ("api_idempotency_unknown", "Unknown outcomes, dead letters included", |seen| seen.count),
    ("api_idempotency_dead_letters", "Unknown outcomes that wait for an operator", |seen| seen.dead),
    (
        "api_idempotency_oldest_unknown_age_seconds",
        "For how long the oldest outcome has been unknown",
        |seen| seen.oldest_seconds,
    ),
];

pub(super) struct Backlog {
    /// The last whole pass.
    published: Mutex<Box<[Unknowns]>>,
    /// A pass that the next scrape continues. Its lock lets one scrape count at a time.
    pass: tokio::sync::Mutex<Pass>,
}

struct Pass {
    after: Option<Cursor>,
    counted: Box<[Unknowns]>,
}

impl Backlog {
    pub(super) fn new(routes: usize) -> Self {
        let none = || vec![Unknowns::default(); routes].into_boxed_slice();
        Self {
            published: Mutex::new(none()),
            pass: tokio::sync::Mutex::new(Pass { after: None, counted: none() }),
        }
    }

    pub(super) fn read(&self, read: fn(&Unknowns) -> f64) -> Vec<f64> {
        self.published().iter().map(read).collect()
    }

    pub(super) async fn count(&self, engine: &Engine, routes: &Routes) {
        let Ok(mut pass) = self.pass.try_lock() else { return };
        tokio::select! {
            biased;
            counted = self.go_on(&mut pass, engine, routes) => if let Err(error) = counted {
                tracing::debug!(%error, "the unknown outcomes could not be counted, and the last count stays");
                // The cursor may be what was wrong.
                pass.begin_again();
            },
            () = sleep(PATIENCE) => tracing::warn!(
                next = "check the store: it is slow, or has very many unknown outcomes",
                "the store took too long to count the unknown outcomes: /metrics shows the last count"
            ),
        }
    }

    async fn go_on(&self, pass: &mut Pass, engine: &Engine, routes: &Routes) -> Result<(), EngineError> {
        for _ in 0..PAGES_AT_ONCE {
            let which = Which::Filter(Filter { state: Some(StateKind::Unknown), ..Filter::default() });
            let page = engine.list(Scan { which, after: pass.after.clone(), limit: PAGE }).await?;
            pass.count(&page, routes);
            pass.after = page.next;
            if pass.after.is_none() {
                self.published().clone_from_slice(&pass.counted);
                pass.begin_again();
                return Ok(());
            }
        }
        // There are very many. Until all are counted, what is known already must not look like less.
        for (published, counted) in self.published().iter_mut().zip(&pass.counted) {
            published.count = published.count.max(counted.count);
            published.dead = published.dead.max(counted.dead);
            published.oldest_seconds = published.oldest_seconds.max(counted.oldest_seconds);
        }
        Ok(())
    }

    // A panic while the lock is held cannot leave half a number.
    fn published(&self) -> MutexGuard<'_, Box<[Unknowns]>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    fn begin_again(&mut self) {
        self.after = None;
        self.counted.fill(Unknowns::default());
    }

    fn count(&mut self, page: &Page, routes: &Routes) {
        for entry in &page.entries {
            // A record that cannot be read may be an unknown outcome, and needs an operator just as much.
            let Ok(record) = &entry.record else {
                self.counted[routes.other].count += 1.0;
                continue;
            };
            let State::Unknown { since, letter, .. } = &record.state else { continue };
            // A shadow has nothing to settle.
            if record.subject.is_shadow() {
                continue;
            }
            let counted = &mut self.counted[routes.place(&record.subject.route)];
            counted.count += 1.0;
            counted.dead += match letter {
                Letter::Live => 0.0,
                Letter::Dead => 1.0,
            };
            counted.oldest_seconds = counted.oldest_seconds.max(page.now.since(*since).as_secs_f64());
        }
    }
}
