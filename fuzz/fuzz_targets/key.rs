//! Any header value: no panic; what is accepted keeps the limits, survives quoting, and strict syntax agrees with lenient.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onceward::{Key, key::Syntax};

fuzz_target!(|value: &[u8]| {
    let lenient = Key::parse_header(value, Syntax::Lenient, 1);
    if let Ok(strict) = Key::parse_header(value, Syntax::Strict, 1) {
        assert_eq!(lenient.as_ref().ok(), Some(&strict));
    }
    let Ok(key) = lenient else { return };
    let text = key.as_str();
    assert!((1..=Key::MAX_BYTES).contains(&text.len()));
    assert_eq!(Key::new(text).as_ref(), Ok(&key));
    let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    assert_eq!(Key::parse_header(quoted.as_bytes(), Syntax::Strict, text.len()).as_ref(), Ok(&key));
    assert!(Key::parse_header(quoted.as_bytes(), Syntax::Strict, text.len() + 1).is_err());
});
