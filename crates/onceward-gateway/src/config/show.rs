//! The effective values, each with its origin.

use std::fmt;

use serde_json::json;

use super::keys::{item_fields, keys};
use super::tree::{Node, Path, Value};

/// The effective values, to be printed. Of a secret they have only the source.
#[derive(Debug, Clone)]
pub struct Shown {
    lines: Vec<Line>,
    values: toml::Value,
}

#[derive(Debug, Clone)]
enum Line {
    Header(String),
    Value { path: String, key: String, value: toml::Value, origin: String },
}

impl Shown {
    pub(super) fn new(tree: &Node) -> Self {
        let mut lines = Vec::new();
        let mut table = "";
        for key in keys() {
            let path = Path::of(&key.path);
            let Some(node) = tree.get(&path) else { continue };
            let (parent, name) = key.path.rsplit_once('.').unwrap_or(("", &key.path));
            if is_list_of_tables(node) {
                continue;
            }
            if parent != table {
                lines.push(Line::Header(format!("[{parent}]")));
                table = parent;
            }
            lines.push(value_line(&path, name, node));
        }
        // Lists of tables come last: in TOML nothing else could follow them.
        for key in keys() {
            let path = Path::of(&key.path);
            let Some(Node { value: Value::Array(items), .. }) =
                tree.get(&path).filter(|node| is_list_of_tables(node))
            else {
                continue;
            };
            for (index, item) in items.iter().enumerate() {
                lines.push(Line::Header(format!("[[{}]]", key.path)));
                for name in item_fields(&key.path) {
                    let path = path.at(index).key(name);
                    if let Some(node) = item.get(&Path::of(name)) {
                        lines.push(value_line(&path, name, node));
                    }
                }
            }
        }
        Self { lines, values: tree.to_toml() }
    }

    /// The values, and the origin of each by its path.
    pub fn to_json(&self) -> serde_json::Value {
        let origins = self.lines.iter().filter_map(|line| match line {
            Line::Header(_) => None,
            Line::Value { path, origin, .. } => Some((path.clone(), origin.clone().into())),
        });
        json!({ "values": self.values, "origins": origins.collect::<serde_json::Map<_, _>>() })
    }
}

fn is_list_of_tables(node: &Node) -> bool {
    let Value::Array(items) = &node.value else { return false };
    items.iter().any(|item| matches!(item.value, Value::Table(_)))
}

fn value_line(path: &Path, key: &str, node: &Node) -> Line {
    Line::Value {
        path: path.to_string(),
        key: key.to_owned(),
        value: node.to_toml(),
        origin: node.origin.to_string(),
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<(String, Option<&str>)> = self
            .lines
            .iter()
            .map(|line| match line {
                Line::Header(text) => (format!("\n{text}"), None),
                Line::Value { key, value, origin, .. } => (format!("{key} = {value}"), Some(origin.as_str())),
            })
            .collect();
        // Comments are in one column, except after long values.
        let width = texts
            .iter()
            .map(|(text, _)| text.chars().count())
            .filter(|width| *width <= 48)
            .max()
            .unwrap_or(0);
        for (text, origin) in texts {
            match origin {
                Some(origin) => writeln!(f, "{text:width$}  # {origin}")?,
                None => writeln!(f, "{text}")?,
            }
        }
        Ok(())
    }
}
