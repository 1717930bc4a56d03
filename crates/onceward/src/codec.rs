//! A record as bytes: a format number, a checksum, and the fields.
//!
//! ```text
//! byte 0      format, 1
//! bytes 1-4   CRC-32 of the record's id, the format and the fields, little-endian
//! bytes 5-    the fields, in postcard's published encoding
//! ```
//!
//! What cannot be read is an error and never absence: taking a damaged record for a new key would execute twice. The
//! checksum covers the id, so that a row copied under another id is noticed too.

use crate::RecordId;
use crate::outcome::Reply;
use crate::record::{Record, State};

/// The format that is written. A change of [`Record`] is a new number and a reader for the old one.
const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 5;

/// Why stored bytes are not a record that this version can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A newer Onceward wrote it.
    #[error(
        "it was written in format {found}, and this version reads up to {FORMAT}: run the newer version, or wait until the roll-back has been undone"
    )]
    Newer {
        /// The format it was written in.
        found: u8,
    },
    /// A bit flipped, a row was cut short or copied to another id.
    #[error("it is damaged ({how}): look at the disk and restore it, or resolve the operation by its id")]
    Damaged {
        /// What did not fit.
        how: &'static str,
    },
}

/// The bytes to store for a record.
pub fn encode(id: RecordId, record: &Record) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::with_capacity(size_of_encoded(record));
    bytes.extend([FORMAT, 0, 0, 0, 0]);
    let mut bytes = postcard::serialize_with_flavor(record, Tail(bytes))
        .map_err(|error| EncodeError { reason: error.to_string() })?;
    let checksum = checksum(id, FORMAT, &bytes[HEADER_BYTES..]).to_le_bytes();
    bytes[1..HEADER_BYTES].copy_from_slice(&checksum);
    Ok(bytes)
}

/// The record that these bytes are.
pub fn decode(id: RecordId, bytes: &[u8]) -> Result<Record, Unreadable> {
    let (&[format, a, b, c, d], fields) =
        bytes.split_first_chunk().ok_or(Unreadable::Damaged { how: "cut short" })?;
    if format > FORMAT {
        return Err(Unreadable::Newer { found: format });
    }
    if format != FORMAT {
        return Err(Unreadable::Damaged { how: "no such format" });
    }
    if checksum(id, format, fields) != u32::from_le_bytes([a, b, c, d]) {
        return Err(Unreadable::Damaged { how: "wrong checksum" });
    }
    match postcard::take_from_bytes(fields) {
        Ok((record, [])) => Ok(record),
        Ok(_) => Err(Unreadable::Damaged { how: "bytes left over" }),
        Err(_) => Err(Unreadable::Damaged { how: "fields do not fit" }),
    }
}

/// Room for the fields of an ordinary record that have no length of their own, and for the lengths of those that have.
const FIXED_BYTES: usize = 176;
/// Room for the lengths of a header's name and value.
const HEADER_LENGTHS: usize = 6;

/// About how many bytes a record takes, and seldom too few: written into so much memory, they need not be moved while
/// they become more.
fn size_of_encoded(record: &Record) -> usize {
    let Record { subject, evidence, last_error, state, .. } = record;
    let reply = |reply: &Reply| reply.bytes() + reply.headers.len() * HEADER_LENGTHS;
    let answer = match state {
        State::Completed { reply: answer, .. } => reply(answer),
        State::InProgress { .. }
        | State::FailedRetryable { .. }
        | State::Unknown { .. }
        | State::Expired { .. } => 0,
    };
    FIXED_BYTES
        + subject.scope.len()
        + subject.key.len()
        + subject.route.len()
        + evidence.as_ref().map_or(0, |evidence| reply(&evidence.reply))
        + last_error.as_ref().map_or(0, String::len)
        + answer
}

/// Where postcard writes: after what is there already.
struct Tail(Vec<u8>);

impl postcard::ser_flavors::Flavor for Tail {
    type Output = Vec<u8>;

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.0.push(data);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// A record could not be written down. Every record that the machine makes can be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record cannot be encoded: {reason}")]
pub struct EncodeError {
    reason: String,
}

fn checksum(id: RecordId, format: u8, fields: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(id.as_bytes());
    hasher.update(&[format]);
    hasher.update(fields);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Evidence, Fence, Fingerprint, Letter, OnLapse, OwnerToken, RecoveryPoint, Reply, State, Subject,
        Terms, Timestamp, Verdict,
    };

    const ID: RecordId = RecordId::from_bytes(*b"0123456789abcdef");

    /// What format 1 made of [`full`]. Rows like this one are in people's databases.
    const GOLDEN: &str = concat!(
        "01a65511830761636d652c6575036b2d310e504f5354202f7061796d656e74736f70617175652d31cde5b9c4d0ac8fda",
        "4c25ead3ea569116f4e15bb051c19e48b7e618e64ba390283cc0843d0103d8040080a30500901c00808081b184e99103",
        "808081b184e99103818081b184e99103828081b184e9910378ea8a975e89de488a0bcaaae5a1d7a00201076368617267",
        "65640463685f310105c90103046c696e6b033c613e046c696e6b033c623e017802ff00067061696400fe070601036f70",
        "730673617720697408010768756e6720757001c90103046c696e6b033c613e046c696e6b033c623e017802ff00067061",
        "696400fe0709ffffffffffffffff7f",
    );

    /// A record that uses every field, so that a change of any of them changes its bytes.
    fn full() -> Record {
        let header = |name: &str, value: &'static [u8]| (name.to_owned(), Bytes::from_static(value));
        let reply = Arc::new(Reply {
            status: 201,
            headers: vec![header("link", b"<a>"), header("link", b"<b>"), header("x", b"\xff\x00")],
            body: Bytes::from_static(b"paid\x00\xfe"),
            version: 7,
        });
        Record {
            subject: Subject { scope: "acme,eu".into(), key: "k-1".into(), route: "POST /payments".into() },
            fingerprint: Fingerprint::of_bytes(b"{}"),
            terms: Terms {
                lease: Duration::from_millis(60_001),
                on_lapse: OnLapse::Resume { attempts: 3, within: Duration::from_secs(600) },
                retention: Duration::from_secs(86_400),
                grace: Duration::from_secs(3600),
            },
            created_at: Timestamp::from_micros(1_767_225_600_000_000),
            opened: Fence::from_number(1_767_225_600_000_000),
            origin: Fence::from_number(1_767_225_600_000_001),
            fence: Fence::from_number(1_767_225_600_000_002),
            owner: OwnerToken::named("owner"),
            attempt: 2,
            recovery_point: RecoveryPoint::new("charged", Bytes::from_static(b"ch_1")).ok(),
            evidence: Some(Evidence {
                fence: Fence::from_number(5),
                reply: reply.clone(),
                at: Timestamp::from_micros(6),
            }),
            verdict: Some(Verdict {
                by: "ops".into(),
                reason: "saw it".into(),
                at: Timestamp::from_micros(8),
            }),
            last_error: Some("hung up".into()),
            state: State::Completed {
                reply,
                settled_at: Timestamp::from_micros(9),
                expires_at: Timestamp::NEVER,
            },
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_bytes_of_format_1_are_what_they_were() {
        let bytes = encode(ID, &full()).unwrap();
        assert!(
            hex(&bytes) == GOLDEN,
            "The stored form of a record has changed, and rows in the old form exist. Give the new form a new format \
             number, keep a reader for the old one, and add its bytes here:\n{}",
            hex(&bytes)
        );
    }

    /// The golden record is in one state; what tells the others apart is as fixed.
    #[test]
    fn the_bytes_of_every_state_and_choice_in_format_1_are_what_they_were() {
        let at = Timestamp::from_micros(5);
        let unknown = |letter| State::Unknown { since: at, due_at: at, probes: 2, letter };
        let states = [
            (State::InProgress { lease_until: at }, "0005"),
            (State::FailedRetryable { settled_at: at, expires_at: at }, "020505"),
            (unknown(Letter::Live), "0305050200"),
            (unknown(Letter::Dead), "0305050201"),
            (State::Expired { status: Some(201), expires_at: at }, "0401c90105"),
            (State::Expired { status: None, expires_at: at }, "040005"),
        ];
        for (state, golden) in states {
            assert_eq!(
                hex(&postcard::to_stdvec(&state).unwrap()),
                golden,
                "{state:?} needs a new format number"
            );
        }
        assert_eq!(
            hex(&postcard::to_stdvec(&OnLapse::Unknown).unwrap()),
            "00",
            "a new format number is needed"
        );
    }

    #[test]
    fn the_bytes_of_format_1_are_still_read() {
        let bytes: Vec<u8> = (0..GOLDEN.len() / 2)
            .map(|at| u8::from_str_radix(&GOLDEN[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        assert_eq!(decode(ID, &bytes), Ok(full()));
    }

    #[test]
    fn a_record_of_a_newer_format_is_said_to_be_newer_and_not_damaged() {
        let mut bytes = encode(ID, &full()).unwrap();
        for found in [FORMAT + 1, u8::MAX] {
            bytes[0] = found;
            assert_eq!(decode(ID, &bytes), Err(Unreadable::Newer { found }));
        }
        assert_eq!(decode(ID, &[FORMAT + 1, 0, 0, 0, 0]), Err(Unreadable::Newer { found: FORMAT + 1 }));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = encode(ID, &full()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(ID, &flipped).is_err(), "bit {bit} was flipped and nobody noticed");
        }
    }

    #[test]
    fn every_truncation_and_every_addition_is_noticed() {
        let bytes = encode(ID, &full()).unwrap();
        for length in 0..bytes.len() {
            assert!(decode(ID, &bytes[..length]).is_err(), "cut to {length} bytes and nobody noticed");
        }
        for extra in [0, 1, 0xff] {
            assert!(decode(ID, &[&bytes[..], &[extra]].concat()).is_err(), "{extra} was added");
        }
    }

    #[test]
    fn bytes_left_over_are_noticed_even_under_a_right_checksum() {
        let mut bytes = encode(ID, &full()).unwrap();
        bytes.push(0);
        let right = checksum(ID, FORMAT, &bytes[HEADER_BYTES..]).to_le_bytes();
        bytes[1..HEADER_BYTES].copy_from_slice(&right);
        assert_eq!(decode(ID, &bytes), Err(Unreadable::Damaged { how: "bytes left over" }));
    }

    #[test]
    fn a_row_copied_under_another_id_is_noticed() {
        let bytes = encode(ID, &full()).unwrap();
        let other = RecordId::from_bytes(*b"0123456789abcdeF");
        assert_eq!(decode(other, &bytes), Err(Unreadable::Damaged { how: "wrong checksum" }));
    }

    proptest! {
        // Every run draws the same cases: a failure can be looked at twice.
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x0ce0_ced0),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn arbitrary_bytes_are_unreadable_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            prop_assert!(decode(ID, &bytes).is_err());
        }

        /// The checksum keeps nearly everything out, so what lies behind it is tried with a right one.
        #[test]
        fn arbitrary_fields_under_a_right_checksum_never_panic_and_are_read_only_whole(
            fields in prop::collection::vec(any::<u8>(), 0..600),
            keep in any::<prop::sample::Index>(),
        ) {
            let mut bytes = encode(ID, &full()).unwrap();
            bytes.truncate(HEADER_BYTES + keep.index(bytes.len() - HEADER_BYTES));
            bytes.extend(fields);
            let right = checksum(ID, FORMAT, &bytes[HEADER_BYTES..]).to_le_bytes();
            bytes[1..HEADER_BYTES].copy_from_slice(&right);
            if let Ok(record) = decode(ID, &bytes) {
                prop_assert_eq!(decode(ID, &encode(ID, &record).unwrap()), Ok(record));
            }
        }
    }
}
