//! SIGHUP: routes, the certificate and tokens are loaded again, all or none, and the log names what was loaded.

use std::path::Path;

use bytes::Bytes;
use http::{Request as Sent, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::certificate::Certificate;
use crate::harness::{Gateway, Request, onceward};
use crate::ledger::Ledger;

const TLS: &str = "[tls]\ncertificate = \"front.pem\"\nkey = \"front.key\"\n";
const REQUIRED: &str = "[[routes]]\nmatch = \"POST /charges\"\nkey = \"required\"\n";

/// Starts a gateway that is configured by a file alone.
fn start(folder: &Path, ledger: &Ledger, rest: &str) -> Gateway {
    write_file(folder, ledger, rest);
    Gateway::spawn(onceward(folder).args(["serve", "--config", "onceward.toml"]))
}

fn write_file(folder: &Path, ledger: &Ledger, rest: &str) {
    let text = format!(
        "listen = \"127.0.0.1:0\"\nupstream = \"http://{}\"\nscope = [\"fixed:test\"]\nadmin.listen = \"127.0.0.1:0\"\n{rest}",
        ledger.address
    );
    std::fs::write(folder.join("onceward.toml"), text).unwrap();
}

/// A connection that trusts this certificate and no other.
async fn connect(gateway: &Gateway, certificate: &Certificate) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let stream = certificate.connect(stream, &[b"http/1.1"]).await;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    sender
}

async fn status(sender: &mut SendRequest<Full<Bytes>>) -> StatusCode {
    let request = Sent::post("/charges").header("host", "localhost").body(Full::from("{}")).unwrap();
    sender.send_request(request).await.unwrap().status()
}

async fn status_with_token(gateway: &Gateway, token: &str) -> u16 {
    let authorization = format!("Bearer {token}");
    let request = Request::new("GET", "/v1/operations").header("authorization", &authorization);
    gateway.ask_admin(request).await.status
}

#[tokio::test]
async fn new_connections_see_a_certificate_that_was_put_in_place_and_open_ones_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let old = Certificate::make(folder.path(), "front");
    let gateway = start(folder.path(), &ledger, TLS);
    let mut open = connect(&gateway, &old).await;
    assert_eq!(status(&mut open).await, StatusCode::CREATED);

    gateway.signal("HUP");
    let line = gateway.logged("reloaded: ");
    assert!(line.contains("nothing; unchanged: routes, certificate (expires "), "{line}");

    let new = Certificate::make(folder.path(), "front");
    gateway.signal("HUP");
    let line = gateway.logged("reloaded: certificate (expires ");
    assert!(line.contains("; unchanged: routes, tokens"), "{line}");
    let mut fresh = connect(&gateway, &new).await;
    for connection in [&mut open, &mut fresh] {
        assert_eq!(status(connection).await, StatusCode::CREATED);
    }
}

#[tokio::test]
async fn a_key_of_another_certificate_keeps_every_other_change_of_the_file_from_being_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let certificate = Certificate::make(folder.path(), "front");
    let gateway = start(folder.path(), &ledger, TLS);
    let other = Certificate::make(folder.path(), "other");
    std::fs::copy(&other.key, &certificate.key).unwrap();
    write_file(folder.path(), &ledger, &format!("{TLS}{REQUIRED}"));
    gateway.signal("HUP");
    let line = gateway.logged("nothing was reloaded");
    assert!(line.contains("front.key is not that of the first certificate in front.pem"), "{line}");
    assert_eq!(status(&mut connect(&gateway, &certificate).await).await, StatusCode::CREATED);

    // The pair fits again, and everything is loaded.
    std::fs::copy(&other.file, &certificate.file).unwrap();
    gateway.signal("HUP");
    let line = gateway.logged("reloaded: routes, certificate (expires ");
    assert!(line.contains("; unchanged: tokens"), "{line}");
    assert_eq!(status(&mut connect(&gateway, &other).await).await, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_token_that_was_replaced_in_its_file_is_loaded_and_the_old_one_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let (old, new) = ("an-operators-first-token", "an-operators-second-token");
    std::fs::write(folder.path().join("ada"), old).unwrap();
    let tokens = "[[admin.tokens]]\nname = \"ada\"\nrole = \"operator\"\ntoken = { file = \"ada\" }\n";
    let gateway = start(folder.path(), &ledger, tokens);
    assert_eq!((status_with_token(&gateway, old).await, status_with_token(&gateway, new).await), (200, 401));

    std::fs::write(folder.path().join("ada"), new).unwrap();
    gateway.signal("HUP");
    gateway.logged("reloaded: tokens; unchanged: routes");
    assert_eq!((status_with_token(&gateway, old).await, status_with_token(&gateway, new).await), (401, 200));

    // One that is too short is refused together with the routes beside it.
    std::fs::write(folder.path().join("ada"), "short").unwrap();
    write_file(folder.path(), &ledger, &format!("{tokens}{REQUIRED}"));
    gateway.signal("HUP");
    let line = gateway.logged("nothing was reloaded");
    assert!(!line.contains(new), "{line}");
    assert_eq!(status_with_token(&gateway, new).await, 200);
    assert_eq!(gateway.send(Request::new("POST", "/charges").body("{}")).await.status, 201);
}

#[tokio::test]
async fn a_token_beside_the_store_that_was_deleted_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = start(folder.path(), &ledger, "");
    let path = folder.path().join("onceward.db.token");
    let token = || std::fs::read_to_string(&path).unwrap().trim().to_owned();
    let old = token();
    std::fs::remove_file(&path).unwrap();
    gateway.signal("HUP");
    gateway.logged("reloaded: tokens; unchanged: routes");
    assert_eq!(
        (status_with_token(&gateway, &old).await, status_with_token(&gateway, &token()).await),
        (401, 200)
    );
}

#[tokio::test]
async fn tls_cannot_be_switched_on_while_the_gateway_runs_and_the_log_explains_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    Certificate::make(folder.path(), "front");
    let gateway = start(folder.path(), &ledger, "");
    write_file(folder.path(), &ledger, TLS);
    gateway.signal("HUP");
    let line = gateway.logged("nothing was reloaded");
    assert!(line.contains("tls") && line.contains("restart"), "{line}");
}
