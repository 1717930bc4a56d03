//! Finds unknown keys, keys in the wrong table, and keys of later releases.

use serde_json::Value as Schema;

use super::keys::{INLINED, keys, property, property_names};
use super::problem::Problem;
use super::tree::{Node, Path, Value};

/// Keys of later releases, each with what to do until then.
pub(super) const LATER: [(&str, &str); 3] = [
    (
        "auth_url",
        "let a proxy in front authorise and set a header, and use scope = [\"header:NAME\"] with scope_verified = true",
    ),
    ("webhooks", "let the receiver of the webhook resolve the operation through the operations API"),
    (
        "routes.reconcile.find",
        "outcomes are found out by [routes.receipts], or wait for a verdict through the operations API",
    ),
];

/// Removes every unknown key from the tree, and reports each.
pub(super) fn take_unknown(tree: &mut Node) -> Vec<Problem> {
    let mut found = Vec::new();
    find(tree, &INLINED, &Path::default(), &mut found);
    let problems = found
        .iter()
        .map(|(path, text)| Problem { origin: tree.origin_of(path), text: text.clone() })
        .collect();
    // From the last to the first, so that indices of a list stay valid.
    for (path, _) in found.iter().rev() {
        tree.remove(path);
    }
    problems
}

fn find(node: &Node, schema: &Schema, path: &Path, found: &mut Vec<(Path, String)>) {
    match &node.value {
        Value::Table(table) => {
            let names = property_names(schema);
            // A table in the place of another value is a wrong type, which deserializing reports. So is a secret in the
            // place of its source.
            if is_secret(path) || names.is_empty() && !path.0.is_empty() {
                return;
            }
            for (key, child) in table {
                let path = path.key(key);
                match property(schema, key) {
                    Some(schema) => find(child, schema, &path, found),
                    None => found.push((path.clone(), explain(&path, key, &names))),
                }
            }
        }
        // Serde would accept a list as a table with its values in the order of the keys.
        Value::Array(_) if is_table(schema) && !is_secret(path) => {
            found.push((
                path.clone(),
                format!("`{path}` is a list, but must be a table with {}", listed(&property_names(schema))),
            ));
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                find(item, schema.get("items").unwrap_or(schema), &path.at(index), found);
            }
        }
        Value::Leaf(_) => {}
    }
}

fn is_secret(path: &Path) -> bool {
    let mut keys = path.keys().rev();
    match keys.next() {
        Some("secret" | "token") => true,
        Some("url") => keys.next() == Some("receipts"),
        Some(_) | None => false,
    }
}

/// Whether the schema is a table, and not a list of tables.
fn is_table(schema: &Schema) -> bool {
    schema.get("items").is_none() && !property_names(schema).is_empty()
}

fn explain(path: &Path, key: &str, names: &[&str]) -> String {
    let dotted = path.keys().collect::<Vec<_>>().join(".");
    if let Some((_, instead)) = LATER.iter().find(|(later, _)| *later == dotted) {
        return format!("`{path}` is not in this version yet: remove it; {instead}");
    }
    if dotted == "routes.expire" {
        return format!(
            "`{path}` cannot differ by route, because it concerns the whole store: write it in [defaults]"
        );
    }
    // A key at the end of a file belongs to the last table, which is a common mistake.
    let at_top = keys().iter().any(|known| known.path == key) || property(&INLINED, key).is_some();
    if path.0.len() > 1 && at_top {
        return format!(
            "`{key}` is no key of this table: write it at the top of the file, before the first [table]"
        );
    }
    let table = keys().iter().find_map(|known| known.path.strip_suffix(key)?.strip_suffix('.'));
    if let (Some(table), None) = (table, nearest(key, names.iter().copied())) {
        return format!("`{path}` is no key: write `{key}` in [{table}]");
    }
    match nearest(key, names.iter().copied()) {
        Some(name) => format!("`{path}` is no key: did you mean `{name}`?"),
        None => format!("`{path}` is no key: this table has {}", listed(names)),
    }
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The name that was probably meant, if any is close.
pub(super) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |name: &str| strsim::damerau_levenshtein(&word.to_lowercase(), &name.to_lowercase());
    let near = |name: &&str| distance(name) <= (name.len() / 3).clamp(1, 4) || extends(word, name);
    names.into_iter().filter(near).min_by_key(|name| distance(name))
}

/// `listen_address` for `listen`, or `cert` for `certificate`.
fn extends(word: &str, name: &str) -> bool {
    let (short, long) = if word.len() < name.len() { (word, name) } else { (name, word) };
    short.len() >= 4 && long.starts_with(short)
}
