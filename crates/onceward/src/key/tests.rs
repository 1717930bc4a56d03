use proptest::prelude::*;

use super::*;

fn lenient(value: &[u8]) -> Result<Key, KeyError> {
    Key::parse_header(value, Syntax::Lenient, 1)
}

fn strict(value: &[u8]) -> Result<Key, KeyError> {
    Key::parse_header(value, Syntax::Strict, 1)
}

fn named(key: &str) -> Result<Key, KeyError> {
    Ok(Key::new(key).unwrap())
}

#[test]
fn a_bare_and_a_quoted_key_are_the_same_key() {
    assert_eq!(lenient(b"k"), named("k"));
    assert_eq!(lenient(b"\"k\""), named("k"));
    assert_eq!(strict(b"\"k\""), named("k"));
}

#[test]
fn strict_syntax_refuses_a_bare_key() {
    assert_eq!(strict(b"k"), Err(KeyError::NotAString { at: 0 }));
    assert!(matches!(strict(b"8e03978e-40d5-43e8-bc93-6894a57f9324"), Err(KeyError::NotAString { .. })));
}

#[test]
fn bare_lists_parameters_quotes_and_spaces_are_refused_where_they_stand() {
    let delimiter = |at| Err(KeyError::ForbiddenByte { at, class: ByteClass::Delimiter });
    assert_eq!(lenient(b"a,b"), delimiter(1));
    assert_eq!(lenient(b"k;p=1"), delimiter(1));
    assert_eq!(lenient(b"ab\"c"), delimiter(2));
    assert_eq!(lenient(b"abc\\"), delimiter(3));
    assert_eq!(lenient(b"a b"), Err(KeyError::ForbiddenByte { at: 1, class: ByteClass::Space }));
}

#[test]
fn spaces_and_tabs_around_the_value_are_not_part_of_the_key() {
    assert_eq!(lenient(b" \t k\t "), named("k"));
    assert_eq!(strict(b"\t\"k\" \t"), named("k"));
}

#[test]
fn case_and_inner_spaces_make_different_keys() {
    assert_ne!(lenient(b"K"), lenient(b"k"));
    assert_ne!(lenient(b"\"a b\""), lenient(b"\"a  b\""));
    assert_ne!(lenient(b"\"k \""), lenient(b"\"k\""));
}

#[test]
fn parameters_of_a_string_are_read_and_ignored() {
    assert_eq!(strict(b"\"k\";v=1; w=\"x\""), named("k"));
    assert!(matches!(strict(b"\"k\";"), Err(KeyError::NotAString { .. })));
    assert!(matches!(strict(b"\"k\";V"), Err(KeyError::NotAString { .. })));
}

#[test]
fn lists_and_other_items_are_not_strings() {
    for value in
        ["\"a\", \"b\"", "(\"a\")", "1", "1.5", "?1", ":YQ==:", "@1", "%\"a\"", "token", "\"a\" \"b\""]
    {
        assert!(matches!(strict(value.as_bytes()), Err(KeyError::NotAString { .. })), "{value}");
    }
}

#[test]
fn escapes_are_undone_and_bad_ones_refused() {
    assert_eq!(strict(br#""a\"b\\c""#), named(r#"a"b\c"#));
    assert!(matches!(strict(br#""a\nb""#), Err(KeyError::NotAString { .. })));
    assert!(matches!(strict(br#""a"#), Err(KeyError::NotAString { .. })));
}

#[test]
fn an_empty_key_is_refused_however_it_is_written() {
    for value in ["", "  ", "\"\"", " \"\" "] {
        assert_eq!(lenient(value.as_bytes()), Err(KeyError::Empty), "{value:?}");
    }
    assert_eq!(Key::new(""), Err(KeyError::Empty));
}

#[test]
fn a_key_of_255_bytes_is_fine_and_one_of_256_is_not() {
    let fits = "k".repeat(255);
    let over = "k".repeat(256);
    assert_eq!(lenient(fits.as_bytes()), named(&fits));
    assert_eq!(lenient(format!("\"{fits}\"").as_bytes()), named(&fits));
    assert_eq!(lenient(over.as_bytes()), Err(KeyError::TooLong { found: 256 }));
    assert_eq!(lenient(format!("\"{over}\"").as_bytes()), Err(KeyError::TooLong { found: 256 }));
    assert_eq!(Key::new(&over), Err(KeyError::TooLong { found: 256 }));
    let escapes = "\\\"".repeat(255);
    assert_eq!(lenient(format!("\"{escapes}\"").as_bytes()), named(&"\"".repeat(255)));
}

#[test]
fn the_configured_least_length_counts_after_unquoting() {
    assert_eq!(
        Key::parse_header(b"\"abc\"", Syntax::Lenient, 4),
        Err(KeyError::TooShort { found: 3, least: 4 })
    );
    assert_eq!(Key::parse_header(b"\"abcd\"", Syntax::Lenient, 4), named("abcd"));
}

#[test]
fn control_and_non_ascii_bytes_are_refused_bare_and_quoted() {
    for (value, at, class) in [
        (&b"a\x00"[..], 1, ByteClass::Control),
        (b"\"a\tb\"", 2, ByteClass::Control),
        (b"a\x7fb", 1, ByteClass::Control),
        (b"\"\xc3\xbc\"", 1, ByteClass::NonAscii),
        (b"a\xff", 1, ByteClass::NonAscii),
    ] {
        assert_eq!(lenient(value), Err(KeyError::ForbiddenByte { at, class }));
    }
    assert_eq!(Key::new("aü"), Err(KeyError::ForbiddenByte { at: 1, class: ByteClass::NonAscii }));
}

#[test]
fn debug_and_errors_never_show_the_key() {
    assert!(!format!("{:?}", Key::new("topsecret").unwrap()).contains("topsecret"));
    let long = format!("topsecret{}", "x".repeat(255));
    for value in ["topsecret x", "topsecret,", "\"topsecret", "topsecret\u{fc}", &long] {
        let error = lenient(value.as_bytes()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("topsecret"), "{error}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_accepted_keys_keep_the_limits(value: Vec<u8>, min in 0usize..300) {
        for syntax in [Syntax::Lenient, Syntax::Strict] {
            if let Ok(key) = Key::parse_header(&value, syntax, min) {
                prop_assert!((min.max(1)..=Key::MAX_BYTES).contains(&key.as_str().len()));
                prop_assert!(key.as_str().bytes().all(|byte| matches!(byte, b' '..=b'~')));
            }
        }
    }

    #[test]
    fn every_printable_key_survives_quoting(text in "[ -~]{1,255}") {
        let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        prop_assert_eq!(strict(quoted.as_bytes()), named(&text));
        prop_assert_eq!(lenient(quoted.as_bytes()), named(&text));
    }

    #[test]
    fn every_visible_key_without_delimiters_may_be_bare(text in "[!#-+\\--:<-\\[\\]-~]{1,255}") {
        prop_assert_eq!(lenient(text.as_bytes()), named(&text));
    }
}
