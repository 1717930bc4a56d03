//! Content codings: an answer is given only to clients that can read it.

use onceward::http::{Disposition, Flavor, Mode, Policy, Routes};

use super::{World, doing, post, with, without, world};

const NOT_ACCEPTED: &str = "idempotency_encoding_not_accepted";

fn asked(world: &World) -> Vec<String> {
    let saw = world.upstream.saw.lock().unwrap();
    saw.get_all("accept-encoding").iter().map(|line| line.to_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn under_a_key_the_service_is_asked_for_an_answer_that_every_client_can_read() {
    let mut world = world(Policy::new()).await;
    let request = || with(with(post("k", "{}"), "accept-encoding", "gzip"), "accept-encoding", "br, *;q=0.1");
    world.send(request()).await;
    assert_eq!(asked(&world), ["identity"]);
    world.send(post("another", "{}")).await;
    assert_eq!(asked(&world), ["identity"], "a client that says nothing accepts everything");
    // A request without a key goes through as it came.
    world.send(without(request(), "idempotency-key")).await;
    assert_eq!(asked(&world), ["gzip", "br, *;q=0.1"]);
    world.routes = Routes::new(Policy::new().mode(Mode::Observe)).unwrap();
    world.send(request()).await;
    assert_eq!(asked(&world), ["gzip", "br, *;q=0.1"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_encoded_all_the_same_is_replayed_only_to_clients_that_accept_it() {
    for flavor in [Flavor::Ietf, Flavor::Stripe] {
        let world = world(Policy::new().flavor(flavor)).await;
        let first = world.send(with(doing("encoded:br", "k", "{}"), "accept-encoding", "br")).await;
        assert_eq!((first.status, first.header("content-encoding")), (201, Some("br")));
        for accepted in ["gzip", "gzip, br;q=0", "*;q=0", "identity", ""] {
            let got = world.send(with(post("k", "{}"), "accept-encoding", accepted)).await;
            assert_eq!(got.problem(), (406, NOT_ACCEPTED.to_owned()), "{accepted}");
            assert_eq!(got.handled.disposition, Disposition::Refused(NOT_ACCEPTED));
            assert!(got.json()["detail"].as_str().unwrap().contains("\"br\""), "{got:?}");
            assert_eq!(got.json()["next_action"], "contact");
            assert_eq!(got.header("content-encoding"), None);
            assert_eq!(
                (got.header("vary"), got.header("onceward-outcome")),
                (Some("accept-encoding"), Some("unknown"))
            );
        }
        for accepted in [Some("br"), Some("gzip, *;q=0.5"), Some("BR;q=1.0, gzip"), None] {
            let retry = match accepted {
                Some(accepted) => with(post("k", "{}"), "accept-encoding", accepted),
                None => post("k", "{}"),
            };
            let got = world.send(retry).await;
            assert!(got.is_replay(), "{accepted:?}: {got:?}");
            assert_eq!((got.status, &got.body), (201, &first.body));
            for name in ["content-encoding", "etag", "content-type"] {
                assert_eq!(got.header(name), first.header(name), "{name}");
            }
            assert_eq!(got.header("vary"), Some("accept-encoding"));
        }
        assert_eq!(world.ledger(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_coding_is_replayed_to_every_client() {
    let world = world(Policy::new()).await;
    let first = world.send(with(doing("headers", "k", "{}"), "accept-encoding", "br")).await;
    for accepted in ["gzip", "identity", "*;q=0", ""] {
        let got = world.send(with(post("k", "{}"), "accept-encoding", accepted)).await;
        assert!(got.is_replay(), "{accepted}: {got:?}");
        assert_eq!((&got.body, got.header("vary")), (&first.body, None));
    }
    assert_eq!(world.ledger(), 1);
}
