//! Any content type and body: no panic; a canonical text is its own canonical form and keeps the fingerprint.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use onceward::{
    Fingerprint, Profile,
    fingerprint::{Numbers, Parts, canonicalize},
};

static PLAIN: LazyLock<Profile> = LazyLock::new(|| Profile::builder().build().unwrap());
static IGNORING: LazyLock<Profile> =
    LazyLock::new(|| Profile::builder().ignore(["/a", "/b/0", "/b/1/c", "/0", "/2/b"]).build().unwrap());

fn fingerprint(profile: &Profile, content_type: &[u8], body: &[u8]) -> Fingerprint {
    let headers = [("content-type", content_type)];
    profile.fingerprint(&Parts { method: "POST", path: "/", query: None, headers: &headers, body })
}

fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (choice, own_type, body) = input;
    let content_type = match choice % 4 {
        0 => b"application/json",
        1 => &b"application/x-www-form-urlencoded"[..],
        2 => b"multipart/form-data; boundary=b",
        _ => own_type,
    };
    for profile in [&*PLAIN, &*IGNORING] {
        let first = fingerprint(profile, content_type, body);
        assert_eq!(first, fingerprint(profile, content_type, body));
    }
    for numbers in [Numbers::Exact, Numbers::Rfc8785] {
        let Ok(canonical) = canonicalize(body, numbers, Profile::MAX_DEPTH) else { continue };
        assert_eq!(canonicalize(&canonical, numbers, Profile::MAX_DEPTH).as_ref(), Ok(&canonical));
        if numbers == Numbers::Exact {
            for profile in [&*PLAIN, &*IGNORING] {
                let json = b"application/json";
                assert_eq!(fingerprint(profile, json, body), fingerprint(profile, json, &canonical));
            }
        }
    }
});
