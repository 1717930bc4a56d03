//! The secret file beside a store.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onceward::{Engine, Identity, Secret};
use onceward_sqlite::{Options, SecretError, SqliteStore};

fn identity() -> Identity {
    Identity::in_namespace("shop").scoped_by("fixed").unwrap()
}

struct Place {
    folder: tempfile::TempDir,
    store: PathBuf,
    secret: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("onceward.db");
        let secret = SqliteStore::secret_path(&store);
        Self { folder, store, secret }
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.store, Options::default()).unwrap()
    }

    /// Writes what an engine writes first, with or without a secret.
    async fn use_with(&self, secret: Option<Secret>) {
        let store = self.open();
        let identity = secret.into_iter().fold(identity(), Identity::with_secret);
        let engine = Engine::builder(Arc::new(store.clone())).open(identity).await.unwrap();
        engine.shut_down(std::time::Duration::ZERO).await;
        store.close().await;
    }

    fn put(&self, content: &str, mode: u32) {
        fs::write(&self.secret, content).unwrap();
        fs::set_permissions(&self.secret, fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_new_store_gets_a_secret_for_its_owner_alone_and_keeps_it() {
    let place = Place::new();
    let store = place.open();
    assert_eq!(store.secret(&identity()).await.unwrap(), None, "looking makes none");
    let made = store.secret_or_new(&identity()).await.unwrap().unwrap();
    assert_eq!(mode(&place.secret), 0o600);
    assert_eq!(store.secret_or_new(&identity()).await.unwrap().unwrap(), made);
    store.close().await;
    drop(store);
    place.use_with(Some(made.clone())).await;
    assert_eq!(place.open().secret_or_new(&identity()).await.unwrap().unwrap(), made);
    // Who names the file in a configuration means the same secret.
    let text = fs::read_to_string(&place.secret).unwrap();
    assert_eq!(Secret::new(text.trim_end()).unwrap(), made);
    let other = Place::new();
    assert_ne!(other.open().secret_or_new(&identity()).await.unwrap().unwrap(), made);
    let names = fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().ends_with(".new")), "a draft was left");
}

#[tokio::test]
async fn an_identity_without_a_secret_is_keyed_with_the_stores_if_there_is_one() {
    let place = Place::new();
    let store = place.open();
    let keyed = store.keyed(identity()).await.unwrap();
    let engine = Engine::builder(Arc::new(store.clone())).open(keyed).await.unwrap();
    engine.shut_down(std::time::Duration::ZERO).await;
    let secret = store.secret(&identity()).await.unwrap();
    store.close().await;
    // The last clones of the store hold its lock.
    drop((engine, store));
    place.use_with(Some(secret.unwrap())).await;

    // A secret of the caller's own is not replaced, and none is made beside it.
    let own = Place::new();
    let store = own.open();
    let mine = identity().with_secret(Secret::new("f".repeat(64)).unwrap());
    store.keyed(mine).await.unwrap();
    assert!(!own.secret.exists());

    let without = Place::new();
    without.use_with(None).await;
    let store = without.open();
    let same = store.keyed(identity()).await.unwrap();
    assert!(Engine::builder(Arc::new(store)).open(same).await.is_ok());
}

#[tokio::test]
async fn a_store_that_was_used_without_a_secret_is_not_given_one() {
    let place = Place::new();
    place.use_with(None).await;
    assert_eq!(place.open().secret_or_new(&identity()).await.unwrap(), None);
    assert!(!place.secret.exists());
}

#[tokio::test]
async fn a_used_store_that_has_lost_its_secret_is_refused_and_given_no_other() {
    let place = Place::new();
    let made = place.open().secret_or_new(&identity()).await.unwrap().unwrap();
    place.use_with(Some(made.clone())).await;
    let digits = fs::read_to_string(&place.secret).unwrap();
    fs::remove_file(&place.secret).unwrap();
    let store = place.open();
    for identity in [
        identity(),
        Identity::in_namespace("shop").scoped_by("other").unwrap(),
        Identity::in_namespace("bank").scoped_by("fixed").unwrap(),
    ] {
        for refused in [store.secret(&identity).await, store.secret_or_new(&identity).await] {
            let error = refused.unwrap_err();
            assert!(
                matches!(&error, SecretError::Missing { secret, .. } if *secret == place.secret),
                "{error}"
            );
        }
        assert!(!place.secret.exists());
    }
    place.put(&digits, 0o600);
    assert_eq!(store.secret_or_new(&identity()).await.unwrap().unwrap(), made);
}

#[tokio::test]
async fn a_secret_that_a_crash_left_beside_an_empty_store_is_used_and_a_draft_of_one_is_not() {
    let place = Place::new();
    fs::write(place.folder.path().join("onceward.db.secret.new"), "0123").unwrap();
    let made = place.open().secret_or_new(&identity()).await.unwrap().unwrap();
    fs::remove_file(&place.store).unwrap();
    assert_eq!(place.open().secret_or_new(&identity()).await.unwrap().unwrap(), made);
}

#[tokio::test]
async fn a_file_that_its_group_can_read_is_used_and_advised_about() {
    let place = Place::new();
    let store = place.open();
    for (mode, advised) in [(0o400, false), (0o600, false), (0o440, true), (0o640, true), (0o660, true)] {
        place.put(&"0123456789abcdef".repeat(4), mode);
        assert!(store.secret_or_new(&identity()).await.unwrap().is_some(), "{mode:o}");
        assert_eq!(SqliteStore::secret_advice(&place.store).is_some(), advised, "{mode:o}");
    }
}

#[tokio::test]
async fn a_file_that_every_user_can_read_or_that_holds_something_else_is_refused_and_kept() {
    let place = Place::new();
    let store = place.open();
    let digits = "0123456789abcdef".repeat(4);
    for open in [0o601, 0o604, 0o644, 0o666] {
        place.put(&digits, open);
        let error = store.secret_or_new(&identity()).await.unwrap_err();
        assert!(matches!(&error, SecretError::Open { mode, .. } if *mode == open), "{error}");
        assert!(error.to_string().contains("chmod 600") && !error.to_string().contains(&digits), "{error}");
    }
    for content in ["", "secret", &digits[1..], &format!("{digits}0"), &"x".repeat(5000)] {
        place.put(content, 0o600);
        let error = store.secret_or_new(&identity()).await.unwrap_err();
        assert!(matches!(error, SecretError::Content { .. }), "{error}");
        assert_eq!(fs::read_to_string(&place.secret).unwrap(), content);
    }
}
