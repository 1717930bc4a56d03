//! What is said about configurations that are wrong.

use crate::{Given, transcript, transcript_with};

#[test]
fn what_is_not_toml_is_shown_with_its_line() {
    insta::assert_snapshot!(transcript(&[
        "scope = [\"authorization\"]\nlisten = 127.0.0.1:8420\n",
        "scope = [\"authorization\"\nlisten = \"127.0.0.1:8420\"\n",
        "scope = [\"authorization\"]\nscope = [\"basic:user\"]\n",
        "[defaults\nretention = \"7d\"\n",
        "secret = \"hunter2\n",
        "scope = [\"authorization\"]\n[defaults\nretention = \"7d\n[[routes]\nmatch = POST /payments\n",
    ]));
}

#[test]
fn unknown_keys_are_told_with_the_nearest_and_later_ones_with_what_to_do() {
    insta::assert_snapshot!(transcript(&[
        "scope = [\"authorization\"]\nlisten_address = \"127.0.0.1:1\"\nupstram = \"http://127.0.0.1:1\"\n",
        "scope = [\"authorization\"]\nretention = \"7d\"\n",
        "scope = [\"authorization\"]\n[defaults]\nretentoin = \"7d\"\nupstream = \"http://127.0.0.1:1\"\n",
        "scope = [\"authorization\"]\n[[routes]]\nmatch = \"POST /a\"\nexpire = \"soft\"\nkeys = \"required\"\n",
        "scope = [\"authorization\"]\n[metrics]\nlisten = \"127.0.0.1:9090\"\n",
        "scope = [\"jwt:sub\"]\nauth_url = \"http://127.0.0.1:1\"\n",
        "scope = [\"authorization\"]\n[[routes]]\nmatch = \"POST /a\"\n[routes.reconcile]\nprobe = \"GET /a\"\n",
        "scope = [\"authorization\"]\n[[routes]]\nmatch = \"POST /a\"\n[routes.receipts]\nurl = { env = \"SHOP\" }\ntabel = \"x\"\n\
         [routes.reconcile.find]\nrequest = \"GET /a\"\n",
        "scope = [\"authorization\"]\n[[webhooks]]\npath = \"/webhooks/psp\"\n",
        "scope = [\"authorization\"]\nstore = \"postgres://ada:hunter2@db/x?poool=3\"\ncache = \"redis://:hunter2@db/first\"\n",
    ]));
}

#[test]
fn values_of_the_wrong_kind_are_all_told_at_once() {
    insta::assert_snapshot!(transcript(&[
        "scope = [\"authorisation\", \"auth:tenant\", 5, \"header:\"]\n",
        "scope = \"authorization\"\n",
        "scope = [\"basic:user\"]\nscope_verified = \"yes\"\n",
        "scope = [\"authorization\"]\nlisten = 8420\nupstream = \"127.0.0.1:3000\"\nstore = \"onceward.db\"\nnamespace = 7\n\
         [admin]\nlisten = \":8421\"\n",
        "scope = [\"authorization\"]\n[defaults]\ntimeout = 30\nretention = \"7 dys\"\nmax_request_body = \"1MB\"\n\
         min_key_length = \"long\"\nflavor = \"strip\"\nmethods = [\"post\", 7]\nretryable = [\"429\", 429]\n\
         fingerprint = { header = [] }\n",
        "scope = [\"authorization\"]\nroutes = [{ key = \"required\" }, { match = 5 }, { match = \"POST /a\", protect = 1 }]\n",
        "scope = [\"authorization\"]\nupstream = \"https://api.example.com/v1?x=1\"\npublic_url = \"api.example.com\"\n\
         [logs]\nlevel = \"inof\"\nformat = \"xml\"\n",
        "scope = [\"authorization\"]\nlimits = 5\n[defaults]\nlease = true\n",
        "scope = [\"authorization\"]\npreserve_host = \"no\"\ntrusted_proxies = [\"10.0.0.1/8\", \"proxy.internal\", 7]\n",
        "scope = [\"Authorization\", \"headers:X-Tenant\"]\nrecord_format = \"2\"\nupstream = \"http://127.0.0.1:99999\"\n\
         public_url = \"https://api.example.com:0\"\n",
        "scope = [\"authorization\"]\nrecord_format = 300\n[defaults]\nclose_delimited = true\nmode = [\"observe\"]\n\
         key = { required = 1, optional = 2 }\nretryable = 401\nmethods = \"POST\"\nmin_key_length = -1\nunknown = [70000]\n",
        "scope = [\"authorization\"]\n[routes]\nmatch = \"POST /a\"\n[defaults]\nfingerprint = [[\"X-A\"], [\"/b\"]]\n",
        "scope = [\"authorization\"]\nroutes = [[\"POST /a\"], [\"POST /b\"]]\nlimits = [5]\nadmin = { tokens = { name = \"a\" } }\n",
    ]));
}

#[test]
fn combinations_that_are_impossible_are_told_with_what_to_write_instead() {
    insta::assert_snapshot!(transcript(&[
        "scope = [\"authorization\"]\nlisten = \"127.0.0.1:8421\"\n",
        "scope = [\"authorization\"]\nlisten = \"0.0.0.0:80\"\nadmin = { listen = \"127.0.0.1:80\" }\n",
        "scope = [\"authorization\"]\n[defaults]\nstore_down = \"pass\"\nkey = \"required\"\n",
        "scope = [\"authorization\"]\n[defaults]\nstore_down = \"pass\"\n[[routes]]\nmatch = \"POST /a\"\nkey = \"required\"\n",
        "scope = [\"authorization\"]\n[defaults]\nretryable = [429, 503]\nunknown = [503, 99]\n",
        "scope = [\"authorization\"]\n[defaults]\nretryable = [201, 429]\n",
        "scope = [\"authorization\"]\nupstream = \"http://localhost:8420\"\n",
        "scope = [\"authorization\"]\nupstream = \"http://127.0.0.1:8421/v1\"\n",
        "scope = [\"authorization\"]\nlisten = \"0.0.0.0:80\"\nupstream = \"http://localhost\"\n",
        "scope = [\"header:Idempotency-Key\"]\n",
        "scope = [\"header:Authorization\", \"header:Onceward-Fence\", \"header:traceparent\"]\nscope_verified = true\n",
        "scope = [\"authorization\"]\n[defaults]\nfingerprint = { headers = [\"X-Currency\", \"Authorization\"] }\n\
         [[routes]]\nmatch = \"POST /a\"\nfingerprint = { headers = [\"idempotency-key\"] }\n",
        "scope = [\"authorization\", \"header:X-Tenant\", \"basic:user\"]\n",
        "scope = [\"basic:user\"]\nscope_verified = false\n",
        "scope = [\"authorization\"]\n[limits]\nbuffered_bytes = \"1KiB\"\n[[routes]]\nmatch = \"POST /a\"\nmax_request_body = \"512\"\n",
        "scope = [\"authorization\"]\n[tls]\ncertificate = \"a.pem\"\n",
        "scope = [\"authorization\"]\n[tls]\nkey = \"a.pem\"\n[upstream_tls]\nca = \"ca.pem\"\n",
        "scope = [\"authorization\"]\n[defaults]\nrespond_within = \"0s\"\nlease = \"10ms\"\nretention = \"11000d\"\n\
         in_progress = \"wait\"\nwait = \"0s\"\nmin_key_length = 0\nmode = \"observe\"\n",
        "scope = [\"authorization\"]\nnamespace = \"\"\n[limits]\nconnections = 0\nheader_timeout = \"0s\"\nidle_timeout = \"0s\"\n",
        "scope = [\"authorization\"]\n[defaults]\nfingerprint = { ignore = [\"sent_at\"] }\n",
    ]));
}

#[test]
fn an_upstream_on_another_machine_may_have_the_gateways_own_port() {
    for upstream in
        ["http://10.0.0.7:8080", "http://api:8080", "http://[2001:db8::7]:8080", "http://10.0.0.7:8421"]
    {
        let file =
            format!("scope = [\"authorization\"]\nlisten = \"0.0.0.0:8080\"\nupstream = \"{upstream}\"\n");
        let settings = Given { file: Some(&file), ..Given::default() }.load();
        assert!(settings.is_ok(), "{upstream}: {}", settings.unwrap_err());
    }
}

#[test]
fn routes_that_can_never_match_and_keys_that_can_never_count_are_told() {
    insta::assert_snapshot!(transcript(&[
        "scope = [\"authorization\"]\n[[routes]]\nmatch = \"POST /a/{id}\"\n[[routes]]\nmatch = \"POST /a/{name}\"\n",
        "scope = [\"authorization\"]\n[[routes]]\nmatch = \"POST /a/{id}/\"\n[[routes]]\nmatch = \"POST /a/{id}\"\n",
        "scope = [\"authorization\"]\n[[routes]]\nmatch = \"/*\"\nprotect = false\n[[routes]]\nmatch = \"POST /a\"\n",
        "scope = [\"authorization\"]\n[[routes]]\nmatch = \"post /a\"\n[[routes]]\nmatch = \"POST a\"\n[[routes]]\nmatch = \"/a*\"\n",
        "scope = [\"authorization\"]\n[[routes]]\nmatch = \"POST /a/:id\"\n[[routes]]\nmatch = \"/a/<id>/b\"\nprotect = false\n",
        "scope = [\"authorization\"]\n[[routes]]\nmatch = \"PUT /a\"\nmethods = [\"PUT\"]\n[[routes]]\nmatch = \"/b\"\n\
         protect = false\nkey = \"required\"\n",
    ]));
    let fine = "scope = [\"authorization\"]\n[[routes]]\nmatch = \"POST /a/b\"\n[[routes]]\nmatch = \"POST /a/{id}\"\n\
                [[routes]]\nmatch = \"/a/*\"\n[[routes]]\nmatch = \"/a/*\"\nmethods = [\"PUT\"]\n";
    Given { file: Some(fine), ..Given::default() }.load().unwrap();
}

#[test]
fn a_secret_that_is_not_there_is_named_and_one_that_is_there_is_never_repeated() {
    let said = transcript(&[
        "scope = [\"authorization\"]\nsecret = \"hunter2hunter2hunter2\"\n",
        "scope = [\"authorization\"]\nsecret = 4711471147114711\n",
        "scope = [\"authorization\"]\nsecret = { value = \"hunter2hunter2\" }\n",
        "scope = [\"authorization\"]\nsecret = { env = \"NOT_SET\" }\n",
        "scope = [\"authorization\"]\nsecret = { file = \"/nowhere/secret\" }\n",
        "scope = [\"authorization\"]\nadmin = { tokens = \"hunter2\" }\n",
        "scope = [\"authorization\"]\nupstream = \"http://ada:hunter2@127.0.0.1:1\"\n",
        "scope = [\"authorization\"]\n[[admin.tokens]]\nname = \"ada\"\nrole = \"operator\"\ntoken = \"hunter2\"\n\
         [[admin.tokens]]\nname = \"bob\"\nrole = \"boss\"\ntoken = { env = \"NOT_SET\" }\n",
    ]);
    for answer in said.split("--->").skip(1).map(|rest| rest.split("========").next().unwrap()) {
        assert!(!answer.contains("hunter2") && !answer.contains("4711"), "{answer}");
    }
    insta::assert_snapshot!(said);
}

#[test]
fn without_a_scope_the_choices_are_explained() {
    insta::assert_snapshot!(Given::default().load().unwrap_err());
}

#[test]
fn what_is_wrong_with_variables_and_flags_is_told_with_their_names() {
    let given = Given {
        file: None,
        variables: &[
            ("ONCEWARD_RETENTIN", "7d"),
            ("ONCEWARD_TIMEOUT", "30"),
            ("ONCEWARD_ROUTES", "POST /a"),
            ("ONCEWARD_AUTH_URL", "http://127.0.0.1"),
            ("ONCEWARD_NONSENSE_ALTOGETHER", "1"),
            ("ONCEWARD_SECRET", "too short"),
        ],
        flags: &[
            ("scope", &["authorization,cookie:x"]),
            ("secret", &["hunter2hunter2hunter2"]),
            ("defaults.min_key_length", &["many"]),
            ("listen", &["127.0.0.1:1", "127.0.0.1:2"]),
        ],
    };
    insta::assert_snapshot!(given.load().unwrap_err());
    let short = Given {
        variables: &[("ONCEWARD_SECRET", "hunter2")],
        flags: &[("scope", &["authorization"])],
        ..given
    };
    insta::assert_snapshot!(short.load().unwrap_err());
}

#[test]
fn a_file_that_is_not_there_is_told() {
    let sources = onceward_gateway::config::Sources::new([]).with_file("/nowhere/onceward.toml");
    insta::assert_snapshot!(sources.load().unwrap_err());
}

#[test]
fn receipts_that_could_not_prove_anything_are_refused() {
    let route = "scope = [\"authorization\"]\n[[routes]]\nmatch = \"POST /a\"\n";
    let variables = [("SHOP", "sqlite:shop.db"), ("QUEUE", "redis://:hunter2@cache")];
    insta::assert_snapshot!(transcript_with(
        &variables,
        &[
            &format!("{route}[routes.receipts]\nurl = \"postgres://shop:hunter2@db/shop\"\n"),
            &format!("{route}[routes.receipts]\nurl = {{ env = \"NOT_SET\" }}\n"),
            &format!("{route}[routes.receipts]\ntable = \"receipts\"\n"),
            &format!("{route}[routes.receipts]\nurl = {{ env = \"QUEUE\" }}\n"),
            &format!("{route}[routes.receipts]\nurl = {{ env = \"SHOP\" }}\ntable = \"Receipts; DROP\"\n"),
            &format!("record_format = 1\n{route}[routes.receipts]\nurl = {{ env = \"SHOP\" }}\n"),
            &format!("{route}[routes.reconcile]\nattempts = 3\n"),
            &format!(
                "{route}resume_after = \"2 days\"\ndead_letter_after = \"0s\"\n[routes.receipts]\nurl = {{ env = \"SHOP\" }}\n\
             [routes.reconcile]\nattempts = 0\nbackoff = \"1h\"\n"
            ),
        ]
    ));
}
