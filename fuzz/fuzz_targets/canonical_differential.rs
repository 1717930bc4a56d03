//! Any text: `Numbers::Rfc8785` agrees with `serde_json` followed by `serde_json_canonicalizer`, which share no code
//! with it but the printing of doubles.
//!
//! Known differences, which are not reported: `serde_json` keeps the last of two members of one name where Onceward
//! refuses both, and allows one container less than 128.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onceward::fingerprint::{NotCanonical, Numbers, canonicalize};

fuzz_target!(|text: &[u8]| {
    let ours = canonicalize(text, Numbers::Rfc8785, 127);
    let theirs = serde_json::from_slice::<serde_json::Value>(text)
        .and_then(|value| serde_json_canonicalizer::to_vec(&value));
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => assert_eq!(
            ours,
            theirs,
            "{} against {}",
            String::from_utf8_lossy(&ours),
            String::from_utf8_lossy(&theirs),
        ),
        (Err(NotCanonical::DuplicateName { .. } | NotCanonical::TooDeep { .. }), _) | (Err(_), Err(_)) => {}
        (Ok(_), Err(error)) => panic!("only Onceward accepts it: {error}"),
        (Err(error), Ok(_)) => panic!("only serde_json accepts it: {error}"),
    }
});
