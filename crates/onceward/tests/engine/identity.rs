//! The identity of a store: whose keys it holds.

use std::sync::Arc;

use onceward::store::Store as _;
use onceward::{
    Engine, Identity, MemoryStore, OpenError, Record, RecordId, Reply, Secret,
    engine::{IdentityChange, IdentityRefused, Recognition},
    record::{RecordFormat, State},
};

use super::builder;

/// The id under which a store keeps its identity.
const IDENTITY: RecordId = RecordId::from_bytes([0; 16]);

async fn open(store: &MemoryStore, identity: Identity, change: IdentityChange) -> Result<Engine, OpenError> {
    builder(Arc::new(store.clone()), 1).identity_change(change).open(identity).await
}

fn refused(opened: Result<Engine, OpenError>) -> IdentityRefused {
    match opened {
        Err(OpenError::Identity(refused)) => refused,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[tokio::test]
async fn another_scope_rule_namespace_or_secret_would_forget_every_key_and_is_refused() {
    let store = MemoryStore::default();
    let first = || Identity::in_namespace("shop").scoped_by("authorization").unwrap();
    open(&store, first(), IdentityChange::Refuse).await.unwrap();
    open(&store, first(), IdentityChange::Refuse).await.unwrap();

    let scope = Identity::in_namespace("shop").scoped_by("header:X-Tenant").unwrap();
    let secret = first().with_secret(Secret::new(*b"0123456789abcdef").unwrap());
    for changed in [scope, secret] {
        let why = refused(open(&store, changed, IdentityChange::Refuse).await);
        assert_eq!(why, IdentityRefused::Changed { namespace: "shop".to_owned() });
        assert!(why.to_string().contains("would be forgotten"), "{why}");
    }
    let namespace = Identity::in_namespace("shpo").scoped_by("authorization").unwrap();
    let why = refused(open(&store, namespace, IdentityChange::Refuse).await);
    assert_eq!(why, IdentityRefused::NewNamespace { namespace: "shpo".to_owned() });
}

#[tokio::test]
async fn an_accepted_change_is_remembered_and_the_other_namespaces_stay_known() {
    let store = MemoryStore::default();
    let shop = || Identity::in_namespace("shop").scoped_by("authorization").unwrap();
    let bank = || Identity::in_namespace("bank").scoped_by("authorization").unwrap();
    open(&store, shop(), IdentityChange::Refuse).await.unwrap();
    open(&store, bank(), IdentityChange::Accept).await.unwrap();
    open(&store, shop(), IdentityChange::Refuse).await.unwrap();
    open(&store, bank(), IdentityChange::Refuse).await.unwrap();
    let changed = || Identity::in_namespace("bank").scoped_by("jwt:sub").unwrap();
    open(&store, changed(), IdentityChange::Accept).await.unwrap();
    open(&store, changed(), IdentityChange::Refuse).await.unwrap();
    refused(open(&store, bank(), IdentityChange::Refuse).await);
    open(&store, shop(), IdentityChange::Refuse).await.unwrap();
}

#[tokio::test]
async fn asking_a_store_whether_it_knows_an_identity_does_not_write_one() {
    let store = MemoryStore::default();
    let shop = || Identity::in_namespace("shop").scoped_by("authorization").unwrap();
    for _ in 0..2 {
        assert_eq!(shop().recognised_by(&store).await, Ok(Recognition::New));
    }
    open(&store, shop(), IdentityChange::Refuse).await.unwrap();
    assert_eq!(shop().recognised_by(&store).await, Ok(Recognition::Known));
    for other in [
        shop().with_secret(Secret::new(*b"0123456789abcdef").unwrap()),
        Identity::in_namespace("shop").scoped_by("fixed").unwrap(),
        Identity::in_namespace("bank").scoped_by("authorization").unwrap(),
    ] {
        assert_eq!(other.recognised_by(&store).await, Ok(Recognition::Other), "{other:?}");
    }
}

#[tokio::test]
async fn engines_that_start_at_once_agree() {
    let store = MemoryStore::default();
    let starting: Vec<_> = (0..16)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                open(
                    &store,
                    Identity::in_namespace("shop").scoped_by("fixed").unwrap(),
                    IdentityChange::Refuse,
                )
                .await
                .is_ok()
            })
        })
        .collect();
    for started in starting {
        assert!(started.await.unwrap());
    }
}

#[tokio::test]
async fn a_version_that_knows_no_formats_keeps_the_note_of_the_format() {
    let store = MemoryStore::default();
    let shop = || Identity::in_namespace("shop").scoped_by("authorization").unwrap();
    let first = open(&store, shop(), IdentityChange::Refuse).await.unwrap();
    assert_eq!(first.record_format(), RecordFormat::Two, "a new store gets the newest");
    // Such a version adds its own entry, and writes the entries without the format.
    let found = store.load(IDENTITY).await.unwrap().record.unwrap();
    let State::Completed { reply, settled_at, expires_at } = found.record.state.clone() else { panic!() };
    let reply = Arc::new(Reply::new([&reply.body[..], &[7; 32]].concat()));
    let next = Record { state: State::Completed { reply, settled_at, expires_at }, ..found.record };
    store.swap(IDENTITY, Some(found.version), next).await.unwrap();
    let again = open(&store, shop(), IdentityChange::Refuse).await.unwrap();
    assert_eq!(again.record_format(), RecordFormat::Two);
}
