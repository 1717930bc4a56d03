//! What a fingerprint costs beside the hash that it cannot do without.

use std::hint::black_box;

use onceward::fingerprint::Parts;
use onceward::{Profile, plumbing::time};
use sha2::{Digest as _, Sha256};

use super::median;
use crate::Done;

/// A payment as clients send it: nested, with numbers, a few escapes and about 300 bytes.
const BODY: &[u8] = br#"{"amount":12990,"currency":"eur","customer":{"id":"cus_8f2k1","email":"ann@example.org","name":"Ann \u00c5berg"},"items":[{"sku":"A-1","quantity":2,"price":4995.00},{"sku":"B-7","quantity":1,"price":3000}],"capture":true,"metadata":{"order":"2026-000417","channel":"web"},"description":"Order 417"}"#;
/// Short batches in turn: a pause of the machine falls into one of them and not into the figure.
const BATCHES: usize = 400;
const CALLS_PER_BATCH: u32 = 500;

pub fn run() -> Done {
    let profile = Profile::builder().build()?;
    let headers: [(&str, &[u8]); 1] = [("content-type", b"application/json")];
    let request = Parts { method: "POST", path: "/payments", query: None, headers: &headers, body: BODY };
    let (mut hashes, mut fingerprints) = (Vec::new(), Vec::new());
    for _ in 0..BATCHES {
        hashes.push(nanos(|| {
            black_box(Sha256::digest(black_box(BODY)));
        }));
        fingerprints.push(nanos(|| {
            black_box(profile.fingerprint(black_box(&request)));
        }));
    }
    let ratios = hashes.iter().zip(&fingerprints).map(|(hash, fingerprint)| fingerprint / hash).collect();
    println!("fingerprint of a JSON body of {} bytes", BODY.len());
    println!("  SHA-256 alone      {:>7.0} ns", median(hashes));
    println!("  fingerprint        {:>7.0} ns", median(fingerprints));
    println!("  ratio              {:>7.1}    (to reach: at most 15)\n", median(ratios));
    Ok(())
}

fn nanos(mut call: impl FnMut()) -> f64 {
    let started = time::instant();
    for _ in 0..CALLS_PER_BATCH {
        call();
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS_PER_BATCH)
}
