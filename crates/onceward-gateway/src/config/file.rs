//! Reads a TOML file into the tree, with the line of every value.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::problem::{ConfigErrors, Origin, Problem};
use super::tree::{Node, Value};

/// Larger than any configuration. A database that is named by mistake is refused before it is read.
const LARGEST_FILE_BYTES: u64 = 4 << 20;

pub(super) fn read(path: &Path) -> Result<Node, ConfigErrors> {
    let name = path.display().to_string();
    let refused = |text: String| Problem { origin: Origin::File { name: name.clone(), line: None }, text };
    let size = std::fs::metadata(path).map(|found| found.len());
    if size.as_ref().is_ok_and(|bytes| *bytes > LARGEST_FILE_BYTES) {
        return Err(refused("is no configuration: it has more than 4 MiB".to_owned()).into());
    }
    let text = std::fs::read_to_string(path).map_err(|error| {
        refused(format!("cannot be read ({error}): name the configuration with --config PATH"))
    })?;
    parse(&name, &text)
}

/// A file's text as a tree. Only the first syntax error is reported, because those after it mostly follow from it.
pub(super) fn parse(name: &str, text: &str) -> Result<Node, ConfigErrors> {
    let source = Source { name, text };
    let (table, errors) = DeTable::parse_recoverable(text);
    let first = errors.iter().min_by_key(|error| error.span().map_or(text.len(), |span| span.start));
    if let Some(error) = first {
        return Err(source.syntax_error(error).into());
    }
    let origin = Origin::File { name: name.to_owned(), line: None };
    Ok(Node { value: source.table(table.get_ref()), origin })
}

#[derive(Clone, Copy)]
struct Source<'a> {
    name: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn origin(self, offset: usize) -> Origin {
        Origin::File { name: self.name.to_owned(), line: Some(self.line(offset)) }
    }

    fn line(self, offset: usize) -> usize {
        let before = self.text.as_bytes().get(..offset).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn table(self, table: &DeTable<'_>) -> Value {
        let nodes = table.iter().map(|(key, value)| {
            let node = self.node(value.get_ref(), self.origin(key.span().start), value.span().start);
            (key.get_ref().to_string(), node)
        });
        Value::Table(nodes.collect())
    }

    /// The origin of a table is the line of its name; that of any other value is its own line.
    fn node(self, value: &DeValue<'_>, key: Origin, start: usize) -> Node {
        let here = self.origin(start);
        match value {
            DeValue::Table(table) => Node { value: self.table(table), origin: key },
            DeValue::Array(items) => {
                let item = |value: &toml::Spanned<DeValue<'_>>| {
                    let start = value.span().start;
                    self.node(value.get_ref(), self.origin(start), start)
                };
                Node { value: Value::Array(items.iter().map(item).collect()), origin: key }
            }
            DeValue::String(text) => leaf(toml::Value::String(text.to_string()), here),
            DeValue::Boolean(truth) => leaf(toml::Value::Boolean(*truth), here),
            DeValue::Datetime(time) => leaf(toml::Value::Datetime(*time), here),
            // A number out of range stays a text, and is refused where a number is expected.
            DeValue::Integer(number) => {
                let value = i64::from_str_radix(number.as_str(), number.radix());
                leaf(
                    value.map_or_else(|_| toml::Value::String(number.to_string()), toml::Value::Integer),
                    here,
                )
            }
            DeValue::Float(number) => {
                let value = number.as_str().parse();
                leaf(value.map_or_else(|_| toml::Value::String(number.to_string()), toml::Value::Float), here)
            }
        }
    }

    fn syntax_error(self, error: &toml::de::Error) -> Problem {
        let offset = error.span().map_or(self.text.len(), |span| span.start);
        let line = self.line(offset);
        let origin = Origin::File { name: self.name.to_owned(), line: Some(line) };
        let shown = self.text.lines().nth(line - 1).unwrap_or_default();
        let text = format!("this is not TOML: {}", error.message());
        // A line that may hold a credential is not quoted.
        let lower = shown.to_lowercase();
        if ["secret", "token", "password", "://"].iter().any(|word| lower.contains(word)) {
            return Problem { origin, text };
        }
        let start = self.text.as_bytes().get(..offset).unwrap_or_default();
        let begin = start.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let column = self.text.get(begin..offset).map_or(0, |before| before.chars().count());
        Problem { origin, text: format!("{text}\n    {shown}\n    {:column$}^", "") }
    }
}

fn leaf(value: toml::Value, origin: Origin) -> Node {
    Node { value: Value::Leaf(value), origin }
}
