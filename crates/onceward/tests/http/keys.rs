//! Keys and fingerprints in unusual forms.

use bytes::Bytes;
use http::{HeaderValue, Method, Request};
use http_body_util::Full;
use onceward::fingerprint::Profile;
use onceward::http::{Disposition, KeyRule, Policy, Routes};
use onceward::{key::Syntax, record::RecordFormat};

use super::{builder, memory, post, with, without, world, world_with};

#[tokio::test(start_paused = true)]
async fn methods_that_are_not_listed_pass_through_with_a_key_and_leave_no_record() {
    let world = world(Policy::new()).await;
    for (index, method) in
        [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE].into_iter().enumerate()
    {
        for _ in 0..2 {
            let mut request = post("k", "{}");
            *request.method_mut() = method.clone();
            let got = world.send(without(request, "x-tenant")).await;
            assert_eq!((got.status, got.header("idempotency-expires")), (201, None), "{method}");
        }
        assert_eq!(world.ledger(), (index as u64 + 1) * 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_method_in_another_case_is_refused_and_gets_around_no_required_key() {
    let required = Policy::new().key(KeyRule::Required);
    let mut world = world(Policy::new()).await;
    let routes = Routes::new(Policy::new()).unwrap().route("POST /payments", required.clone()).unwrap();
    let routes = routes.route("PROPFIND /payments", required).unwrap();
    world.routes = routes.unprotected("REPORT /payments").unwrap();
    let send = async |method: &str, key: bool| {
        let mut request = post("k", "{}");
        *request.method_mut() = method.parse().unwrap();
        world.send(if key { request } else { without(request, "idempotency-key") }).await
    };
    for method in ["post", "Post", "pAtCh", "get", "head", "Trace", "propfind", "Report"] {
        for key in [true, false] {
            let got = send(method, key).await;
            assert_eq!(
                got.handled.disposition,
                Disposition::Refused("idempotency_method_invalid"),
                "{method}"
            );
            if method != "head" {
                assert_eq!(got.problem(), (400, "idempotency_method_invalid".to_owned()), "{method}");
            }
        }
    }
    assert_eq!(world.ledger(), 0);
    for (count, method) in ["MKCOL", "M-SEARCH", "mkcol", "posts", "REPORT"].into_iter().enumerate() {
        assert_eq!(send(method, false).await.status, 201, "{method}");
        assert_eq!(world.ledger(), count as u64 + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_can_list_other_methods() {
    let mut world = world(Policy::new()).await;
    world.routes = Routes::new(Policy::new()).unwrap().route("PUT /payments", Policy::new()).unwrap();
    for _ in 0..2 {
        let mut request = post("k", "{}");
        *request.method_mut() = Method::PUT;
        assert_eq!(world.send(request).await.status, 201);
    }
    assert_eq!(world.ledger(), 1);
}

#[tokio::test(start_paused = true)]
async fn both_spellings_name_the_same_key_and_strict_syntax_wants_quotes() {
    let lenient = world(Policy::new()).await;
    lenient.send(post("k", "{}")).await;
    for same in ["\"k\"", " k ", "\"k\";p=1"] {
        assert!(lenient.send(post(same, "{}")).await.is_replay(), "{same}");
    }
    assert_eq!(lenient.ledger(), 1);

    let strict = world(Policy::new().syntax(Syntax::Strict)).await;
    assert_eq!(strict.send(post("k", "{}")).await.problem().1, "idempotency_key_invalid");
    assert_eq!(strict.send(post("\"k\"", "{}")).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_key_is_refused_and_never_repeated() {
    let world = world(Policy::new()).await;
    let long = "x".repeat(256);
    let refused: Vec<&[u8]> = vec![
        b"",
        b"  ",
        b"\"\"",
        b"a,b",
        b"visible;p=1",
        b"visible\\",
        b"in visible",
        b"\"visible\\x\"",
        b"\"visible",
        b"visible\tthere",
        b"\xc3\xa9visible",
        long.as_bytes(),
    ];
    for value in refused {
        let mut request = post("k", "{}");
        request.headers_mut().insert("idempotency-key", HeaderValue::from_bytes(value).unwrap());
        let got = world.send(request).await;
        assert_eq!(got.problem(), (400, "idempotency_key_invalid".to_owned()), "{value:?}");
        assert!(!String::from_utf8_lossy(&got.body).contains("visible"), "{got:?}");
    }
    let two = with(post("k", "{}"), "idempotency-key", "k");
    assert_eq!(world.send(two).await.problem().0, 400);
    for connection in ["Idempotency-Key", "close, idempotency-KEY"] {
        let got = world.send(with(post("k", "{}"), "connection", connection)).await;
        assert_eq!(got.problem(), (400, "idempotency_key_invalid".to_owned()));
    }
    assert_eq!(world.ledger(), 0);
    assert_eq!(world.send(post(&"x".repeat(255), "{}")).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn a_short_key_is_refused_where_the_route_asks_for_more() {
    let world = world(Policy::new().min_key_length(16)).await;
    assert_eq!(world.send(post("123456789012345", "{}")).await.problem().0, 400);
    assert_eq!(world.send(post("1234567890123456", "{}")).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn keys_that_differ_in_case_or_inner_spaces_are_different() {
    let world = world(Policy::new()).await;
    for key in ["abc", "Abc", "\"a bc\"", "\"a  bc\""] {
        assert!(!world.send(post(key, "{}")).await.is_replay(), "{key}");
    }
    assert_eq!(world.ledger(), 4);
}

#[tokio::test(start_paused = true)]
async fn another_method_path_or_query_is_another_request() {
    let world = world(Policy::new()).await;
    world.send(post("k", "{}")).await;
    let changed = |change: &dyn Fn(&mut Request<Full<Bytes>>)| {
        let mut request = post("k", "{}");
        change(&mut request);
        request
    };
    for request in [
        changed(&|request| *request.method_mut() = Method::PATCH),
        changed(&|request| *request.uri_mut() = "/refunds".parse().unwrap()),
        changed(&|request| *request.uri_mut() = "/payments?x=1".parse().unwrap()),
    ] {
        assert_eq!(world.send(request).await.status, 422);
    }
    assert_eq!(world.ledger(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_json_in_another_spelling_is_the_same_request() {
    let world = world(Policy::new()).await;
    world.send(post("k", r#"{"amount": 100, "name": "A"}"#)).await;
    for same in [
        r#"{"name":"A","amount":100}"#,
        r#"{"amount":1e2,"name":"\u0041"}"#,
        "{\n  \"amount\": 100.0, \"name\": \"A\"}",
    ] {
        assert!(world.send(post("k", same)).await.is_replay(), "{same}");
    }
    for other in [r#"{"amount":101,"name":"A"}"#, r#"{"amount":100,"name":"a"}"#] {
        assert_eq!(world.send(post("k", other)).await.status, 422, "{other}");
    }
    assert_eq!(world.ledger(), 1);
}

#[tokio::test(start_paused = true)]
async fn doubtful_bodies_are_compared_by_their_bytes() {
    let world = world(Policy::new()).await;
    let deep = "[".repeat(100_000);
    for (index, (body, other)) in [
        ("9007199254740993".to_owned(), "9007199254740992".to_owned()),
        (r#"{"a":1,"a":2}"#.to_owned(), r#"{"a":2,"a":1}"#.to_owned()),
        (r#""\ud800""#.to_owned(), r#""\ud801""#.to_owned()),
        ("\"\u{e9}\"".to_owned(), "\"e\u{301}\"".to_owned()),
        (deep.clone(), format!("{deep}[")),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k{index}");
        assert_eq!(world.send(post(&key, &body)).await.status, 201);
        assert!(world.send(post(&key, &body)).await.is_replay());
        assert_eq!(world.send(post(&key, &other)).await.status, 422, "{index}");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_not_utf_8_are_compared_as_well() {
    let world = world(Policy::new()).await;
    let raw = |bytes: &'static [u8]| post("k", "").map(|_| Full::from(bytes));
    assert_eq!(world.send(raw(b"\"\xff\"")).await.status, 201);
    assert!(world.send(raw(b"\"\xff\"")).await.is_replay());
    assert_eq!(world.send(raw(b"\"\xfe\"")).await.status, 422);
}

#[tokio::test(start_paused = true)]
async fn a_new_multipart_boundary_is_the_same_request() {
    let world = world(Policy::new()).await;
    let multipart = |boundary: &str, value: &str| {
        let body = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n--{boundary}--\r\n"
        );
        let request = without(post("k", &body), "content-type");
        with(request, "content-type", &format!("multipart/form-data; boundary={boundary}"))
    };
    assert_eq!(world.send(multipart("one", "1")).await.status, 201);
    assert!(world.send(multipart("two", "1")).await.is_replay());
    assert_eq!(world.send(multipart("two", "2")).await.status, 422);
}

#[tokio::test(start_paused = true)]
async fn headers_count_only_where_the_route_names_them() {
    let plain = world(Policy::new()).await;
    plain.send(with(post("k", "{}"), "user-agent", "one")).await;
    assert!(plain.send(with(post("k", "{}"), "traceparent", "00-1")).await.is_replay());

    let fingerprint =
        onceward::Profile::builder().headers(["X-Currency"]).ignore(["/sent_at"]).build().unwrap();
    let named = world(Policy::new().fingerprint(fingerprint)).await;
    named.send(with(post("k", r#"{"sent_at":1}"#), "x-currency", "EUR")).await;
    assert!(named.send(with(post("k", r#"{"sent_at":2}"#), "x-currency", "EUR")).await.is_replay());
    assert_eq!(named.send(with(post("k", r#"{"sent_at":1}"#), "x-currency", "USD")).await.status, 422);
}

#[tokio::test(start_paused = true)]
async fn a_fingerprint_setting_that_changed_between_two_tries_replays() {
    let mut world = world(Policy::new()).await;
    world.send(post("k", "{}")).await;
    let fingerprint = onceward::Profile::builder().ignore(["/sent_at"]).build().unwrap();
    world.routes = Routes::new(Policy::new().fingerprint(fingerprint)).unwrap();
    assert!(world.send(post("k", "{}")).await.is_replay());
    assert_eq!(world.ledger(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_service_gets_the_key_as_it_came_and_its_operation_instead_of_the_clients() {
    let world = world(Policy::new()).await;
    let mut request = post("\"k\";p=1", "{}");
    for name in ["onceward-operation", "onceward-fence", "onceward-attempt", "onceward-recovery-point"] {
        request = with(with(request, name, "forged"), name, "forged again");
    }
    world.send(request).await;
    let saw = world.upstream.saw.lock().unwrap().clone();
    assert_eq!(saw["idempotency-key"], "\"k\";p=1");
    assert_eq!(
        (&saw["onceward-attempt"], &saw["onceward-recovery-point"]),
        (&"1".parse().unwrap(), &"started".parse().unwrap())
    );
    assert!(
        saw["onceward-operation"]
            .to_str()
            .unwrap()
            .parse::<onceward::OperationId>()
            .is_ok_and(|id| id.opened().is_some())
    );
    assert!(saw["onceward-fence"].to_str().unwrap().parse::<u64>().is_ok());
    assert!(saw.get_all("onceward-operation").iter().count() == 1);

    let unkeyed = without(with(post("k", "{}"), "onceward-fence", "forged"), "idempotency-key");
    world.send(unkeyed).await;
    assert!(!world.upstream.saw.lock().unwrap().contains_key("onceward-fence"));
}

#[tokio::test(start_paused = true)]
async fn a_record_of_format_1_answers_no_other_target_after_the_fingerprint_rules_have_changed() {
    let store = memory();
    let with_headers = |names: &[&str]| {
        let fingerprint = Profile::builder().headers(names.iter().copied()).build().unwrap();
        Policy::new().fingerprint(fingerprint)
    };
    let old = |store| builder(store).record_format(RecordFormat::One);
    let before = world_with(old(store.clone()), with_headers(&[])).await;
    assert_eq!(before.send(post("k", "{\"amount\":1}")).await.status, 201);
    let after = world_with(old(store), with_headers(&["x-api-version"])).await;
    let mut refund = post("k", "{\"refund\":9}");
    *refund.uri_mut() = "/refunds".parse().unwrap();
    let refused = after.send(refund).await;
    assert_eq!(refused.problem(), (409, "idempotency_outcome_unknown".to_owned()));
    assert_eq!(refused.json()["next_action"], "contact");
    assert_eq!((before.ledger(), after.ledger()), (1, 0));
}
