//! The token that is made where none is configured.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use onceward_gateway::admin::token::{TokenError, path_in, read_or_make};
use onceward_gateway::settings::StoreUrl;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_token_is_made_once_for_its_owner_alone_and_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("onceward.db.token");
    let token = read_or_make(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(token.len(), "onceward_".len() + 64);
    assert_eq!(read_or_make(&path).unwrap(), token);
    assert_ne!(read_or_make(&folder.path().join("other")).unwrap(), token);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no draft is left");
}

#[test]
fn a_draft_that_a_crash_left_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("onceward.db.token");
    fs::write(folder.path().join("onceward.db.token.new"), "onceward_").unwrap();
    assert_eq!(read_or_make(&path).unwrap(), read_or_make(&path).unwrap());
}

#[test]
fn a_token_that_others_can_read_is_refused_with_the_command_that_helps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let token = read_or_make(&path).unwrap();
    for open in [0o640, 0o604, 0o666] {
        fs::set_permissions(&path, fs::Permissions::from_mode(open)).unwrap();
        let error = read_or_make(&path).unwrap_err();
        assert!(matches!(&error, TokenError::Open { mode, .. } if *mode == open), "{error}");
        assert!(error.to_string().contains("chmod 600"), "{error}");
        assert!(!error.to_string().contains(&token), "{error}");
    }
}

#[test]
fn a_file_that_holds_something_else_is_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    for content in ["", "secret", "onceward_12", &"x".repeat(5000)] {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = read_or_make(&path).unwrap_err();
        assert!(matches!(error, TokenError::Content { .. }), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
}

#[test]
fn a_token_is_kept_beside_its_store_and_for_memory_in_the_runtime_directory() {
    let listen = "127.0.0.1:8421".parse().unwrap();
    let runtime = Path::new("/run/user/7");
    let beside = path_in(&StoreUrl::Sqlite("data/onceward.db".into()), listen, Some(runtime));
    assert_eq!(beside.unwrap(), Path::new("data/onceward.db.token"));
    assert_eq!(
        path_in(&StoreUrl::Memory, listen, Some(runtime)).unwrap(),
        runtime.join("onceward-8421.token")
    );
    assert_eq!(path_in(&StoreUrl::Memory, listen, None), None);
}

#[test]
fn tokens_that_could_be_guessed_or_mistaken_for_each_other_are_refused() {
    let token = |name: &str, token: &str| Token {
        name: name.to_owned(),
        role: Role::Reader,
        token: token.to_owned(),
    };
    let short = Tokens::new(&[token("ann", &"x".repeat(15))]).unwrap_err();
    assert!(matches!(short, TokenError::Short { found: 15, .. }), "{short}");
    assert!(Tokens::new(&[token("ann", &"x".repeat(16))]).is_ok());
    let same = Tokens::new(&[token("ann", READER), token("bob", READER)]).unwrap_err();
    assert!(!same.to_string().contains(READER), "{same}");
}

#[test]
fn a_token_is_known_by_its_name_and_role_and_by_nothing_like_it() {
    let tokens = tokens();
    let caller = tokens.caller(OPERATOR.as_bytes()).unwrap();
    assert_eq!((caller.name.as_str(), caller.role), ("olga", Role::Operator));
    for wrong in ["", "an-operator-token-", "an-operator-token-00", "AN-OPERATOR-TOKEN-0"] {
        assert_eq!(tokens.caller(wrong.as_bytes()), None, "{wrong}");
    }
    assert!(!format!("{tokens:?}").contains(OPERATOR));
}
