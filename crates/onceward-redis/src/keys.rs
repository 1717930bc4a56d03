//! The names of keys in Redis.
//!
//! ```text
//! {onceward:3f}:r:3f9a…   a record: 16 digits of version, a letter for what it is due for, its bytes
//! {onceward:3f}:l         in_progress, by the end of the lease
//! {onceward:3f}:u         unknown, by the time of the next reconciliation
//! {onceward:3f}:e         everything else, by its expiry
//! {onceward:3f}:marker    the store's generation, and the last version of the bucket
//! ```
//!
//! A bucket is the first byte of the id. The part in braces determines the slot of a cluster, so all keys of a bucket are on one
//! node, and one script can change them together.

use onceward::RecordId;
use onceward::store::Due;

/// The number of buckets: enough to spread over the nodes of any cluster, and few enough to read all markers.
pub(crate) const BUCKETS: usize = 256;

/// All buckets.
pub(crate) fn buckets() -> impl Iterator<Item = u8> {
    0..=u8::MAX
}

/// The three sorted sets of a bucket; each record is in one of them.
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

/// Builds the names of keys.
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

    /// The keys that a write of a record uses.
    pub(crate) fn of_write(&self, id: RecordId) -> [String; 5] {
        let bucket = bucket(id);
        let [leases, unknown, settled] = List::ALL.map(|list| self.list(bucket, list));
        [self.record(id), self.marker(bucket), leases, unknown, settled]
    }
}
