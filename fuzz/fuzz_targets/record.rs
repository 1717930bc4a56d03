//! Any stored bytes: no panic, and whatever is read can be written and read again. Once as they are, and once with a
//! checksum that fits, so that the fields behind it are reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onceward::{RecordId, codec};

const ID: RecordId = RecordId::from_bytes([7; 16]);

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut sealed = vec![1, 0, 0, 0, 0];
    sealed.extend_from_slice(bytes);
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(ID.as_bytes());
    hasher.update(&[1]);
    hasher.update(bytes);
    sealed[1..5].copy_from_slice(&hasher.finalize().to_le_bytes());
    check(&sealed);
});

fn check(bytes: &[u8]) {
    let Ok(record) = codec::decode(ID, bytes) else { return };
    let written = codec::encode(ID, &record).expect("what was read can be written");
    assert_eq!(codec::decode(ID, &written).as_ref(), Ok(&record));
    // Nothing about a record that could be read may overflow or panic when it is asked.
    let _ = (record.due(), record.published_expiry(), record.state.name());
}
