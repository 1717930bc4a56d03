//! Records to test with: plain ones, and ones that use every field there is.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceward::fingerprint::Target;
use onceward::{
    Fence, Fingerprint, OnLapse, Record, RecordId, RecoveryPoint, Reply, Terms, Timestamp,
    claim::OwnerToken,
    fingerprint::ProfileId,
    outcome::{Evidence, Verdict},
    record::{Absence, Cause, Doubt, Entered, Extension, HistoryEntry, LastFinding, Letter, State, Subject},
};

use crate::Random;

/// When tests begin: the first of January 2026.
pub const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// As much body as a reply has room for by default.
pub const LARGE_BODY_BYTES: usize = 1024 * 1024;

/// The n-th id. Ids are spread like hashes are, so that their order is not the order of their numbers.
pub fn id(n: u64) -> RecordId {
    let mut random = Random::seeded(n);
    RecordId::from_bytes(((u128::from(random.next()) << 64) | u128::from(random.next())).to_be_bytes())
}

/// A claim's record that nothing has happened to yet. The tag distinguishes records.
pub fn record(tag: &str) -> Record {
    let subject = Subject {
        scope: "acme".to_owned(),
        key: tag.to_owned(),
        route: "POST /payments".to_owned(),
        method: "POST".to_owned(),
        path: "/payments".to_owned(),
        ..Subject::default()
    };
    let fingerprint = Fingerprint::of_bytes(tag.as_bytes());
    Record::new(subject, fingerprint, Terms::default(), OwnerToken::named(tag), START)
}

/// A plain record in this state.
pub fn in_state(tag: &str, state: State) -> Record {
    Record { state, ..record(tag) }
}

/// A record in this state that uses every optional field.
pub fn full(tag: &str, state: State) -> Record {
    let terms = Terms {
        on_lapse: OnLapse::Resume { attempts: 3, within: Duration::from_secs(600) },
        ..Terms::default()
    };
    Record {
        terms,
        fence: Fence::from_number(START.as_micros() + 7),
        attempt: 2,
        recovery_point: Some(point("charge_created")),
        evidence: Some(Evidence {
            fence: Fence::from_number(START.as_micros()),
            reply: reply(201, "evidence"),
            at: START.after(Duration::from_secs(1)),
        }),
        verdict: Some(Verdict {
            by: "operator".to_owned(),
            reason: "saw it in the ledger, naïvely".to_owned(),
            at: START.after(Duration::from_secs(2)),
        }),
        last_error: Some("the upstream hung up: \u{2028}\0".to_owned()),
        doubt: Some(Doubt { since: START, cause: Cause::Said }),
        voided: Some(Fence::from_number(START.as_micros() + 3)),
        closed_at: Some(START.after(Duration::from_secs(3))),
        absence: Some(Absence {
            count: 1,
            first_at: START,
            fence: Fence::from_number(START.as_micros() + 7),
        }),
        finding: Some(LastFinding { at: START, text: "processing".to_owned() }),
        entered: vec![Entered { point: "charged".to_owned(), at: START, dedup_until: Some(START) }],
        history: vec![HistoryEntry {
            at: START,
            fence: Fence::from_number(START.as_micros()),
            event: "lapsed".to_owned(),
            by: "sweeper".to_owned(),
            reason: "the lease lapsed".to_owned(),
        }],
        extensions: vec![Extension { tag: 7, critical: false, data: Bytes::from_static(b"\x00later") }],
        ..in_state(tag, state)
    }
}

/// The fingerprint of a body, under the usual rules or under others that cannot be compared with them.
pub fn fingerprint(body: &str, rules: Option<&str>) -> Fingerprint {
    let usual = Fingerprint::of_bytes(body.as_bytes());
    let Some(rules) = rules else { return usual };
    let mut name = [b'.'; 8];
    name.iter_mut().zip(rules.bytes()).for_each(|(byte, letter)| *byte = letter);
    Fingerprint::new(ProfileId::from_bytes(name), *usual.digest()).at(target(""))
}

/// Where a request goes. The empty name is the target of work that is not an HTTP request.
pub fn target(name: &str) -> Target {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(name.bytes()).for_each(|(byte, letter)| *byte = letter);
    Target::from_bytes(bytes)
}

/// Makes a record's bytes those of a format that no version has yet, under a right checksum.
pub fn as_of_a_newer_format(id: RecordId, bytes: &mut [u8]) {
    bytes[0] = u8::MAX;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(id.as_bytes());
    hasher.update(&bytes[..1]);
    hasher.update(&bytes[5..]);
    bytes[1..5].copy_from_slice(&hasher.finalize().to_le_bytes());
}

/// A recovery point with bytes that are not text.
pub fn point(name: &str) -> RecoveryPoint {
    RecoveryPoint::new(name, Bytes::from_static(b"\x00\xff data")).expect("the name is short")
}

/// A reply with a repeated header and a header value that is not text.
pub fn reply(status: u16, body: &str) -> Arc<Reply> {
    let header = |name: &str, value: &'static [u8]| (name.to_owned(), Bytes::from_static(value));
    Arc::new(Reply {
        status,
        headers: vec![
            header("link", b"<a>; rel=next"),
            header("content-type", b"text/plain"),
            header("link", b"<b>; rel=prev"),
            header("x-latin", b"caf\xe9 \xff\x00"),
            header("x-empty", b""),
        ],
        body: Bytes::copy_from_slice(body.as_bytes()),
        version: 3,
    })
}

/// A reply whose body fills the default limit with bytes that are not text and do not compress.
pub fn large_reply() -> Arc<Reply> {
    let mut random = Random::seeded(0xb0d1);
    let body: Vec<u8> = (0..LARGE_BODY_BYTES / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    Arc::new(Reply { body: body.into(), ..(*reply(200, "")).clone() })
}

/// In progress until then.
pub const fn in_progress(lease_until: Timestamp) -> State {
    State::InProgress { lease_until }
}

/// It happened, and is kept until then.
pub fn completed(expires_at: Timestamp) -> State {
    State::Completed { reply: reply(201, "paid"), settled_at: START, expires_at }
}

/// It did not happen, which is remembered until then.
pub const fn failed_retryable(expires_at: Timestamp) -> State {
    State::FailedRetryable { settled_at: START, expires_at }
}

/// Unknown, and due for reconciliation then.
pub const fn unknown(due_at: Timestamp, letter: Letter) -> State {
    State::Unknown { since: START, due_at, probes: 2, letter, cause: Cause::Said }
}

/// It was done, its answer could not be kept, and it is due for reconciliation then.
pub const fn done_not_kept(due_at: Timestamp) -> State {
    State::Unknown { since: START, due_at, probes: 0, letter: Letter::Live, cause: Cause::DoneNotKept }
}

/// Its window ended then, and its body is gone.
pub const fn expired(expires_at: Timestamp) -> State {
    State::Expired { status: Some(201), expires_at }
}

/// Every state, and every variant of each, whose time comes at `at`.
pub fn states(at: Timestamp) -> Vec<State> {
    vec![
        in_progress(at),
        completed(at),
        State::Completed { reply: large_reply(), settled_at: START, expires_at: Timestamp::NEVER },
        State::Completed {
            reply: Arc::new(Reply::new("").with_status(204)),
            settled_at: Timestamp::from_micros(0),
            expires_at: at,
        },
        failed_retryable(at),
        unknown(at, Letter::Live),
        unknown(at, Letter::Dead),
        done_not_kept(at),
        expired(at),
        State::Expired { status: None, expires_at: at },
    ]
}
