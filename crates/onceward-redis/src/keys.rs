//! What things are called in Redis.
//!
//! ```text
//! {onceward:3f}:r:3f9a…   a record: 16 digits of version, a letter for what it is due for, its bytes
//! {onceward:3f}:l         in_progress, by the end of the lease
//! {onceward:3f}:u         unknown, by the next look of reconciliation
//! {onceward:3f}:e         everything else, by its expiry
//! {onceward:3f}:marker    which generation of the store this is, and the last version that was given
//! ```
//!
//! A bucket is the first byte of the id. What stands in braces decides the slot of a cluster, so all of a bucket lies on
//! one node and one script can change it together.

use onceward::RecordId;
use onceward::store::Due;

/// How many buckets there are: enough to spread over as many nodes as anybody has, and few enough to look at all of them.
pub(crate) const BUCKETS: usize = 256;

/// Every bucket.
pub(crate) fn buckets() -> impl Iterator<Item = u8> {
    0..=u8::MAX
}

/// Which of a bucket's three lists a record stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    Leases,
    Unknown,
    Settled,
}

impl List {
    pub(crate) const ALL: [Self; 3] = [Self::Leases, Self::Unknown, Self::Settled];

    pub(crate) const fn of(due: Due) -> Self {
        match due {
            Due::Leases => Self::Leases,
            Due::Reconcile => Self::Unknown,
            Due::Expired => Self::Settled,
        }
    }

    pub(crate) const fn letter(self) -> &'static str {
        match self {
            Self::Leases => "l",
            Self::Unknown => "u",
            Self::Settled => "e",
        }
    }
}

pub(crate) const fn bucket(id: RecordId) -> u8 {
    id.as_bytes()[0]
}

/// Names keys.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(crate) fn record(&self, id: RecordId) -> String {
        format!("{{{}:{:02x}}}:r:{id}", self.prefix, bucket(id))
    }

    pub(crate) fn marker(&self, bucket: u8) -> String {
        format!("{{{}:{bucket:02x}}}:marker", self.prefix)
    }

    pub(crate) fn list(&self, bucket: u8, list: List) -> String {
        format!("{{{}:{bucket:02x}}}:{}", self.prefix, list.letter())
    }

    /// What a write of a record touches.
    pub(crate) fn of_write(&self, id: RecordId) -> [String; 5] {
        let bucket = bucket(id);
        let [leases, unknown, settled] = List::ALL.map(|list| self.list(bucket, list));
        [self.record(id), self.marker(bucket), leases, unknown, settled]
    }
}
