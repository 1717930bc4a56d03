//! The JSON Schema, and that every key of it has a flag, a variable and a line on the page.

use std::collections::BTreeSet;

use onceward_gateway::cli;
use onceward_gateway::config::{Key, keys, schema};
use serde_json::Value;

fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).unwrap(),
        // One that may be left out.
        None => match schema.pointer("/anyOf/0") {
            Some(inner) => resolved(root, inner),
            None => schema,
        },
    }
}

fn properties<'a>(root: &'a Value, schema: &'a Value) -> Vec<(&'a String, &'a Value)> {
    resolved(root, schema).get("properties").and_then(Value::as_object).into_iter().flatten().collect()
}

/// The path of every key: those at the top, and those of the tables there.
fn paths(root: &Value) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for (table, schema) in properties(root, root) {
        let inner = properties(root, schema);
        if inner.is_empty() {
            paths.insert(table.clone());
        }
        paths.extend(inner.iter().map(|(key, _)| format!("{table}.{key}")));
    }
    paths
}

#[test]
fn every_key_of_the_schema_has_a_flag_and_a_variable_of_its_own() {
    let schema = schema();
    let known: BTreeSet<String> = keys().iter().map(|key| key.path.clone()).collect();
    assert_eq!(known, paths(&schema));
    for names in [
        keys().iter().map(|key| &key.flag).collect::<Vec<_>>(),
        keys().iter().map(|key| &key.variable).collect(),
    ] {
        assert_eq!(
            names.iter().collect::<BTreeSet<_>>().len(),
            names.len(),
            "two keys share a name: {names:?}"
        );
    }
    let command = cli::command();
    for name in ["serve", "check", "config"] {
        let command = command.find_subcommand(name).unwrap();
        let flags: BTreeSet<&str> =
            command.get_arguments().filter_map(|argument| argument.get_long()).collect();
        for key in keys() {
            assert!(flags.contains(key.flag.as_str()), "onceward {name} has no --{}", key.flag);
        }
    }
    command.debug_assert();
}

#[test]
fn the_schema_tells_meaning_choices_and_defaults() {
    let schema = schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(schema["additionalProperties"], false);
    let defaults = resolved(&schema, &schema["properties"]["defaults"]);
    assert_eq!(defaults["additionalProperties"], false);
    assert_eq!(defaults["properties"]["retention"]["default"], "24h");
    for key in keys() {
        assert!(!key.meaning.is_empty(), "{} has no meaning", key.path);
    }
    let flavor = keys().iter().find(|key| key.path == "defaults.flavor").unwrap();
    assert_eq!(flavor.choices, ["ietf", "stripe"]);
    let route = resolved(&schema, &schema["properties"]["routes"]["items"]);
    assert_eq!(route["required"], serde_json::json!(["match"]));
}

#[test]
fn a_route_has_every_key_of_the_defaults_but_the_one_that_concerns_the_store() {
    let schema = schema();
    let names = |schema_of: &Value| -> BTreeSet<String> {
        properties(&schema, schema_of).into_iter().map(|(name, _)| name.clone()).collect()
    };
    let defaults = names(&schema["properties"]["defaults"]);
    let route = names(&schema["properties"]["routes"]["items"]);
    let only = |left: &BTreeSet<String>, right: &BTreeSet<String>| {
        left.difference(right).cloned().collect::<Vec<_>>()
    };
    assert_eq!(only(&defaults, &route), ["expire"]);
    assert_eq!(only(&route, &defaults), ["match", "protect", "receipts", "reconcile"]);
}

fn row(key: &Key) -> String {
    let default = key.default.as_ref().map_or("–".to_owned(), |default| format!("`{default}`"));
    let name = key.path.rsplit('.').next().unwrap();
    format!(
        "| `{name}` | {default} | `--{}` | `{}` | {} |",
        key.flag,
        key.variable,
        key.meaning.trim_end_matches('.')
    )
}

#[test]
fn the_page_has_every_key_with_its_default_flag_variable_and_meaning_and_no_other() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let rows: BTreeSet<String> =
        page.lines().filter(|line| line.contains("| `--")).map(str::to_owned).collect();
    let expected: BTreeSet<String> = keys().iter().map(row).collect();
    let missing: Vec<_> = expected.difference(&rows).collect();
    let stray: Vec<_> = rows.difference(&expected).collect();
    assert!(missing.is_empty() && stray.is_empty(), "missing: {missing:#?}\nno longer true: {stray:#?}");
}

#[test]
fn the_meaning_of_a_key_has_every_word_that_can_be_chosen() {
    for key in keys() {
        for word in &key.choices {
            assert!(key.meaning.contains(&format!("`{word}`")), "{}: {word}: {}", key.path, key.meaning);
        }
    }
}

#[test]
fn the_page_has_every_key_inside_lists_and_inline_tables_and_no_other() {
    let schema = schema();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let section = page.split("## Routes, tokens and fingerprints").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let told: BTreeSet<String> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect();
    let tables = schema.get("properties").unwrap();
    let admin = resolved(&schema, &tables["admin"]);
    let defaults = resolved(&schema, &tables["defaults"]);
    let route = resolved(&schema, &tables["routes"]["items"]);
    let mut expected: BTreeSet<String> = ["match", "protect"].map(str::to_owned).into();
    let named = |inner: &Value| {
        properties(&schema, inner).into_iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    for inner in [&admin["properties"]["tokens"]["items"], &defaults["properties"]["fingerprint"]] {
        expected.extend(named(inner));
    }
    for table in ["receipts", "reconcile"] {
        expected.extend(named(&route["properties"][table]).into_iter().map(|name| format!("{table}.{name}")));
    }
    assert_eq!(told, expected);
}
