//! What is stored of an answer, and what only the first caller gets.

use onceward::engine::Resolve;
use onceward::http::{Policy, SetCookie};

use super::{Got, doing, post, with, world};

fn values<'a>(got: &'a Got, name: &str) -> Vec<&'a str> {
    got.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_replay_has_every_value_in_order_and_nothing_of_the_first_connection() {
    let world = world(Policy::new()).await;
    let first = world.send(doing("headers", "k", "{}")).await;
    let replay = world.send(post("k", "{}")).await;
    for got in [&first, &replay] {
        assert_eq!(values(got, "x-many"), ["one", "two, three", "one"]);
        assert_eq!((got.header("location"), got.header("etag")), (Some("/payments/1"), Some("\"1\"")));
    }
    assert_eq!(values(&first, "set-cookie"), ["session=1", "theme=dark"]);
    for name in ["date", "connection", "x-hop", "keep-alive"] {
        assert!(first.header(name).is_some(), "{name}");
    }
    for name in ["set-cookie", "date", "connection", "x-hop", "keep-alive"] {
        assert!(replay.header(name).is_none(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_header_with_more_values_than_there_can_be_names_is_kept_whole() {
    let world = world(Policy::new()).await;
    let first = world.send(doing("links:30000", "k", "{}")).await;
    let replay = world.send(post("k", "{}")).await;
    assert_eq!((first.status, replay.status, replay.is_replay()), (201, 201, true));
    assert_eq!(values(&first, "link").len(), 30_000);
    assert_eq!(values(&replay, "link"), values(&first, "link"));
}

#[tokio::test(start_paused = true)]
async fn a_cookie_is_replayed_only_where_the_route_allows_it() {
    let world = world(Policy::new().set_cookie(SetCookie::Allow)).await;
    world.send(doing("headers", "k", "{}")).await;
    assert_eq!(values(&world.send(post("k", "{}")).await, "set-cookie"), ["session=1", "theme=dark"]);
}

#[tokio::test(start_paused = true)]
async fn trailers_are_replayed_as_trailers() {
    let world = world(Policy::new()).await;
    let first = world.send(doing("trailers", "k", "{}")).await;
    let replay = world.send(post("k", "{}")).await;
    assert_eq!(first.trailers.as_ref().unwrap()["grpc-status"], "0");
    assert_eq!(replay.trailers, first.trailers);
    assert!(replay.header("grpc-status").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_an_operator_is_replayed_even_if_http_could_not_carry_all_of_it() {
    let world = world(Policy::new()).await;
    world.send(doing("off", "k", "{}")).await;
    let key = onceward::Key::new("k").unwrap();
    let scope = onceward::Scope::new("acme").unwrap();
    assert_eq!(world.engine.look_up(&scope, &key).await.unwrap().unwrap().state.name(), "unknown");
    let id =
        onceward::Identity::in_namespace("tests").scoped_by("header:x-tenant").unwrap().id_of(&scope, &key);
    let mut reply = onceward::Reply::new("by hand").with_status(99);
    reply.headers = vec![
        ("x-fine".to_owned(), "yes".into()),
        ("not a name".to_owned(), "x".into()),
        ("x-broken".to_owned(), "a\nb".into()),
        ("transfer-encoding".to_owned(), "chunked".into()),
    ];
    let verdict = onceward::event::Resolution::Completed(reply.into());
    world.engine.resolve(id, Resolve { verdict, by: "ops", reason: "asked them", seen: None }).await.unwrap();
    let got = world.send(with(post("k", "{}"), "x-again", "1")).await;
    assert_eq!((got.status, &got.body[..], got.is_replay()), (500, &b"by hand"[..], true));
    assert_eq!(got.header("x-fine"), Some("yes"));
    assert_eq!((got.header("x-broken"), got.header("transfer-encoding")), (None, None));
}
