//! Deserializes the tree into the typed document, and reports every value of a wrong type, not only the first.

use serde_json::Value as Schema;
use serde_path_to_error::Segment;

use super::document::Document;
use super::keys::{Form, INLINED, choices, form, property};
use super::problem::Problem;
use super::secret_source::HOW_TO_GIVE;
use super::tree::{Node, Path, Step, Value};
use super::unknown_keys::nearest;

/// A limit on the problems that are reported.
const PROBLEMS_MAX: usize = 100;

/// The document, and a problem for each value that was removed because its type is wrong.
pub(super) fn document(tree: &Node) -> (Document, Vec<Problem>) {
    let mut tree = tree.clone();
    let mut problems: Vec<Problem> = Vec::new();
    // The path of each removed value in the tree at that time, and its path in the file.
    let (mut removed, mut reported): (Vec<Path>, Vec<Path>) = (Vec::new(), Vec::new());
    while problems.len() < PROBLEMS_MAX {
        let error = match serde_path_to_error::deserialize(tree.to_toml()) {
            Ok(document) => return (document, problems),
            Err(error) => error,
        };
        let path = existing(&tree, path_of(error.path()));
        let written = path_in_file(path.clone(), &removed);
        // A table may lack the value that was removed from it: that problem was reported already.
        if !reported.iter().any(|known| known.0.starts_with(&written.0)) {
            let text = rephrase(&written, tree.get(&path), error.inner().message());
            problems.push(Problem { origin: tree.origin_of(&path), text });
        }
        if tree.remove(&path).is_none() {
            break;
        }
        removed.push(path);
        reported.push(written);
    }
    (Document::default(), problems)
}

fn path_of(path: &serde_path_to_error::Path) -> Path {
    let step = |segment: &Segment| match segment {
        Segment::Seq { index } => Some(Step::Index(*index)),
        Segment::Map { key } => Some(Step::Key(key.clone())),
        Segment::Enum { .. } | Segment::Unknown => None,
    };
    Path(path.iter().map_while(step).collect())
}

/// The longest part of the path that is in the tree.
fn existing(tree: &Node, mut path: Path) -> Path {
    while !path.0.is_empty() && tree.get(&path).is_none() {
        path.0.pop();
    }
    path
}

/// The path in the file of a value in the tree: items of a list that were removed before it are counted again.
fn path_in_file(mut path: Path, removed: &[Path]) -> Path {
    for removed in removed.iter().rev() {
        let Some((Step::Index(index), parent)) = removed.0.split_last() else { continue };
        if let (true, Some(Step::Index(at))) = (path.0.starts_with(parent), path.0.get_mut(parent.len()))
            && *at >= *index
        {
            *at += 1;
        }
    }
    path
}

/// Serde's message in plain language. A value in the place of a secret is never repeated.
fn rephrase(path: &Path, found: Option<&Node>, message: &str) -> String {
    let keys: Vec<&str> = path.keys().collect();
    let secret = keys.iter().any(|key| matches!(*key, "secret" | "token"))
        || keys.last() == Some(&"tokens")
        || keys.windows(2).any(|pair| pair == ["receipts", "url"]);
    let missing = message.strip_prefix("missing field ");
    if let Some(field) = missing {
        return format!("`{path}` has no {field}: add it");
    }
    if secret && keys.last() == Some(&"tokens") {
        return format!(
            "`{path}` must be a list of tables with `name`, `role` and `token`: write [[admin.tokens]]"
        );
    }
    if secret {
        return format!("`{path}` {HOW_TO_GIVE}");
    }
    let schema = keys.iter().try_fold(&*INLINED, |schema, key| property(schema, key));
    let words = schema.map(choices).unwrap_or_default();
    if !words.is_empty() {
        return choice(path, found, &words);
    }
    let (wrong, value) = match message.strip_prefix("invalid type: ") {
        Some(rest) => (Some(rest), Wrong::Type),
        None => (message.strip_prefix("invalid value: "), Wrong::Value),
    };
    let expected = wrong.and_then(|rest| rest.split_once(", expected ")).map(|(_, expected)| expected);
    match (expected, found) {
        (Some("a sequence"), Some(found)) => match schema.map(form) {
            Some(Form::Toml) => {
                format!("`{path}` is {}, but must be a list of tables: write [[{path}]]", shown(found))
            }
            Some(_) | None => format!("`{path}` is {}, but must be a list{}", shown(found), example(found)),
        },
        (Some(expected), Some(found)) => {
            format!(
                "`{path}` is {}, but must be {}",
                shown(found),
                expectation(expected, found, value, schema)
            )
        }
        (None, _) | (_, None) => format!("`{path}` {message}"),
    }
}

/// Whether a value has a wrong type, or a wrong value of the right type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Type,
    Value,
}

fn choice(path: &Path, found: Option<&Node>, words: &[String]) -> String {
    let listed = words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
    let text = match found.map(|node| &node.value) {
        Some(Value::Leaf(toml::Value::String(text))) => Some(text),
        Some(_) | None => None,
    };
    let found = found.map_or_else(String::new, |found| format!(" is {}, but", shown(found)));
    match text.and_then(|text| nearest(text, words.iter().map(String::as_str))) {
        Some(word) => format!("`{path}`{found} must be {listed}: did you mean {word:?}?"),
        None => format!("`{path}`{found} must be {listed}"),
    }
}

/// A value as the file has it; for a table or a list, only that it is one.
fn shown(found: &Node) -> String {
    match &found.value {
        Value::Leaf(leaf) => leaf.to_string(),
        Value::Table(_) => "a table".to_owned(),
        Value::Array(_) => "a list".to_owned(),
    }
}

/// An example of a list, made from a value that is not in one.
fn example(found: &Node) -> String {
    match &found.value {
        Value::Leaf(leaf) => format!(", such as [{leaf}]"),
        Value::Table(_) | Value::Array(_) => String::new(),
    }
}

fn expectation(expected: &str, found: &Node, wrong: Wrong, schema: Option<&Schema>) -> String {
    match expected {
        "usize" | "u8" | "u16" | "u32" | "u64" => whole_number(found, wrong, schema),
        "path string" => "a path in quotes".to_owned(),
        "a string" => "a text in quotes".to_owned(),
        "a boolean" => "true or false".to_owned(),
        text if text.starts_with("struct") => "a table".to_owned(),
        text => text.to_owned(),
    }
}

fn whole_number(found: &Node, wrong: Wrong, schema: Option<&Schema>) -> String {
    let schema = schema.map(|schema| schema.get("items").unwrap_or(schema));
    let bound = |name: &str| schema.and_then(|schema| schema.get(name)?.as_i64());
    let quoted = match &found.value {
        Value::Leaf(toml::Value::String(text)) => text.parse::<u64>().is_ok(),
        Value::Leaf(_) | Value::Table(_) | Value::Array(_) => false,
    };
    match (wrong, bound("minimum"), bound("maximum")) {
        (Wrong::Value, Some(least), Some(most)) => format!("a whole number from {least} to {most}"),
        (Wrong::Value, Some(least), None) => format!("a whole number of at least {least}"),
        _ if quoted => "a whole number, without quotes".to_owned(),
        _ => "a whole number".to_owned(),
    }
}

/// One value, even if others are wrong.
pub(super) fn one<T: serde::de::DeserializeOwned>(tree: &Node, path: &str) -> Result<T, Problem> {
    let path = Path::of(path);
    let value = tree.get(&path).map(Node::to_toml).unwrap_or_else(|| toml::Value::String(String::new()));
    T::deserialize(value).map_err(|error| Problem {
        origin: tree.origin_of(&path),
        text: rephrase(&path, tree.get(&path), error.message()),
    })
}
