//! Tenants learn nothing of each other's keys.

use onceward::http::{Policy, ScopeRules};

use super::{World, post, scoped_by, with, without, world};

async fn scoped(rules: &[&str]) -> World {
    let scope = ScopeRules::parse_verified(rules.iter().copied()).unwrap();
    scoped_by(scope).await
}

#[tokio::test(start_paused = true)]
async fn the_same_key_and_body_of_another_tenant_is_another_operation() {
    let world = world(Policy::new()).await;
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

#[tokio::test(start_paused = true)]
async fn a_credential_that_is_made_anew_for_every_try_is_refused_and_not_repeated() {
    let world = scoped(&["authorization"]).await;
    let aws = |signature: &str| {
        format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261118/eu-central-1/execute-api/aws4_request, \
             SignedHeaders=host;x-amz-date, Signature={signature}"
        )
    };
    for credential in [aws("1f1f1f1f"), aws("a0a0a0a0"), "DPoP opaque1".to_owned(), "sk_live_1".to_owned()] {
        let got = world.send(with(post("k", "{}"), "authorization", &credential)).await;
        assert_eq!(got.problem(), (401, "idempotency_scope_missing".to_owned()));
        let text = String::from_utf8_lossy(&got.body).into_owned();
        for sent in ["AWS4", "AKID", "1f1f", "DPoP", "opaque1", "sk_live"] {
            assert!(!text.contains(sent), "{text}");
        }
    }
    assert_eq!(world.ledger(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_proof_beside_the_same_token_is_the_same_operation() {
    let world = scoped(&["authorization"]).await;
    let proven = |proof| with(with(post("k", "{}"), "authorization", "Bearer opaque"), "dpop", proof);
    assert_eq!(world.send(proven("eyJh.a.b")).await.status, 201);
    assert!(world.send(proven("eyJh.a.c")).await.is_replay());
    assert_eq!(world.ledger(), 1);
}
