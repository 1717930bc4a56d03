//! The commands, as they are typed.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output};

fn onceward(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onceward")).args(arguments).env_clear().output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_help_fits_a_screen_and_that_of_serve_has_headings() {
    let help = onceward(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(out(&help).lines().count() <= 25, "{}", out(&help));
    let serve = out(&onceward(&["serve", "--help"]));
    for heading in [
        "The gateway:",
        "How requests are treated:",
        "The admin listener:",
        "TLS:",
        "Limits:",
        "Logs and traces:",
    ] {
        assert!(serve.contains(heading), "{heading} is not in\n{serve}");
    }
}

#[test]
fn a_help_text_shows_defaults_as_they_can_be_given_back() {
    let serve = out(&onceward(&["serve", "--help"]));
    assert!(serve.contains("[default: { headers = [], ignore = [] }]"), "{serve}");
    assert!(
        serve.contains("[default: POST, PATCH]") && serve.contains("[default: 401, 425, 429]"),
        "{serve}"
    );
}

#[test]
fn a_command_has_only_the_flags_that_it_reads() {
    for (command, expected) in [
        (&["healthcheck"][..], &["admin-listen", "config", "help", "url"][..]),
        (&["migrate"], &["config", "help", "json", "print-sql", "store"]),
        (&["store", "accept-loss"], &["config", "help", "json", "store"]),
    ] {
        let help = out(&onceward(&[command, &["--help"]].concat()));
        let options = help.lines().filter(|line| line.trim_start().starts_with('-'));
        let named =
            |line: &str| line.split("--").nth(1).unwrap().split([' ', '\n']).next().unwrap().to_owned();
        let mut flags: Vec<String> = options.map(named).collect();
        flags.sort();
        assert_eq!(flags, expected, "{help}");
    }
    let refused = onceward(&["healthcheck", "--retention", "7d"]);
    assert_eq!(refused.status.code(), Some(2), "{}", err(&refused));
}

/// A pipe that nothing reads, as one to `head` after its last line.
fn unread() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

#[test]
fn a_command_whose_reader_has_gone_away_ends_quietly_as_other_programs_do() {
    let folder = tempfile::tempdir().unwrap();
    let ready = answer_once("200 OK", r#"{"ready":true}"#);
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["serve", "--help"],
        &["config", "--scope", "authorization"],
        &["config", "--schema"],
        &["check", "--scope", "authorization", "--store", "memory:"],
        &["migrate", "--print-sql", "--store", "postgres://onceward@db.invalid/shop"],
        &["healthcheck", "--admin-listen", &ready],
        &["demo"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onceward"));
        command.args(arguments).env_clear().env("TMPDIR", folder.path()).stdout(unread());
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(141), ""), "{arguments:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the demo left its files behind");
}

#[test]
fn a_command_that_cannot_say_what_is_wrong_still_ends_with_its_code() {
    for (arguments, code) in
        [(&["serve"][..], 2), (&["serve", "--scop", "x"], 2), (&["migrate", "--store", "memory:"], 1)]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onceward"));
        let status = command.args(arguments).env_clear().stderr(unread()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn wrong_use_and_wrong_configuration_end_with_two() {
    for arguments in [&["serve"][..], &["serve", "--scop", "x"], &["nonsense"], &["config", "--scope", "x:y"]]
    {
        let output = onceward(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert!(out(&output).is_empty() && !err(&output).is_empty(), "{arguments:?}");
    }
}

#[test]
fn later_flags_are_told_apart_from_typing_errors() {
    let output = onceward(&["serve", "--scope", "authorization", "--auth-url", "http://127.0.0.1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("not in this version yet"), "{}", err(&output));
}

#[test]
fn config_prints_toml_json_and_the_schema() {
    let toml = onceward(&["config", "--scope", "authorization", "--limits-connections", "7"]);
    assert!(
        out(&toml).contains("connections = 7") && out(&toml).contains("# --limits-connections"),
        "{}",
        out(&toml)
    );
    let json: serde_json::Value =
        serde_json::from_str(&out(&onceward(&["config", "--json", "--scope", "authorization"]))).unwrap();
    assert_eq!(json["values"]["scope"][0], "authorization");
    assert_eq!(json["origins"]["defaults.retention"], "default");
    let schema: serde_json::Value = serde_json::from_str(&out(&onceward(&["config", "--schema"]))).unwrap();
    assert_eq!(schema["title"], "onceward.toml");
}

#[test]
fn check_tells_everything_in_plain_language() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("x.db").display());
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("http://{}", upstream.local_addr().unwrap());
    let fine = ["check", "--scope", "authorization", "--store", &store, "--upstream", &upstream];
    let output = onceward(&fine);
    assert_eq!(output.status.code(), Some(0), "{}", out(&output));
    assert!(out(&output).contains("will be made at the first start"), "{}", out(&output));

    let output = onceward(&[
        "check",
        "--json",
        "--scope",
        "fixed:x",
        "--store",
        "memory:",
        "--retention",
        "5m",
        "--listen",
        "0.0.0.0:1",
        "--trusted-proxies",
        "10.0.0.0/8,0.0.0.0/0",
    ]);
    let json: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    let texts: Vec<&str> =
        json["findings"].as_array().unwrap().iter().filter_map(|found| found["text"].as_str()).collect();
    for word in ["min_key_length", "memory:", "retention", "0.0.0.0:1", "0.0.0.0/0"] {
        assert!(texts.iter().any(|text| text.contains(word)), "{word} is not in {texts:?}");
    }
    assert!(!texts.iter().any(|text| text.contains("10.0.0.0/8")), "{texts:?}");

    let given_away = [
        ("--close-delimited", "accept", "cut off"),
        ("--store-down", "pass", "/readyz is 503"),
        ("--mode", "observe", "each retry executes"),
        ("--methods", "[]", "protects no method"),
        ("--max-response-body", "64MiB", "write at most 63MiB"),
    ];
    for (flag, value, told) in given_away {
        let said = out(&onceward(&[&fine[..], &[flag, value]].concat()));
        let warnings: Vec<&str> =
            said.lines().filter(|line| line.starts_with("warning") && line.contains(told)).collect();
        assert_eq!(warnings.len(), 1, "{flag} {value}: {said}");
        assert!(warnings[0].contains(flag), "{flag} {value}: {said}");
    }
    let said = out(&onceward(&fine));
    for (_, _, told) in given_away {
        assert!(!said.contains(told), "{said}");
    }

    let output = onceward(&["check", "--retention", "soon"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        out(&output).contains("--retention") && out(&output).contains("`scope` is missing"),
        "{}",
        out(&output)
    );
}

#[test]
fn check_refuses_a_scope_that_nothing_verifies_and_reminds_of_what_a_declared_one_relies_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("x.db").display());
    let check = |scope: &str, verified: &[&str]| {
        onceward(&[&["check", "--store", &store, "--scope", scope][..], verified].concat())
    };
    for (scope, relied_on) in [
        ("header:X-Tenant", "for the header x-tenant: it must set it"),
        ("basic:user", "it must check the password"),
    ] {
        let refused = check(scope, &[]);
        assert_eq!(refused.status.code(), Some(1), "{}", out(&refused));
        assert!(out(&refused).contains("write scope_verified = true"), "{}", out(&refused));
        for verified in [&["--scope-verified"][..], &["--scope-verified", "true"]] {
            let output = check(scope, verified);
            assert_eq!(output.status.code(), Some(0), "{}", out(&output));
            let said = out(&output);
            assert!(said.contains("`scope_verified` = true relies on the proxy in front"), "{said}");
            assert!(said.contains(relied_on), "{said}");
        }
    }
    let harmless = check("authorization", &["--scope-verified"]);
    assert_eq!(harmless.status.code(), Some(0));
    assert!(!out(&harmless).contains("scope_verified"), "{}", out(&harmless));
    let unclear = onceward(&["config", "--scope", "authorization", "--scope-verified", "maybe"]);
    assert_eq!(unclear.status.code(), Some(2));
    assert!(
        err(&unclear).contains("--scope-verified") && err(&unclear).contains("true or false"),
        "{}",
        err(&unclear)
    );
}

#[test]
fn check_reads_certificates_as_serve_does() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, end: Option<i32>| {
        let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        if let Some(year) = end {
            parameters.not_after = rcgen::date_time_ymd(year, 1, 1);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        let files = [folder.path().join(format!("{name}.pem")), folder.path().join(format!("{name}.key"))];
        std::fs::write(&files[0], parameters.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(&files[1], key.serialize_pem()).unwrap();
        files.map(|path| path.to_str().unwrap().to_owned())
    };
    let ([one, its], [_, other], [ended, ended_key]) =
        (make("one", None), make("other", None), make("ended", Some(2001)));
    let check = |certificate: &str, key: &str| {
        let words = ["check", "--scope", "authorization", "--store", "memory:"];
        onceward(&[&words[..], &["--tls-certificate", certificate, "--tls-key", key]].concat())
    };
    let fine = check(&one, &its);
    assert_eq!(fine.status.code(), Some(0), "{}", out(&fine));
    assert!(out(&fine).contains("certificate (expires "), "{}", out(&fine));
    let expired = check(&ended, &ended_key);
    assert_eq!(expired.status.code(), Some(0), "{}", out(&expired));
    assert!(out(&expired).contains("has expired (2001-01-01T00:00:00Z)"), "{}", out(&expired));
    let mismatch = check(&one, &other);
    assert_eq!(mismatch.status.code(), Some(1), "{}", out(&mismatch));
    assert!(out(&mismatch).contains("is not that of the first certificate"), "{}", out(&mismatch));

    let ca = ["--upstream", "https://api.example.com", "--upstream-tls-ca", &its];
    let wrong = onceward(&[&["check", "--scope", "authorization", "--store", "memory:"][..], &ca].concat());
    assert_eq!(wrong.status.code(), Some(1), "{}", out(&wrong));
    assert!(out(&wrong).contains("has no CERTIFICATE block"), "{}", out(&wrong));
}

#[tokio::test]
async fn check_finds_a_store_of_another_identity_and_one_that_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let store = onceward_sqlite::SqliteStore::open(&path, onceward_sqlite::Options::default()).unwrap();
    let identity = onceward::Identity::in_namespace("default").scoped_by("authorization").unwrap();
    let engine = onceward::Engine::builder(std::sync::Arc::new(store.clone())).open(identity).await.unwrap();
    let url = format!("sqlite:{}", path.display());
    let in_use = onceward(&["check", "--scope", "authorization", "--store", &url]);
    assert!(out(&in_use).contains("already open in the process"), "{}", out(&in_use));
    engine.shut_down(std::time::Duration::ZERO).await;
    store.close().await;
    drop((engine, store));

    let same = onceward(&["check", "--scope", "authorization", "--store", &url]);
    assert_eq!(same.status.code(), Some(0), "{}", out(&same));
    assert!(out(&same).contains("those that the store was used with"), "{}", out(&same));
    let other = onceward(&["check", "--scope", "basic:user", "--scope-verified", "--store", &url]);
    assert_eq!(other.status.code(), Some(1), "{}", out(&other));
    assert!(out(&other).contains("go back to its namespace and scope"), "{}", out(&other));
}

/// Answers one request with a status and a body, and nothing else.
fn answer_once(status: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).unwrap() == 1 {
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"GET /readyz HTTP/1.1\r\n"), "{}", String::from_utf8_lossy(&head));
        write!(client, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    });
    address
}

#[test]
fn a_health_check_asks_the_admin_listener_and_tells_what_failed() {
    let ready = onceward(&["healthcheck", "--admin-listen", &answer_once("200 OK", r#"{"ready":true}"#)]);
    assert_eq!(ready.status.code(), Some(0), "{}", err(&ready));
    let another = onceward(&["healthcheck", "--admin-listen", &answer_once("200 OK", "hello")]);
    assert_eq!(another.status.code(), Some(1));
    assert!(err(&another).contains("not as the gateway's admin listener"), "{}", err(&another));
    let away = answer_once("503 Service Unavailable", "store");
    let not_ready = onceward(&["healthcheck", "--url", &format!("http://{away}")]);
    assert_eq!(not_ready.status.code(), Some(1));
    assert!(err(&not_ready).contains("503 Service Unavailable: store"), "{}", err(&not_ready));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let gone = onceward(&["healthcheck", "--admin-listen", &closed]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(err(&gone).contains("cannot be reached"), "{}", err(&gone));
}
