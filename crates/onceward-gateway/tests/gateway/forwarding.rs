//! The headers that tell the API where a request came from: they come from the gateway or from a proxy that it trusts, and
//! never from a client.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};

use crate::certificate::Certificate;
use crate::harness::{Gateway, Request, Response, http2};
use crate::ledger::Ledger;

/// Every line of a header in the head that the API received.
fn lines(echoed: &str, name: &str) -> Vec<String> {
    let lines = echoed.split("\r\n").filter_map(|line| line.split_once(':'));
    lines
        .filter(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim().to_owned())
        .collect()
}

/// The headers about the origin of a request that the API received.
fn origin_headers(echoed: &str) -> [Vec<String>; 5] {
    ["host", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-for", "forwarded"]
        .map(|name| lines(echoed, name))
}

/// Headers with which a client could deceive the API.
const FORGED: [(&str, &str); 9] = [
    ("x-forwarded-for", "203.0.113.1"),
    ("x-forwarded-for", "203.0.113.2"),
    ("x-forwarded-host", "evil.example"),
    ("x-forwarded-proto", "gopher"),
    ("x-forwarded-prefix", "/evil"),
    ("forwarded", "for=203.0.113.1;host=evil.example"),
    ("x_forwarded_for", "203.0.113.3"),
    ("x-forwarded_host", "evil.example"),
    ("x.forwarded.proto", "gopher"),
];

fn forging(key: &'static str) -> Request<'static> {
    let mut request = Request::charge(key).behave("echo").header("host", "shop.example:8443");
    if key.is_empty() {
        request = Request::new("GET", "/a").behave("echo").header("host", "shop.example:8443");
    }
    request.headers.extend(FORGED);
    request
}

#[tokio::test]
async fn the_api_gets_the_host_that_the_client_sent_and_none_of_its_forwarding_headers() {
    let (_folder, _ledger, gateway) = Gateway::with_ledger(&[]);
    for key in ["", "k"] {
        let echoed = gateway.send(forging(key)).await.text();
        assert_eq!(
            origin_headers(&echoed),
            [
                vec!["shop.example:8443".to_owned()],
                vec!["shop.example:8443".to_owned()],
                vec!["http".to_owned()],
                vec!["127.0.0.1".to_owned()],
                vec![],
            ],
            "{echoed}"
        );
        for forged in ["evil", "203.0.113", "gopher"] {
            assert!(!echoed.contains(forged), "{forged} in {echoed}");
        }
    }
}

#[tokio::test]
async fn forwarding_headers_of_a_trusted_proxy_are_kept_in_one_line_each_and_the_proxy_is_appended() {
    for trusted in ["127.0.0.0/8,::1", "127.0.0.1", "::ffff:127.0.0.0/104"] {
        let (_folder, _ledger, gateway) = Gateway::with_ledger(&["--trusted-proxies", trusted]);
        let echoed = gateway.send(forging("k")).await.text();
        assert_eq!(
            origin_headers(&echoed),
            [
                vec!["shop.example:8443".to_owned()],
                vec!["evil.example".to_owned()],
                vec!["gopher".to_owned()],
                vec!["203.0.113.1, 203.0.113.2, 127.0.0.1".to_owned()],
                vec!["for=203.0.113.1;host=evil.example, for=127.0.0.1".to_owned()],
            ],
            "{trusted}: {echoed}"
        );
        assert_eq!(lines(&echoed, "x-forwarded-prefix"), ["/evil"]);
        // A trusted proxy may pass these on from a client.
        for variant in ["x_forwarded_for", "x-forwarded_host", "x.forwarded.proto"] {
            assert_eq!(lines(&echoed, variant), [""; 0], "{variant}: {echoed}");
        }
        // The gateway sets what the proxy does not.
        let bare = Request::new("GET", "/a").behave("echo").header("host", "shop.example");
        let echoed = gateway.send(bare).await.text();
        let one = |text: &str| vec![text.to_owned()];
        assert_eq!(
            origin_headers(&echoed),
            [one("shop.example"), one("shop.example"), one("http"), one("127.0.0.1"), vec![]]
        );
    }
}

#[tokio::test]
async fn a_proxy_outside_the_trusted_networks_is_treated_as_a_client() {
    let (_folder, _ledger, gateway) =
        Gateway::with_ledger(&["--trusted-proxies", "10.0.0.0/8,127.0.0.2,::1"]);
    let echoed = gateway.send(forging("k")).await.text();
    assert_eq!(lines(&echoed, "x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(lines(&echoed, "x-forwarded-host"), ["shop.example:8443"]);
}

#[tokio::test]
async fn without_preserve_host_the_api_gets_its_own_host_and_the_original_one_as_the_forwarded_host() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--preserve-host", "false"]);
    let own = ledger.address.to_string();
    for key in ["", "k"] {
        let echoed = gateway.send(forging(key)).await.text();
        assert_eq!(lines(&echoed, "host"), [own.as_str()], "{echoed}");
        assert_eq!(lines(&echoed, "x-forwarded-host"), ["shop.example:8443"], "{echoed}");
    }
}

#[tokio::test]
async fn over_http2_the_authority_is_forwarded_as_the_host_is_over_http1() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let certificate = Certificate::make(folder.path(), "front");
    let (file, key) = (certificate.file.to_str().unwrap(), certificate.key.to_str().unwrap());
    let own = ledger.address.to_string();
    for (preserve, host) in [("true", "shop.example:8443"), ("false", own.as_str())] {
        let (plain, secure) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let plain = Gateway::start(plain.path(), ledger.address, &["--preserve-host", preserve]);
        let arguments = ["--preserve-host", preserve, "--tls-certificate", file, "--tls-key", key];
        let tls = Gateway::start(secure.path(), ledger.address, &arguments);
        let connect =
            async |gateway: &Gateway| tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let secured = certificate.connect(connect(&tls).await, &[b"h2"]).await;
        for (mut sender, scheme) in
            [(http2(connect(&plain).await).await, "http"), (http2(secured).await, "https")]
        {
            // Most clients send only `:authority`; some send `Host` as well.
            for with_host in [false, true] {
                let mut request = http::Request::post(format!("{scheme}://shop.example:8443/a"))
                    .header("x-behave", "echo")
                    .body(Full::<Bytes>::default())
                    .unwrap();
                for (name, value) in FORGED {
                    request.headers_mut().append(name, value.parse().unwrap());
                }
                if with_host {
                    request.headers_mut().insert("host", "shop.example:8443".parse().unwrap());
                }
                let answer = sender.send_request(request).await.unwrap();
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                let echoed = String::from_utf8(body.to_vec()).unwrap();
                let one = |text: &str| vec![text.to_owned()];
                let expected = [one(host), one("shop.example:8443"), one(scheme), one("127.0.0.1"), vec![]];
                assert_eq!(origin_headers(&echoed), expected, "{echoed}");
            }
        }
    }
}

#[tokio::test]
async fn the_host_in_a_target_overrides_the_host_header_and_the_request_still_goes_to_the_upstream() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let requests = [
        ("GET /a HTTP/1.1\r\nhost: elsewhere.example\r\n", "elsewhere.example"),
        ("GET http://elsewhere.example/a HTTP/1.1\r\nhost: elsewhere.example\r\n", "elsewhere.example"),
        ("GET https://elsewhere.example:444/a HTTP/1.1\r\nhost: third.example\r\n", "elsewhere.example:444"),
        (
            "POST http://elsewhere.example/a HTTP/1.1\r\nhost: b\r\nidempotency-key: k\r\n",
            "elsewhere.example",
        ),
        ("GET /a HTTP/1.1\r\nhost: [2001:db8::1]:80\r\nconnection: host\r\n", "[2001:db8::1]:80"),
    ];
    for (head, host) in requests {
        let answer = gateway.raw(format!("{head}x-behave: echo\r\n\r\n")).await;
        assert_eq!(answer.status, 201, "{head}: {answer:?}");
        let echoed = answer.text();
        assert_eq!(lines(&echoed, "host"), [host], "{head} became {echoed}");
        assert_eq!(lines(&echoed, "x-forwarded-host"), [host], "{head} became {echoed}");
        assert!(echoed.split("\r\n").next().unwrap().ends_with(" /a HTTP/1.1"), "{head} became {echoed}");
    }
    // HTTP/1.0 need not name a host, and an API that speaks HTTP/1.1 needs one.
    let answer = gateway.raw("GET /a HTTP/1.0\r\nx-behave: echo\r\n\r\n").await;
    assert_eq!(lines(&answer.text(), "host"), [ledger.address.to_string()]);
    assert_eq!(lines(&answer.text(), "x-forwarded-host"), [""; 0]);
    let before = ledger.count();
    for target in ["http://ada:secret@elsewhere.example/a", "http://a,b/a"] {
        let answer = gateway.raw(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        assert_eq!(answer.status, 400, "{target}: {answer:?}");
    }
    let tunnel =
        gateway.raw("CONNECT elsewhere.example:443 HTTP/1.1\r\nhost: elsewhere.example:443\r\n\r\n").await;
    assert_eq!(tunnel.status_and_code(), (400, "request_target_invalid".to_owned()), "{tunnel:?}");
    assert_eq!(ledger.count(), before);
}

/// Frameworks that add a missing slash redirect to the host that the request named.
#[tokio::test]
async fn a_redirect_that_the_api_builds_from_its_host_leads_back_to_the_gateway_and_nothing_executes_twice() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let host = gateway.address.to_string();
    let charge =
        |target: &'static str, how: &'static str| Request { target, ..Request::charge("k") }.behave(how);
    let redirected: Response = gateway.send(charge("/charges", "slash").header("host", &host)).await;
    assert_eq!(redirected.status, 307, "{redirected:?}");
    assert_eq!(redirected.header("location"), format!("http://{host}/charges/"));
    // The client follows it with its key, and the gateway refuses one key for two targets.
    let followed = gateway.send(charge("/charges/", "").header("host", &host)).await;
    let reused = "idempotency_key_reused_with_different_payload".to_owned();
    assert_eq!(followed.status_and_code(), (422, reused), "{followed:?}");
    assert_eq!(ledger.count(), 1);
}
