//! Turns the tree into the typed document, and tells about every value that does not fit, not only the first.

use serde_path_to_error::Segment;

use super::document::Document;
use super::keys::{INLINED, choices, property};
use super::problem::Problem;
use super::secret::HOW_TO_GIVE;
use super::tree::{Node, Path, Step};
use super::unknown::nearest;

/// More wrong values than anybody reads.
const PROBLEMS_MAX: usize = 100;

/// The document, or as much of it as could be read: what did not fit was taken out and told about.
pub(super) fn document(tree: &Node) -> (Document, Vec<Problem>) {
    let mut tree = tree.clone();
    let mut problems: Vec<Problem> = Vec::new();
    // Where each was when it was taken out, and where it is in the file.
    let (mut taken, mut told): (Vec<Path>, Vec<Path>) = (Vec::new(), Vec::new());
    while problems.len() < PROBLEMS_MAX {
        let error = match serde_path_to_error::deserialize(tree.to_toml()) {
            Ok(document) => return (document, problems),
            Err(error) => error,
        };
        let path = existing(&tree, path_of(error.path()));
        let written = as_written(path.clone(), &taken);
        // After a wrong value was taken out, its table may lack it: that was told already.
        if !told.iter().any(|known| known.0.starts_with(&written.0)) {
            let text = rephrase(&written, error.inner().message());
            problems.push(Problem { origin: tree.origin_of(&path), text });
        }
        if tree.remove(&path).is_none() {
            break;
        }
        taken.push(path);
        told.push(written);
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

/// Counts the items of a list as in the file, those included that were taken out before.
fn as_written(mut path: Path, taken: &[Path]) -> Path {
    for taken in taken.iter().rev() {
        let Some((Step::Index(index), parent)) = taken.0.split_last() else { continue };
        if let (true, Some(Step::Index(at))) = (path.0.starts_with(parent), path.0.get_mut(parent.len()))
            && *at >= *index
        {
            *at += 1;
        }
    }
    path
}

/// Serde's words in plain language. What stands where a secret belongs is never repeated.
fn rephrase(path: &Path, message: &str) -> String {
    let keys: Vec<&str> = path.keys().collect();
    let secret = keys.iter().any(|key| matches!(*key, "secret" | "token")) || keys.last() == Some(&"tokens");
    let missing = message.strip_prefix("missing field ");
    if let Some(field) = missing {
        return format!("`{path}` has no {field}: add it");
    }
    if secret && keys.last() == Some(&"tokens") {
        return format!("`{path}` must be a list of tables with `name`, `role` and `token`");
    }
    if secret {
        return format!("`{path}` {HOW_TO_GIVE}");
    }
    if let Some((found, _)) = message.strip_prefix("unknown variant `").and_then(|rest| rest.split_once('`'))
    {
        let words = keys.iter().try_fold(&*INLINED, |schema, key| property(schema, key)).map(choices);
        let words = words.unwrap_or_default();
        let listed = words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
        return match nearest(found, words.iter().map(String::as_str)) {
            Some(word) => format!("`{path}` is {found:?}, but must be {listed}: did you mean {word:?}?"),
            None => format!("`{path}` is {found:?}, but must be {listed}"),
        };
    }
    let wrong = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    match wrong.and_then(|rest| rest.split_once(", expected ")) {
        Some((found, expected)) => {
            format!("`{path}` is {}, but must be {}", plain(found), expectation(expected))
        }
        None => format!("`{path}` {message}"),
    }
}

/// `integer `30`` is the number 30 to people.
fn plain(found: &str) -> String {
    match found.split_once(' ') {
        Some(("integer" | "floating", rest)) => {
            rest.trim_start_matches("point ").trim_matches('`').to_owned()
        }
        Some(("boolean" | "string", rest)) => rest.trim_matches('`').to_owned(),
        _ if found == "map" => "a table".to_owned(),
        _ if found == "sequence" => "a list".to_owned(),
        _ => found.to_owned(),
    }
}

fn expectation(expected: &str) -> String {
    match expected {
        "usize" | "u16" | "u32" => "a whole number".to_owned(),
        "a sequence" => "a list, such as [\"…\"]".to_owned(),
        "path string" => "a path in quotes".to_owned(),
        "a string" => "a text in quotes".to_owned(),
        "a boolean" => "true or false".to_owned(),
        text if text.starts_with("struct") => "a table".to_owned(),
        text if text.starts_with("enum") => "one of the words that are listed for it".to_owned(),
        text => text.to_owned(),
    }
}

/// Only the address of the admin listener, whatever else may be wrong.
pub(super) fn one<T: serde::de::DeserializeOwned>(tree: &Node, path: &str) -> Result<T, Problem> {
    let path = Path::of(path);
    let value = tree.get(&path).map(Node::to_toml).unwrap_or_else(|| toml::Value::String(String::new()));
    T::deserialize(value)
        .map_err(|error| Problem { origin: tree.origin_of(&path), text: rephrase(&path, error.message()) })
}
