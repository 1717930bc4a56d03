//! The options of the store, their defaults and their ranges.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onceward::store::Clock;
use onceward::store::driver::require_between;

use crate::OpenError;

/// How a [`RedisStore`](crate::RedisStore) works.
#[derive(Clone)]
pub struct Options {
    /// The most concurrent calls; further ones are refused with 503. Default: 4,096. At 50,000 calls a second the last one
    /// waits for a tenth of a second.
    pub in_flight: usize,
    /// How long the server may take to answer before the connection is closed. Default: 2 s.
    pub answer_within: Duration,
    /// How long connecting may take. Default: 2 s.
    pub connect_within: Duration,
    /// What happens on a server that has no marker and no records.
    pub first_use: FirstUse,
    /// The store's clock. Default: the server's. Tests use another.
    #[doc(hidden)]
    pub clock: Option<Arc<dyn Clock>>,
}

/// What happens on a server that has no marker and no records: it is new, or was emptied while no gateway ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstUse {
    /// It is treated as new, and gets its markers.
    SetUp,
    /// It is refused. For gateways whose store must exist already: a flush while none of them ran is then detected too.
    Refuse,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            in_flight: 4_096,
            answer_within: Duration::from_secs(2),
            connect_within: Duration::from_secs(2),
            first_use: FirstUse::SetUp,
            clock: None,
        }
    }
}

/// A shorter limit would close connections that only have a long round trip.
const WITHIN_MIN: Duration = Duration::from_millis(10);
/// Callers give up long before.
const WITHIN_MAX: Duration = Duration::from_secs(60);
/// More calls would only be queued in the server.
const IN_FLIGHT_MAX: usize = 1_000_000;

impl Options {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        require_between("in_flight", self.in_flight, 1, IN_FLIGHT_MAX)?;
        require_between("answer_within", self.answer_within, WITHIN_MIN, WITHIN_MAX)?;
        require_between("connect_within", self.connect_within, WITHIN_MIN, WITHIN_MAX)?;
        Ok(())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("in_flight", &self.in_flight)
            .field("answer_within", &self.answer_within)
            .field("connect_within", &self.connect_within)
            .field("first_use", &self.first_use)
            .finish_non_exhaustive()
    }
}
