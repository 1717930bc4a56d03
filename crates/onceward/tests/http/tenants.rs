//! Nobody learns of anybody else's keys.

use onceward::http::{Policy, ScopeRules};

use super::{World, post, with, without, world};

async fn scoped(rules: &[&str]) -> World {
    let scope = ScopeRules::parse_verified(rules.iter().copied()).unwrap();
    World { scope, ..world(Policy::default()).await }
}

#[tokio::test(start_paused = true)]
async fn the_same_key_and_body_of_another_tenant_is_another_operation() {
    let world = world(Policy::default()).await;
    let of = |tenant: &str, body: &str| with(without(post("k", body), "x-tenant"), "x-tenant", tenant);
    let first = world.send(of("acme", "{}")).await;
    let other = world.send(of("globex", "{}")).await;
    assert_eq!((other.status, other.is_replay()), (201, false));
    assert_ne!(first.body, other.body);
    // A different body under the other's key is no mismatch either.
    assert_eq!(world.send(of("initech", "{\"x\":1}")).await.status, 201);
    assert_eq!(world.ledger(), 3);
}

#[tokio::test(start_paused = true)]
async fn every_part_of_the_scope_must_be_there() {
    let world = scoped(&["header:x-tenant", "authorization"]).await;
    assert_eq!(world.send(post("k", "{}")).await.problem().0, 401);
    let whole = || with(post("k", "{}"), "authorization", "Bearer sk_1");
    assert_eq!(world.send(without(whole(), "x-tenant")).await.problem().0, 401);
    assert_eq!(world.ledger(), 0);
    assert_eq!(world.send(whole()).await.status, 201);
    assert!(world.send(whole()).await.is_replay());
    let another = with(post("k", "{}"), "authorization", "Bearer sk_2");
    assert!(!world.send(another).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_refreshed_is_refused_with_advice_and_not_repeated() {
    let world = scoped(&["authorization"]).await;
    let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln";
    let got = world.send(with(post("k", "{}"), "authorization", &format!("Bearer {token}"))).await;
    assert_eq!(got.problem(), (401, "idempotency_scope_missing".to_owned()));
    let detail = got.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("jwt:sub") && !detail.contains(token), "{detail}");
    assert_eq!(world.ledger(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_scope_is_shared_by_everyone() {
    let world = scoped(&["fixed:demo"]).await;
    world.send(without(post("k", "{}"), "x-tenant")).await;
    assert!(world.send(post("k", "{}")).await.is_replay());
}
