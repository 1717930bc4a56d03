use super::*;

pub(super) const DEPTH: usize = 128;

pub(super) fn exact(text: &str) -> Result<String, NotCanonical> {
    let once = canonicalize(text.as_bytes(), Numbers::Exact, DEPTH)?;
    assert_eq!(canonicalize(&once, Numbers::Exact, DEPTH).as_ref(), Ok(&once), "not stable: {text}");
    Ok(String::from_utf8(once).unwrap())
}

pub(super) fn without(text: &str, pointers: &[&str]) -> Result<String, NotCanonical> {
    let ignored: Vec<_> = pointers.iter().map(|pointer| Pointer::parse(pointer).unwrap()).collect();
    let rules = Rules { numbers: Numbers::Exact, max_depth: DEPTH, ignored: &ignored };
    let mut scratch = Scratch::default();
    scratch.canonicalize(text.as_bytes(), rules).map(|text| String::from_utf8(text.to_vec()).unwrap())
}

#[test]
fn white_space_goes_and_members_are_sorted_at_every_depth() {
    for (text, form) in [
        (" { } ", "{}"),
        ("\t[\r\n] ", "[]"),
        (r#"{"b":1,"a":2}"#, r#"{"a":2,"b":1}"#),
        (
            r#" { "b" : [ 1 , { "d" : 1 , "c" : { } } ] , "a" : null } "#,
            r#"{"a":null,"b":[1,{"c":{},"d":1}]}"#,
        ),
        (
            r#"{"a":{"z":1,"y":{"x":1,"w":2}},"b":[{"d":1,"c":2},{"f":1,"e":2}]}"#,
            r#"{"a":{"y":{"w":2,"x":1},"z":1},"b":[{"c":2,"d":1},{"e":2,"f":1}]}"#,
        ),
        (
            r#"{"b":{"d":{"f":1,"e":2},"c":3},"a":{"h":[[{"j":1,"i":2}],4],"g":5}}"#,
            r#"{"a":{"g":5,"h":[[{"i":2,"j":1}],4]},"b":{"c":3,"d":{"e":2,"f":1}}}"#,
        ),
        ("[[[],{}],[{\"\":{}}]]", "[[[],{}],[{\"\":{}}]]"),
        (" true ", "true"),
        ("\"\"", "\"\""),
    ] {
        assert_eq!(exact(text).as_deref(), Ok(form));
    }
}

#[test]
fn every_character_has_one_spelling() {
    for (text, form) in [
        (r#""\u0041\/\u002F/""#, r#""A///""#),
        (r#""\u0022\u005c\"\\""#, r#""\"\\\"\\""#),
        (r#""\u0008\u0009\u000a\u000c\u000D\b\t\n\f\r""#, r#""\b\t\n\f\r\b\t\n\f\r""#),
        (r#""\u0000\u001F\u007f""#, "\"\\u0000\\u001f\u{7f}\""),
        (r#""\u00e9\u20ac\ud83D\uDE00\u2028""#, "\"é€😀\u{2028}\""),
    ] {
        assert_eq!(exact(text).as_deref(), Ok(form));
    }
}

#[test]
fn names_are_sorted_as_they_read_and_not_as_they_are_spelled() {
    assert_eq!(
        exact(r#"{"\u0062":1,"a":2,"\n":3,"\"":4,"!":5}"#).unwrap(),
        r#"{"\n":3,"!":5,"\"":4,"a":2,"b":1}"#
    );
    assert_eq!(
        exact("{\"\u{fb33}\":1,\"😀\":2,\"\\ue000\":3}").unwrap(),
        "{\"😀\":2,\"\u{e000}\":3,\"\u{fb33}\":1}"
    );
    assert_eq!(exact(r#"{"ab":1,"a":2,"":3}"#).unwrap(), r#"{"":3,"a":2,"ab":1}"#);
}

#[test]
fn two_members_of_one_name_are_refused_however_they_are_spelled() {
    for text in
        [r#"{"a":1,"a":1}"#, r#"{"a":1,"b":2,"\u0061":3}"#, r#"[{"x":{"":0,"":0}}]"#, r#"{"\/":1,"/":2}"#]
    {
        assert!(matches!(exact(text), Err(NotCanonical::DuplicateName { .. })), "{text}");
    }
    assert!(exact(r#"{"a":{"a":1},"b":{"a":1}}"#).is_ok());
}

#[test]
fn composed_and_decomposed_characters_stay_different() {
    assert_ne!(exact("\"\u{e9}\""), exact("\"e\u{301}\""));
    assert!(exact("{\"\u{e9}\":1,\"e\u{301}\":2}").is_ok());
}

#[test]
fn half_a_surrogate_pair_is_refused() {
    for text in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800\ud800""#,
        r#""\ud800x""#,
        r#""\udc00\ud800""#,
        r#"{"\ud800":1}"#,
        r#""\ud800\u0041""#,
    ] {
        assert!(matches!(exact(text), Err(NotCanonical::LoneSurrogate { .. })), "{text}");
    }
}

#[test]
fn what_is_not_json_is_refused_where_it_stops_being_so() {
    for (text, at) in [
        ("", 0),
        (" ", 1),
        ("{", 1),
        ("[1,]", 3),
        ("[1 2]", 3),
        ("{\"a\"}", 4),
        ("{\"a\":}", 5),
        ("{,}", 1),
        ("{\"a\":1,}", 7),
        ("1 2", 2),
        ("nul", 0),
        ("\"\t\"", 1),
        ("\"a", 2),
        ("\"\\x\"", 2),
        ("\"\\u12g4\"", 3),
        ("\"\\u12", 3),
        ("]", 0),
        ("[}", 1),
        ("{]", 1),
        ("[1}", 2),
        ("01", 1),
        ("-", 1),
        ("+1", 0),
        (".5", 0),
        ("\u{feff}{}", 0),
        ("{}\0", 2),
        ("'a'", 0),
        ("{1:2}", 1),
        ("\u{a0}1", 0),
    ] {
        assert_eq!(exact(text), Err(NotCanonical::InvalidJson { at }), "{text:?}");
    }
    let wrong = canonicalize(b"\"\xff\"", Numbers::Exact, DEPTH);
    assert_eq!(wrong, Err(NotCanonical::InvalidUtf8 { at: 1 }));
}

#[test]
fn depth_is_allowed_up_to_the_limit_and_no_further() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(exact(&nested(DEPTH)).is_ok());
    assert_eq!(exact(&nested(DEPTH + 1)), Err(NotCanonical::TooDeep { limit: DEPTH }));
    let objects = |depth: usize| format!("{}1{}", "{\"b\":0,\"a\":".repeat(depth), "}".repeat(depth));
    assert!(exact(&objects(DEPTH)).is_ok());
    assert_eq!(exact(&objects(DEPTH + 1)), Err(NotCanonical::TooDeep { limit: DEPTH }));
    assert_eq!(canonicalize(b"[]", Numbers::Exact, 0), Err(NotCanonical::TooDeep { limit: 0 }));
    let unbounded = objects(100_000);
    assert!(canonicalize(unbounded.as_bytes(), Numbers::Exact, usize::MAX).is_ok());
}

#[test]
fn a_double_is_written_as_rfc_8785_does_and_one_that_is_none_is_refused() {
    let double = |text: &str| {
        canonicalize(text.as_bytes(), Numbers::Rfc8785, DEPTH).map(|text| String::from_utf8(text).unwrap())
    };
    for (text, form) in [
        ("333333333.33333329", "333333333.3333333"),
        ("1E30", "1e+30"),
        ("4.50", "4.5"),
        ("2e-3", "0.002"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("1e-999", "0"),
        ("9007199254740993", "9007199254740992"),
        ("0.000000000000000000000000001", "1e-27"),
        ("123456789012345", "123456789012345"),
        ("[1.0]", "[1]"),
    ] {
        assert_eq!(double(text).as_deref(), Ok(form), "{text}");
    }
    assert_eq!(double("[1e999]"), Err(NotCanonical::NumberOutOfRange { at: 6 }));
    assert_eq!(exact("[1e9999999999999999999]"), Err(NotCanonical::NumberOutOfRange { at: 22 }));
}

#[test]
fn ignored_members_are_left_out_as_if_they_had_not_been_sent() {
    for (text, pointers, form) in [
        (r#"{"a":1,"b":2}"#, &["/a"][..], r#"{"b":2}"#),
        (r#"{"a":1,"b":2}"#, &["/b"], r#"{"a":1}"#),
        (r#"{"c":3,"a":1,"b":2}"#, &["/a", "/b", "/c"], "{}"),
        (r#"{"a":{"b":{"c":1,"d":2}}}"#, &["/a/b/c"], r#"{"a":{"b":{"d":2}}}"#),
        (r#"{"a":{"b":1},"b":1}"#, &["/a/b", "/x/b"], r#"{"a":{},"b":1}"#),
        (r#"{"\u0061":1,"b":2}"#, &["/a"], r#"{"b":2}"#),
        (r#"{"a/b":1,"m~n":2,"\"":3,"":4}"#, &["/a~1b", "/m~0n", "/\"", "/"], "{}"),
        (r#"[1,2,3]"#, &["/1"], "[1,3]"),
        (r#"[1,2,3]"#, &["/0", "/2", "/-", "/01", "/9"], "[2]"),
        (r#"[[1,2],[3,4]]"#, &["/1/0"], "[[1,2],[4]]"),
        (
            r#"{"items":[{"t":1,"n":2},{"n":3,"t":4}]}"#,
            &["/items/1/t"],
            r#"{"items":[{"n":2,"t":1},{"n":3}]}"#,
        ),
        (r#"{"0":1,"1":2}"#, &["/0"], r#"{"1":2}"#),
        (r#"[{"b":{"y":1,"x":2},"a":3}, 4 ]"#, &["/0/b/y", "/1"], r#"[{"a":3,"b":{"x":2}}]"#),
        (r#"{"a":{"z":1,"y":2}}"#, &["/a", "/a/z"], "{}"),
        ("7", &["/a"], "7"),
    ] {
        assert_eq!(without(text, pointers).as_deref(), Ok(form), "{text} without {pointers:?}");
    }
}

#[test]
fn an_ignored_member_must_still_be_sound() {
    assert!(matches!(without(r#"{"a":1,"a":2,"b":3}"#, &["/a"]), Err(NotCanonical::DuplicateName { .. })));
    assert!(matches!(without(r#"{"a":{"x":1,"x":2}}"#, &["/a"]), Err(NotCanonical::DuplicateName { .. })));
    assert!(matches!(without(r#"{"a":"\ud800"}"#, &["/a"]), Err(NotCanonical::LoneSurrogate { .. })));
}

#[test]
fn a_reused_scratch_remembers_nothing_even_of_a_body_that_broke_off() {
    let mut scratch = Scratch::default();
    let rules = Rules { numbers: Numbers::Exact, max_depth: DEPTH, ignored: &[] };
    for _ in 0..2 {
        assert!(scratch.canonicalize(br#"{"b":{"d":1,"c":2},"a":[{"f":"#, rules).is_err());
        assert_eq!(scratch.canonicalize(br#"{"b":1,"a":2}"#, rules), Ok(&br#"{"a":2,"b":1}"#[..]));
        assert_eq!(scratch.canonicalize(b"[1]", rules), Ok(&b"[1]"[..]));
    }
}

#[test]
fn a_text_too_long_for_its_offsets_is_refused_unread() {
    let longest = canonicalize(&vec![0; MAX_CANONICAL_BYTES], Numbers::Exact, DEPTH);
    assert_eq!(longest, Err(NotCanonical::InvalidJson { at: 0 }));
    let found = MAX_CANONICAL_BYTES + 1;
    assert_eq!(canonicalize(&vec![0; found], Numbers::Exact, DEPTH), Err(NotCanonical::TooLong { found }));
}

#[test]
fn memory_stays_within_the_documented_growth() {
    let ignored = [Pointer::parse("/7").unwrap(), Pointer::parse("/9/x").unwrap()];
    let rules = Rules { numbers: Numbers::Exact, max_depth: DEPTH, ignored: &ignored };
    let names: String = (0..20_000).rev().map(|index| format!("\"{index:x}\":0,")).collect();
    for body in [
        format!("[{}1]", "1e20,".repeat(50_000)),
        format!("[{}1]", "0,".repeat(50_000)),
        format!("{{{}\"\":0}}", "\"\":0,".repeat(50_000)),
        format!("{{{names}\"\":0}}"),
        format!("[{}{{}}]", "{},".repeat(50_000)),
        format!("[{}1]", "{\"b\":0,\"a\":0},".repeat(20_000)),
        format!("[{}1]", "{\"\":{\"b\":0,\"a\":0}},".repeat(20_000)),
    ] {
        let mut scratch = Scratch::default();
        let _ = scratch.canonicalize(body.as_bytes(), rules);
        let Scratch { text, open, pending, members, containers, steps, sorted } = &scratch;
        let taken = text.capacity()
            + sorted.capacity()
            + size_of_val(&open[..])
            + size_of_val(&steps[..])
            + (pending.capacity() + members.capacity()) * size_of::<Member>()
            + containers.capacity() * size_of::<Container>();
        assert!(taken <= WORST_GROWTH * body.len(), "{taken} for {} of {}", body.len(), &body[..20]);
    }
}
