//! Tenants: the scope of a key.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onceward::{Engine, Identity};
use onceward_sqlite::{Options, SqliteStore};

use crate::harness::{Gateway, Request, onceward};
use crate::ledger::Ledger;

fn start(folder: &Path, ledger: &Ledger, arguments: &[&str]) -> Gateway {
    Gateway::spawn(
        Gateway::command_without_scope(folder, &format!("http://{}", ledger.address)).args(arguments),
    )
}

#[tokio::test]
async fn two_tenants_with_one_key_and_one_body_are_executed_apart_and_learn_nothing_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = start(folder.path(), &ledger, &["--scope", "authorization"]);
    let charge = |tenant| Request::charge("k").header("authorization", tenant);
    let status =
        |tenant| Request::new("GET", "/.well-known/idempotency/status/k").header("authorization", tenant);
    let (a, b) = ("Bearer sk_live_a", "Bearer sk_live_b");
    let unknown = gateway.send(status(b)).await;
    assert_eq!(gateway.send(charge(a)).await.status, 201);
    // B gets exactly the answer that it got before A had used the key.
    let still = gateway.send(status(b)).await;
    assert_eq!((still.status, &still.body), (404, &unknown.body));
    let first = gateway.send(charge(b)).await;
    assert_eq!((first.status, first.is_replayed()), (201, false), "{first:?}");
    assert_eq!(gateway.send(charge(b).body("{\"amount\":1}")).await.status, 422);
    assert!(gateway.send(charge(a)).await.is_replayed());
    let entries = ledger.entries();
    assert_eq!(entries.len(), 2);
    assert_ne!(entries[0].operation, entries[1].operation);
    assert_eq!(gateway.send(status(a)).await.json()["state"], "completed");
}

/// Scopes behind a proxy that verifies the user and sets the tenant.
const VERIFIED: &[&str] =
    &["--scope", "header:x-tenant", "--scope", "basic:user", "--scope-verified", "true"];

#[tokio::test]
async fn a_request_that_lacks_any_part_of_the_scope_is_401_and_nothing_is_looked_up() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = start(folder.path(), &ledger, VERIFIED);
    let (tenant, user) = (("x-tenant", "a"), ("authorization", "Basic YWxpY2U6c2VjcmV0"));
    let whole = Request::charge("k").header(tenant.0, tenant.1).header(user.0, user.1);
    assert_eq!(gateway.send(whole.clone()).await.status, 201);
    let lacking = [
        Request::charge("k"),
        Request::charge("k").header(tenant.0, tenant.1),
        Request::charge("k").header(user.0, user.1),
        Request::charge("k").header("x-tenant", "").header(user.0, user.1),
        Request::charge("k").header(tenant.0, "a").header(tenant.0, "b").header(user.0, user.1),
        Request::charge("k").header(tenant.0, "a").header("authorization", "Basic !!!"),
    ];
    for request in lacking {
        // The answer is the same whether or not the key exists.
        let known = gateway.send(request.clone()).await;
        assert_eq!(
            known.status_and_code(),
            (401, "idempotency_scope_missing".to_owned()),
            "{request:?}: {known:?}"
        );
        let mut other = request.clone();
        other.headers[0].1 = "never-seen";
        assert_eq!(gateway.send(other).await.body, known.body, "{request:?}");
    }
    let password = Request::charge("k").header(tenant.0, tenant.1).header(user.0, "Basic YWxpY2U6b3RoZXI=");
    assert!(gateway.send(password).await.is_replayed(), "the proxy in front has verified the password");
    // Without a key no scope is needed.
    assert_eq!(gateway.send(Request::new("POST", "/charges").body("{}")).await.status, 201);
    assert_eq!(ledger.count(), 2);
    assert_eq!(gateway.metric("api_idempotency_scope_missing_total").await, 12.0);
}

#[tokio::test]
async fn a_json_web_token_as_a_tenant_is_401_with_the_advice_what_to_use() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = start(folder.path(), &ledger, &["--scope", "authorization"]);
    let token = "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl";
    let answer = gateway.send(Request::charge("k").header("authorization", token)).await;
    assert_eq!(answer.status_and_code(), (401, "idempotency_scope_missing".to_owned()), "{answer:?}");
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("jwt:sub"), "{detail}");
    assert!(!answer.text().contains("eyJ"), "{answer:?}");
    assert_eq!(ledger.count(), 0);
}

#[tokio::test]
async fn a_header_rule_for_credentials_that_change_is_refused_in_any_case() {
    let folder = tempfile::tempdir().unwrap();
    for scope in ["header:Authorization", "header:AUTHORIZATION", "header:Traceparent"] {
        let mut command = Gateway::command_without_scope(folder.path(), "http://127.0.0.1:3000");
        let (code, printed) = Gateway::refused(command.args(["--scope", scope, "--scope-verified", "true"]));
        assert_eq!(code, Some(2), "{scope}: {printed}");
        assert!(printed.contains(scope), "{printed}");
    }
}

/// Uses the store of a gateway under a scope that earlier versions accepted.
async fn used_with(folder: &Path, scope: &str) {
    let store = SqliteStore::open(folder.join("onceward.db"), Options::default()).unwrap();
    let identity = Identity::in_namespace("default").scoped_by(scope).unwrap();
    let engine = Engine::builder(Arc::new(store.clone())).open(identity).await.unwrap();
    engine.shut_down(Duration::ZERO).await;
    store.close().await;
}

#[tokio::test]
async fn a_used_store_goes_on_with_a_scope_that_a_new_one_is_refused() {
    let scopes: [(&[&str], &str, &str); 2] = [
        (&["header:Host"], "header:host", "says which service is called"),
        (&["fixed:a", "fixed:a"], "fixed:a,fixed:a", "is in the scope twice"),
    ];
    for (parts, text, fault) in scopes {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::start(folder.path());
        let upstream = format!("http://{}", ledger.address);
        let arguments =
            || parts.iter().flat_map(|part| ["--scope", part]).chain(["--scope-verified", "true"]);
        let check = || {
            let store = ["check", "--store", "sqlite:onceward.db", "--upstream", &upstream];
            let output = onceward(folder.path()).args(store).args(arguments()).output().unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        let (fine, printed) = check();
        assert!(!fine && printed.contains(fault), "{printed}");
        // A refused start does not count as a use of the store.
        for _ in 0..2 {
            let mut command = Gateway::command_without_scope(folder.path(), &upstream);
            let (code, printed) = Gateway::refused(command.args(arguments()));
            assert_eq!(code, Some(1), "{printed}");
            assert!(printed.contains(fault), "{printed}");
        }
        let (fine, printed) = check();
        assert!(!fine && printed.contains(fault), "{printed}");

        std::fs::remove_file(folder.path().join("onceward.db.secret")).unwrap();
        used_with(folder.path(), text).await;
        let (fine, printed) = check();
        assert!(
            fine && printed.lines().any(|line| line.starts_with("warning") && line.contains(fault)),
            "{printed}"
        );
        let gateway =
            Gateway::spawn(Gateway::command_without_scope(folder.path(), &upstream).args(arguments()));
        assert_eq!(gateway.charge("k").await.status, 201);
        assert!(gateway.charge("k").await.is_replayed());
        let log = gateway.stop();
        assert_eq!(log.matches(fault).count(), 1, "{log}");
        assert_eq!(ledger.count(), 1);
    }
}

/// What boto3 sends: the same request at another second has another signature.
fn aws(second: u8, signature: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261118/eu-central-1/execute-api/aws4_request, \
         SignedHeaders=host;idempotency-key;x-amz-date;date-{second}, Signature={}",
        signature.repeat(32)
    )
}

#[tokio::test]
async fn a_request_that_is_signed_anew_with_every_try_is_401_and_never_executed() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = start(folder.path(), &ledger, &["--scope", "authorization"]);
    for credential in [aws(1, "1f"), aws(2, "a0")] {
        let answer = gateway.send(Request::charge("k").header("authorization", &credential)).await;
        assert_eq!(answer.status_and_code(), (401, "idempotency_scope_missing".to_owned()), "{answer:?}");
        assert_eq!(answer.json()["next_action"], "fix_request");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("Authorization"), "{detail}");
        for sent in ["AWS4", "AKIDEXAMPLE", "1f1f", "a0a0"] {
            assert!(!answer.text().contains(sent), "{answer:?}");
        }
    }
    assert_eq!(ledger.count(), 0);
    assert_eq!(gateway.metric("api_idempotency_scope_missing_total").await, 2.0);
    // The log advises once what to configure, and repeats nothing of what was sent.
    let log = gateway.stop();
    let advice: Vec<&str> = log.lines().filter(|line| line.contains("scope_verified")).collect();
    assert_eq!(advice.len(), 1, "{log}");
    assert!(!log.contains("AKIDEXAMPLE") && !log.contains("1f1f"), "{log}");
}

#[tokio::test]
async fn only_basic_and_bearer_with_an_opaque_token_make_a_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = start(folder.path(), &ledger, &["--scope", "authorization"]);
    let refused = [
        "Digest username=\"ada\", realm=\"a\", nonce=\"dcd98b71\", uri=\"/charges\", response=\"6629fae4\"",
        "OAuth oauth_consumer_key=\"a\", oauth_nonce=\"kllo9940\", oauth_signature=\"tR3%2BTy81\"",
        "DPoP Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU",
        "Hawk id=\"dh37\", ts=\"1353832234\", nonce=\"j4h3g2\", mac=\"6R4rV5iE+NPoym+WwjeHzjAGXUtLNIxmo1vpMofpLAE=\"",
        "Signature keyId=\"a\",algorithm=\"hs2019\",signature=\"SGVsbG8=\"",
        "Negotiate YIIJvwYGKwYBBQUC",
        "NTLM TlRMTVNTUAABAAAA",
        "Frobnicate sk_live_1",
        "sk_live_1",
        "Bearer",
        "bearer ",
        "Basic",
        "Bearer sk_live_1 nonce=7",
        "Bearer token=\"sk_live_1\",nonce=\"7\"",
        "Bearersk_live_1",
        "\"Bearer\" sk_live_1",
    ];
    for credential in refused {
        let answer = gateway.send(Request::charge("k").header("authorization", credential)).await;
        assert_eq!(
            answer.status_and_code(),
            (401, "idempotency_scope_missing".to_owned()),
            "{credential}: {answer:?}"
        );
        let text = answer.text();
        for word in credential.split([' ', '=', '"']).filter(|word| word.len() > 6) {
            assert!(word == "Bearer" || !text.contains(word), "{word} is repeated: {text}");
        }
    }
    assert_eq!(ledger.count(), 0);
    for credential in ["Bearer sk_live_1", "Bearer 17|laravel:token+/=", "Basic YWxpY2U6c2VjcmV0"] {
        for replayed in [false, true] {
            let answer = gateway.send(Request::charge("k").header("authorization", credential)).await;
            assert_eq!((answer.status, answer.is_replayed()), (201, replayed), "{credential}: {answer:?}");
        }
    }
    assert_eq!(ledger.count(), 3);
}

#[tokio::test]
async fn another_spelling_of_the_same_credential_is_the_same_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = start(folder.path(), &ledger, &["--scope", "authorization"]);
    let charge = |credential| Request::charge("k").header("authorization", credential);
    assert_eq!(gateway.send(charge("Bearer sk_live_1")).await.status, 201);
    for credential in ["bearer sk_live_1", "BEARER   sk_live_1", "Bearer\tsk_live_1", " Bearer sk_live_1 "] {
        assert!(gateway.send(charge(credential)).await.is_replayed(), "{credential}");
    }
    assert_eq!(gateway.send(charge("Basic YWxpY2U6c2VjcmV0")).await.status, 201);
    assert!(gateway.send(charge("basic  YWxpY2U6c2VjcmV0")).await.is_replayed());
    // Tokens are case-sensitive.
    assert!(!gateway.send(charge("Bearer SK_LIVE_1")).await.is_replayed());
    assert_eq!(ledger.count(), 3);
}

#[test]
fn a_scope_that_a_client_could_forge_is_refused_before_anything_is_served() {
    let folder = tempfile::tempdir().unwrap();
    for (scope, why) in [
        ("basic:user", "password"),
        ("header:x-tenant", "x-tenant"),
        ("authorization,header:x-tenant", "x-tenant"),
    ] {
        for verified in [&[][..], &["--scope-verified", "false"]] {
            let mut command = Gateway::command_without_scope(folder.path(), "http://127.0.0.1:1");
            let (code, printed) = Gateway::refused(command.args(["--scope", scope]).args(verified));
            assert_eq!(code, Some(2), "{scope}: {printed}");
            for word in ["--scope", why, "scope_verified = true", "\"authorization\"", "proxy"] {
                assert!(printed.contains(word), "{word} is not in {printed}");
            }
        }
        let check = onceward(folder.path()).args(["check", "--scope", scope]).output().unwrap();
        let printed = String::from_utf8(check.stdout).unwrap();
        assert_eq!(check.status.code(), Some(1), "{printed}");
        assert!(printed.contains("scope_verified = true"), "{printed}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

#[tokio::test]
async fn a_verified_scope_is_declared_by_flag_variable_or_file() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let charge = || Request::charge("k").header("x-tenant", "a");
    std::fs::write(folder.path().join("my.toml"), "scope = [\"header:x-tenant\"]\nscope_verified = true\n")
        .unwrap();
    let upstream = format!("http://{}", ledger.address);
    for (replayed, arguments, variable) in [
        (false, &["--scope", "header:x-tenant", "--scope-verified", "true"][..], None),
        (true, &["--scope-verified", "--scope", "header:x-tenant"], None),
        (true, &["--scope", "header:x-tenant"], Some("true")),
        (true, &["--config", "my.toml"], None),
    ] {
        let mut command = Gateway::command_without_scope(folder.path(), &upstream);
        command.args(arguments).envs(variable.map(|value| ("ONCEWARD_SCOPE_VERIFIED", value)));
        let mut gateway = Gateway::spawn(&mut command);
        let answer = gateway.send(charge()).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, replayed), "{arguments:?}: {answer:?}");
        gateway.kill();
    }
    assert_eq!(ledger.count(), 1);
    // A scope that needs no verification is not changed by the declaration.
    let other = tempfile::tempdir().unwrap();
    let mut command = Gateway::command_without_scope(other.path(), &upstream);
    let gateway = Gateway::spawn(command.args(["--scope", "authorization", "--scope-verified", "true"]));
    assert_eq!(gateway.send(charge()).await.status, 401);
}

#[tokio::test]
async fn a_retry_after_the_fingerprints_settings_changed_is_replayed_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let charge = || Request::charge("k").header("x-channel", "web");
    let mut gateway = Gateway::start(folder.path(), ledger.address, &[]);
    let first = gateway.send(charge()).await;
    assert_eq!(first.status, 201);
    gateway.kill();
    let other = ["--fingerprint", "{ headers = [\"x-channel\"], ignore = [\"/sent_at\"] }"];
    let gateway = Gateway::start(folder.path(), ledger.address, &other);
    let again = gateway.send(charge()).await;
    assert_eq!((again.status, again.is_replayed(), &again.body), (201, true, &first.body));
    assert_eq!(gateway.metric("api_idempotency_reserve_uncompared_total").await, 1.0);
    assert_eq!(gateway.metric("api_idempotency_reserve_replay_total").await, 1.0);
    // New keys are compared by the new settings.
    let sent = |body| Request::charge("new").header("x-channel", "web").body(body);
    assert_eq!(gateway.send(sent("{\"sent_at\":1}")).await.status, 201);
    assert!(gateway.send(sent("{\"sent_at\":2}")).await.is_replayed());
    let elsewhere = Request::charge("new").header("x-channel", "phone").body("{\"sent_at\":1}");
    assert_eq!(gateway.send(elsewhere).await.status, 422);
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn cookies_go_to_the_first_caller_only_and_repeated_headers_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let routes = "[{ match = \"POST /sessions\", set_cookie = \"allow\" }]";
    let gateway = Gateway::start(folder.path(), ledger.address, &["--routes", routes]);
    let charge = || Request::charge("k").behave("cookies");
    let first = gateway.send(charge()).await;
    assert_eq!((first.all("set-cookie"), first.all("x-many")), (vec!["a=1", "b=2"], vec!["1", "2"]));
    let again = gateway.send(charge()).await;
    assert!(again.is_replayed());
    assert_eq!((again.all("set-cookie"), again.all("x-many")), (vec![], vec!["1", "2"]));
    assert_eq!(again.header("idempotency-expires"), first.header("idempotency-expires"));
    for replayed in [false, true] {
        let session = Request { target: "/sessions", ..Request::charge("s").behave("cookies") };
        let answer = gateway.send(session).await;
        assert_eq!(answer.is_replayed(), replayed);
        assert_eq!(answer.all("set-cookie"), ["a=1", "b=2"]);
    }
    assert_eq!(ledger.count(), 2);
}
