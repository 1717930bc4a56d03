//! What ARCHITECTURE.md says about the source, held against the source.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every Rust file of the workspace, with its path from the root.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates"), root().join("xtask"), root().join("fuzz/fuzz_targets")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 40, "only {} files were found", found.len());
    found
}

#[test]
fn the_machine_is_read_in_one_sitting_and_knows_no_io_clock_or_store() {
    let machine: Vec<_> =
        sources().into_iter().filter(|(path, _)| path.starts_with("crates/onceward/src/machine/")).collect();
    assert!(!machine.is_empty(), "the machine has moved: this test must follow it");
    let lines: usize = machine.iter().map(|(_, text)| text.lines().count()).sum();
    // Eight families of events. A ninth should first look for one to delete.
    assert!(lines <= 850, "the machine has {lines} lines, too many for one sitting");
    for (path, text) in machine {
        assert!(text.lines().count() <= 150, "{path} is more than one family of events");
        for word in [
            "async",
            "await",
            "tokio",
            "SystemTime",
            "Instant",
            "crate::store",
            "crate::engine",
            "panic!",
            "unwrap",
        ] {
            assert!(!text.contains(word), "{path} knows about {word}");
        }
    }
}

#[test]
fn the_store_trait_has_four_methods() {
    let store = read("crates/onceward/src/store.rs");
    let start = store.find("pub trait Store").unwrap();
    let body = &store[start..start + store[start..].find("\n}").unwrap()];
    assert_eq!(body.matches("fn ").count(), 4, "resist the fifth");
}

#[test]
fn only_two_files_read_the_clock_wait_or_draw_random_numbers() {
    let exempt: Vec<_> = sources()
        .into_iter()
        .filter(|(path, text)| path != "xtask/tests/tidy.rs" && text.contains("clippy::disallowed_methods"))
        .map(|(path, _)| path)
        .collect();
    for path in exempt {
        let known = ["crates/onceward/src/time.rs", "crates/onceward/src/entropy.rs"];
        assert!(known.contains(&path.as_str()), "{path} reads the machine's clock or randomness");
    }
}

#[test]
fn the_library_depends_on_no_particular_database_server_or_client() {
    let manifest = read("crates/onceward/Cargo.toml");
    let dependencies = manifest.split("[dev-dependencies]").next().unwrap();
    let dependencies = dependencies.split("[dependencies]").nth(1).unwrap();
    // The traits of axum's extractors bring neither a server nor a client.
    let names = dependencies.lines().filter(|line| !line.starts_with("axum-core = "));
    for name in ["rusqlite", "postgres", "tokio-postgres", "redis", "hyper", "axum", "tonic", "reqwest"] {
        assert!(!names.clone().any(|line| line.starts_with(name)), "the library depends on {name}");
    }
    for name in ["axum-core", "http", "http-body", "tower-layer", "tower-service"] {
        let line = dependencies.lines().find(|line| line.starts_with(&format!("{name} = {{"))).unwrap();
        assert!(line.contains("optional = true"), "{name} is not optional");
    }
}

#[test]
fn only_the_layer_knows_http() {
    for (path, text) in sources() {
        let Some(module) = path.strip_prefix("crates/onceward/src/") else { continue };
        if module.starts_with("http/") {
            continue;
        }
        for word in ["use http", "::http::", "http_body", "tower_", "HeaderMap", "StatusCode"] {
            assert!(!text.contains(word), "{path} knows about {word}");
        }
    }
}

#[test]
fn every_published_crate_says_what_it_is_and_both_licence_texts_are_here() {
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let manifest = read(&format!("crates/{name}/Cargo.toml"));
        if manifest.contains("publish = false") {
            continue;
        }
        for key in ["description = ", "license.workspace = true", "readme.workspace = true"] {
            assert!(manifest.lines().any(|line| line.starts_with(key)), "{name} has no {key}");
        }
    }
    assert!(read("LICENSE-MIT").contains("Permission is hereby granted, free of charge"));
    assert!(read("LICENSE-APACHE").contains("TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION"));
}

#[test]
fn no_test_is_switched_off_and_nothing_is_left_to_do() {
    let switched_off = concat!("#[", "ignore");
    let left = concat!("todo", "!(");
    for (path, text) in sources() {
        assert!(!text.contains(switched_off), "{path} switches a test off");
        assert!(!text.contains(left), "{path} leaves something to do");
    }
}

#[test]
fn files_stay_readable() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= 600, "{path} has {lines} lines: it has become two files");
    }
}
