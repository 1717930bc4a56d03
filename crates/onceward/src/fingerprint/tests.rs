use proptest::prelude::*;

use super::*;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

fn plain() -> Profile {
    Profile::builder().build().unwrap()
}

fn of(profile: &Profile, content_type: &str, body: impl AsRef<[u8]>) -> Fingerprint {
    let headers = [("Content-Type", content_type.as_bytes())];
    let (method, path) = ("POST", "/payments");
    profile.fingerprint(&Parts { method, path, query: None, headers: &headers, body: body.as_ref() })
}

fn json(body: impl AsRef<[u8]>) -> Fingerprint {
    of(&plain(), JSON, body)
}

fn form(body: &str) -> Fingerprint {
    of(&plain(), FORM, body)
}

fn with_headers<const N: usize>(profile: &Profile, headers: [(&str, &[u8]); N], body: &[u8]) -> Fingerprint {
    profile.fingerprint(&Parts { method: "POST", path: "/payments", query: None, headers: &headers, body })
}

#[test]
fn members_reordered_white_space_and_number_spelling_are_the_same_request() {
    let first = json(r#"{"amount":100,"rate":1,"name":"A"}"#);
    for retry in [
        r#"{"name":"A","rate":1,"amount":100}"#,
        "{ \"amount\" : 100,\r\n\t\"rate\" : 1, \"name\" : \"A\" }\n",
        r#"{"amount":1e2,"rate":1.0,"name":"A"}"#,
        r#"{"amount":100.00,"rate":10e-1,"n\u0061me":"\u0041"}"#,
    ] {
        assert_eq!(first, json(retry), "{retry}");
    }
}

#[test]
fn a_corrected_body_is_another_request() {
    let first = json(r#"{"amount":100}"#);
    for other in [
        r#"{"amount":101}"#,
        r#"{"amount":"100"}"#,
        r#"{"Amount":100}"#,
        r#"{"amount":100,"x":null}"#,
        "{}",
        "",
    ] {
        assert_ne!(first, json(other), "{other}");
    }
}

#[test]
fn integers_that_a_double_cannot_tell_apart_are_different_requests() {
    assert_ne!(json("9007199254740993"), json("9007199254740992"));
    assert_ne!(json("1.000000000000000005"), json("1"));
    assert_ne!(json("1e-999"), json("0"));
}

#[test]
fn nfc_and_nfd_are_different_requests() {
    assert_ne!(json("\"\u{e9}\""), json("\"e\u{301}\""));
}

#[test]
fn doubtful_json_is_compared_by_its_bytes() {
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    for (one, other) in [
        (r#"{"a":1,"a":2}"#.to_owned(), r#"{"a":1, "a":2}"#.to_owned()),
        (r#"["\ud800"]"#.to_owned(), r#"[ "\ud800"]"#.to_owned()),
        ("{".to_owned(), "{ ".to_owned()),
        ("\u{feff}{}".to_owned(), "\u{feff}{ }".to_owned()),
        ("1e99999999999999999999".to_owned(), "1e99999999999999999999 ".to_owned()),
        (deep(Profile::MAX_DEPTH + 1), deep(Profile::MAX_DEPTH + 1) + " "),
    ] {
        assert_eq!(json(&one), json(&one));
        assert_ne!(json(&one), json(&other), "{one}");
    }
    assert_ne!(json(b"\"\xff\""), json(b" \"\xff\""));
    assert_eq!(json(deep(Profile::MAX_DEPTH)), json(deep(Profile::MAX_DEPTH) + " "));
    let enormous = "[".repeat(1_000_000);
    assert_eq!(json(&enormous), json(&enormous));
}

#[test]
fn bytes_that_only_look_like_a_canonical_form_are_another_request() {
    assert_ne!(of(&plain(), "text/plain", "{}"), of(&plain(), JSON, "{}"));
    assert_ne!(of(&plain(), "application/a+json", "{}"), of(&plain(), "application/b+json", "{}"));
    assert_eq!(of(&plain(), "application/a+json", "{}"), of(&plain(), "Application/A+JSON; v=1", "{ }"));
    assert_ne!(of(&plain(), "text/plain", "{}"), of(&plain(), "text/plain", "{ }"));
}

#[test]
fn method_path_and_query_are_part_of_the_request() {
    let profile = plain();
    let of =
        |method, path, query| profile.fingerprint(&Parts { method, path, query, headers: &[], body: b"" });
    let all = [
        of("POST", "/a", None),
        of("PATCH", "/a", None),
        of("POST", "/a/", None),
        of("POST", "/a%62", None),
        of("POST", "/ab", None),
        of("POST", "/a", Some("")),
        of("POST", "/a", Some("x=1")),
        of("POST", "/a", Some("x=1&")),
        of("POST", "/ax=1", None),
        of("POST/", "a", None),
    ];
    for (index, one) in all.iter().enumerate() {
        assert!(!all[..index].contains(one), "{index}");
    }
    assert_eq!(all[0], of("POST", "/a", None));
}

#[test]
fn only_chosen_headers_count_with_all_their_values_in_order() {
    let none = plain();
    let chosen = Profile::builder().headers(["X-Tenant", "api-version"]).build().unwrap();
    let trace = |profile| with_headers(profile, [("traceparent", b"1"), ("user-agent", b"a")], b"");
    let other = |profile| with_headers(profile, [("traceparent", b"2"), ("user-agent", b"b")], b"");
    assert_eq!(trace(&none), other(&none));
    assert_eq!(trace(&chosen), other(&chosen));

    let all = [
        with_headers(&chosen, [], b""),
        with_headers(&chosen, [("x-tenant", b"")], b""),
        with_headers(&chosen, [("x-tenant", b"a")], b""),
        with_headers(&chosen, [("api-version", b"a")], b""),
        with_headers(&chosen, [("x-tenant", b"a"), ("x-tenant", b"b")], b""),
        with_headers(&chosen, [("x-tenant", b"b"), ("x-tenant", b"a")], b""),
        with_headers(&chosen, [("x-tenant", b"a,b")], b""),
        with_headers(&chosen, [("x-tenant", b"ab")], b""),
    ];
    for (index, one) in all.iter().enumerate() {
        assert!(!all[..index].contains(one), "{index}");
    }
    assert_eq!(all[2], with_headers(&chosen, [("other", b"x"), ("X-TENANT", b"a")], b""));
}

#[test]
fn an_encoded_body_is_compared_as_sent_together_with_its_encoding() {
    let profile = plain();
    let of = |encoding: &[u8], body: &[u8]| {
        with_headers(&profile, [("content-type", JSON.as_bytes()), ("content-encoding", encoding)], body)
    };
    assert_ne!(of(b"gzip", b"{}"), of(b"gzip", b"{ }"));
    assert_ne!(of(b"gzip", b"{}"), of(b"br", b"{}"));
    assert_eq!(of(b"gzip", b"{}"), of(b"GZIP", b"{}"));
    assert_eq!(of(b"identity", b"{}"), of(b"", b"{ }"));
    assert_eq!(of(b"identity", b"{}"), json("{}"));
    assert_ne!(of(b"gzip, br", b"{}"), of(b"br, gzip", b"{}"));
}

#[test]
fn contradictory_content_types_leave_the_body_uninterpreted() {
    let twice = |body| {
        with_headers(&plain(), [("content-type", JSON.as_bytes()), ("content-type", JSON.as_bytes())], body)
    };
    assert_ne!(twice(b"{}"), twice(b"{ }"));
    assert_ne!(twice(b"{}"), json("{}"));
    let missing = |body| with_headers(&plain(), [], body);
    assert_ne!(missing(b"{}"), missing(b"{ }"));
    assert_ne!(missing(b""), with_headers(&plain(), [("content-type", b"")], b""));
}

#[test]
fn form_fields_may_change_places_but_not_within_a_name() {
    assert_eq!(form("a=1&b=2"), form("b=2&a=1"));
    assert_eq!(form("a=1&b=2&a=3"), form("b=2&a=1&a=3"));
    assert_ne!(form("a=1&a=2"), form("a=2&a=1"));
    assert_eq!(form("a=x+y&b=%41"), form("b=A&%61=x%20y"));
    assert_eq!(form("a=%c3%a9"), form("a=%C3%A9"));
    for (one, other) in [
        ("a=1&b=2", "a=1&b=3"),
        ("a=1&b=2", "a=1%26b=2"),
        ("a", "a="),
        ("a=1", "a=1&"),
        ("a=b=c", "a%3Db=c"),
        ("a=%zz", "a=%25zz"),
        ("a=%4", "a=%254"),
        ("a=+", "a=%2B"),
        ("", "="),
        ("ab=c", "a=bc"),
    ] {
        assert_ne!(form(one), form(other), "{one} against {other}");
    }
    assert_ne!(form("a=%zz&b=1"), form("b=1&a=%zz"), "a broken escape leaves the whole body uninterpreted");
}

#[test]
fn a_multipart_body_may_come_with_a_new_boundary() {
    let body = |boundary: &str, value: &str| {
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n\0\r\n--x\r\n--{boundary}--\r\n"
        )
    };
    let of = |content_type: &str, body: String| of(&plain(), content_type, body);
    let first = of("multipart/form-data; boundary=one", body("one", "1"));
    assert_eq!(first, of("multipart/form-data; boundary=\"t w o\"", body("t w o", "1")));
    assert_ne!(first, of("multipart/form-data; boundary=two", body("two", "2")));
    assert_ne!(first, of("multipart/form-data; boundary=one", body("two", "1")));
    assert_ne!(first, of("multipart/mixed; boundary=one", body("one", "1")));
    assert_ne!(first, of("multipart/form-data", body("one", "1")));
}

#[test]
fn ignored_pointers_leave_members_out_of_json_only() {
    let profile = Profile::builder().ignore(["/sent_at", "/items/0/note"]).build().unwrap();
    let json = |body: &str| of(&profile, JSON, body);
    assert_eq!(json(r#"{"a":1,"sent_at":1}"#), json(r#"{"sent_at":{"x":[]},"a":1}"#));
    assert_eq!(json(r#"{"a":1,"sent_at":1}"#), json(r#"{"a":1}"#));
    assert_eq!(json(r#"{"items":[{"note":1,"n":2}]}"#), json(r#"{"items":[{"n":2,"note":3}]}"#));
    assert_ne!(json(r#"{"items":[{},{"note":1}]}"#), json(r#"{"items":[{},{"note":2}]}"#));
    assert_ne!(json(r#"{"a":{"sent_at":1}}"#), json(r#"{"a":{"sent_at":2}}"#));
    assert_ne!(json(r#"{"sent_at":1,"sent_at":1}"#), json(r#"{"sent_at":1,"sent_at":2}"#));
    assert_ne!(of(&profile, FORM, "sent_at=1"), of(&profile, FORM, "sent_at=2"));
}

#[test]
fn equal_settings_have_one_id_and_other_settings_another() {
    let base = || Profile::builder().headers(["a", "b"]).ignore(["/x", "/y"]);
    let id = |builder: Builder| builder.build().unwrap().id();
    let same = Profile::builder().headers(["B", "A", "b"]).ignore(["/y", "/x", "/x"]);
    assert_eq!(id(base()), id(same));
    let secret = |byte| Secret::new(vec![byte; 16]).unwrap();
    let ids = [
        id(base()),
        id(base().headers(["c"])),
        id(base().ignore(["/z"])),
        id(base().max_depth(5)),
        id(base().secret(secret(1))),
        id(base().secret(secret(2))),
        id(Profile::builder()),
        id(Profile::builder().headers(["/x"[1..].to_owned()])),
        id(Profile::builder().ignore(["/x"])),
        ProfileId::OPAQUE,
        ProfileId::NONE,
    ];
    for (index, one) in ids.iter().enumerate() {
        assert!(!ids[..index].contains(one), "{index}");
    }
    assert_eq!(id(base().secret(secret(1))), id(base().secret(secret(1))));
}

#[test]
fn fingerprints_of_other_rules_are_incomparable_and_not_different() {
    let changed = Profile::builder().ignore(["/sent_at"]).build().unwrap();
    assert_eq!(json("{}").compare(&of(&changed, JSON, "{}")), Comparison::Incomparable);
    assert_eq!(json("{}").compare(&json("{ }")), Comparison::Same);
    assert_eq!(json("{}").compare(&json("[]")), Comparison::Different);
    assert_eq!(Fingerprint::of_bytes(b"{}").compare(&json("{}")), Comparison::Different, "no request at all");
    let unseen = Fingerprint::new(ProfileId::NONE, *json("{}").digest());
    assert_eq!(unseen.compare(&unseen), Comparison::Incomparable);
}

#[test]
fn requests_to_other_targets_are_different_whatever_the_rules() {
    let changed = Profile::builder().ignore(["/sent_at"]).build().unwrap();
    let at = |profile: &Profile, method, path, query| {
        profile.fingerprint(&Parts {
            method,
            path,
            query,
            headers: &[("content-type", JSON.as_bytes())],
            body: b"{}",
        })
    };
    let plain = Profile::default();
    let first = at(&plain, "POST", "/payments", None);
    for (method, path, query) in [
        ("POST", "/refunds", None),
        ("PATCH", "/payments", None),
        ("POST", "/payments", Some("")),
        ("POST", "/payments", Some("a=1")),
    ] {
        for profile in [&plain, &changed] {
            assert_eq!(
                first.compare(&at(profile, method, path, query)),
                Comparison::Different,
                "{method} {path}"
            );
        }
    }
    assert_eq!(first.compare(&at(&changed, "POST", "/payments", None)), Comparison::Incomparable);
}

#[test]
fn a_fingerprint_of_format_1_is_still_recognised_by_its_content() {
    let stored = |of: Fingerprint| Fingerprint::new(of.profile(), *of.digest());
    assert_eq!(stored(json("{}")).compare(&json("{ }")), Comparison::Same);
    assert_eq!(stored(json("{}")).compare(&json("[]")), Comparison::Different);
    let changed = Profile::builder().ignore(["/sent_at"]).build().unwrap();
    assert_eq!(stored(json("{}")).compare(&of(&changed, JSON, "{}")), Comparison::Incomparable);
}

#[test]
fn a_secret_changes_every_hash() {
    let secret = || Secret::new(*b"a secret of thirty-two bytes, ok").unwrap();
    let keyed = Profile::builder().secret(secret()).build().unwrap();
    assert_ne!(of(&keyed, JSON, "{}").digest(), json("{}").digest());
    assert_eq!(of(&keyed, JSON, "{}"), of(&keyed, JSON, "{ }"));
    let opaque = Fingerprint::of_bytes_keyed(b"x", &secret());
    assert_eq!(opaque.compare(&Fingerprint::of_bytes_keyed(b"x", &secret())), Comparison::Same);
    assert_eq!(opaque.compare(&Fingerprint::of_bytes_keyed(b"y", &secret())), Comparison::Different);
    assert_eq!(opaque.compare(&Fingerprint::of_bytes(b"x")), Comparison::Incomparable);
    assert_ne!(opaque.digest(), Fingerprint::of_bytes(b"x").digest());
}

#[test]
fn settings_that_break_a_rule_are_named() {
    let error = |builder: Builder| builder.build().unwrap_err().to_string();
    assert!(error(Profile::builder().headers(["bad name"])).contains("\"bad name\""));
    assert!(error(Profile::builder().headers([""])).contains("header name"));
    for name in ["Idempotency-Key", "Date", "AUTHORIZATION", "Traceparent", "X-Request-Id", "Onceward-Fence"]
    {
        let refused = error(Profile::builder().headers(["X-Currency", name]));
        assert!(refused.contains(name) && refused.contains("leave it out"), "{refused}");
    }
    assert!(error(Profile::builder().ignore(["sent_at"])).contains("\"sent_at\""));
    let pointers = |count: usize| Profile::builder().ignore((0..count).map(|index| format!("/{index}")));
    assert!(pointers(Profile::MAX_IGNORED).build().is_ok());
    assert!(error(pointers(Profile::MAX_IGNORED + 1)).contains("65"));
}

#[test]
fn the_last_of_as_many_pointers_as_allowed_still_works() {
    let names = (0..Profile::MAX_IGNORED).map(|index| format!("/m{index:02}"));
    let profile = Profile::builder().ignore(names).build().unwrap();
    assert_eq!(of(&profile, JSON, r#"{"m63":1,"m00":2}"#), of(&profile, JSON, "{}"));
}

#[test]
fn a_stored_fingerprint_reads_back_as_itself() {
    let fingerprint = json("{}");
    let stored = postcard::to_stdvec(&fingerprint).unwrap();
    assert_eq!(stored.len(), 57);
    assert_eq!(postcard::from_bytes::<Fingerprint>(&stored), Ok(fingerprint));
}

#[test]
fn fingerprints_stay_what_they_were() {
    // Stored records hold these: if one changes, `ALGORITHM` must rise, so that old ones become incomparable.
    for (name, fingerprint, pinned) in [
        ("json", json(r#"{"b":[1.50,"\u00e9"],"a":null}"#), "9201b8bd"),
        ("form", form("b=1&a=%20&a"), "8a4696cf"),
        ("multipart", of(&plain(), "multipart/x; boundary=b", "--b\r\nA: 1\r\n\r\nx\r\n--b--"), "59e21e68"),
        ("raw", of(&plain(), "text/plain", "x"), "0126094f"),
        ("opaque", Fingerprint::of_bytes(b"x"), "f2e88cbb"),
    ] {
        assert_eq!(format!("{fingerprint:?}"), format!("Fingerprint(#{pinned})"), "{name}");
    }
    assert_eq!(format!("{:?}", plain().id()), "ProfileId(f2f03749998dda57)");
    // A target has no profile that could tell old rules from new ones: it never changes.
    assert_eq!(format!("{:?}", json("{}").target), "Some(Target(#c8f4))");
}

#[test]
fn profiles_are_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>(_: &T) {}
    shared(&plain());
}

proptest! {
    #[test]
    fn arbitrary_requests_never_panic_and_are_the_same_as_themselves(
        content_type in prop_oneof![
            Just(JSON.to_owned()),
            Just(FORM.to_owned()),
            Just("multipart/form-data; boundary=b".to_owned()),
            "multipart/x[;=a-d\" ]{0,20}",
        ],
        body in prop_oneof![any::<Vec<u8>>(), "[a&=%0-9+]{0,20}".prop_map(String::into_bytes),
            "(--b|\r\n|-|a|: | ){0,20}".prop_map(String::into_bytes)],
    ) {
        prop_assert_eq!(of(&plain(), &content_type, &body), of(&plain(), &content_type, &body));
    }

    #[test]
    fn form_fields_in_any_order_of_names_are_the_same_request(
        fields in prop::collection::btree_map("[a-z]{1,4}", "[a-z%]{0,4}", 0..8), seed: u64,
    ) {
        let escape = |text: &String| text.replace('%', "%25");
        let mut pairs: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
        let sorted = form(&pairs.join("&"));
        let by = usize::try_from(seed % 8).unwrap() % pairs.len().max(1);
        pairs.rotate_left(by);
        prop_assert_eq!(form(&pairs.join("&")), sorted);
        pairs.push("extra=1".to_owned());
        prop_assert_ne!(form(&pairs.join("&")), sorted);
    }
}
