//! What can be chosen, and what is chosen where nothing is said.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onceward::Clock;
use onceward::store::driver::require_between;

use crate::OpenError;

/// How a [`RedisStore`](crate::RedisStore) works.
#[derive(Clone)]
pub struct Options {
    /// Calls under way at once; what comes on top is shed. 4,096: at fifty thousand calls a second the last one waits for a
    /// tenth of a second.
    pub in_flight: usize,
    /// How long the server may take to answer before its connection is given up. 2 s.
    pub answer_within: Duration,
    /// How long a connection may take to be made. 2 s.
    pub connect_within: Duration,
    /// What happens on a server that has no marker and no records.
    pub first_use: FirstUse,
    /// The store's clock. The server's own, unless a test puts another in.
    #[doc(hidden)]
    pub clock: Option<Arc<dyn Clock>>,
}

/// What happens on a server that has no marker and no records: it is new, or has been emptied while nobody looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstUse {
    /// It is taken for new, and gets its marker.
    SetUp,
    /// It is refused. For gateways that know that their store exists: a flush while none of them ran is then noticed, too.
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

/// Anything shorter would give connections up that only cross an ocean.
const WITHIN_MIN: Duration = Duration::from_millis(10);
/// Whoever waits has given up long before.
const WITHIN_MAX: Duration = Duration::from_secs(60);
/// More would only wait inside the server.
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
