//! A tree of values in which every value has its origin.

use std::collections::BTreeMap;
use std::fmt;

use super::problem::Origin;

/// A value and its origin.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub value: Value,
    pub origin: Origin,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Table(BTreeMap<String, Node>),
    Array(Vec<Node>),
    /// A text, a number, a truth value or a date.
    Leaf(toml::Value),
}

/// The path of a value: `routes[1].key`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Path(pub Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

impl Path {
    /// Reads `admin.listen`; indices are added with [`Path::at`].
    pub(super) fn of(text: &str) -> Self {
        Self(text.split('.').map(|key| Step::Key(key.to_owned())).collect())
    }

    pub(super) fn key(&self, key: &str) -> Self {
        let mut path = self.clone();
        path.0.push(Step::Key(key.to_owned()));
        path
    }

    pub(super) fn at(&self, index: usize) -> Self {
        let mut path = self.clone();
        path.0.push(Step::Index(index));
        path
    }

    /// The keys on the way, without indices.
    pub(super) fn keys(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.iter().filter_map(|step| match step {
            Step::Key(key) => Some(key.as_str()),
            Step::Index(_) => None,
        })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if index == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                // People count from one, and so does the line beside it.
                Step::Index(at) => write!(f, "[{}]", at + 1)?,
            }
        }
        Ok(())
    }
}

impl Node {
    /// A tree whose values all have one origin.
    pub(super) fn from_toml(value: toml::Value, origin: &Origin) -> Self {
        let value = match value {
            toml::Value::Table(table) => Value::Table(
                table.into_iter().map(|(key, value)| (key, Self::from_toml(value, origin))).collect(),
            ),
            toml::Value::Array(items) => {
                Value::Array(items.into_iter().map(|value| Self::from_toml(value, origin)).collect())
            }
            leaf @ (toml::Value::String(_)
            | toml::Value::Integer(_)
            | toml::Value::Float(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_)) => Value::Leaf(leaf),
        };
        Self { value, origin: origin.clone() }
    }

    /// The values without their origins.
    pub(super) fn to_toml(&self) -> toml::Value {
        match &self.value {
            Value::Table(table) => {
                toml::Value::Table(table.iter().map(|(key, node)| (key.clone(), node.to_toml())).collect())
            }
            Value::Array(items) => toml::Value::Array(items.iter().map(Self::to_toml).collect()),
            Value::Leaf(leaf) => leaf.clone(),
        }
    }

    /// A table with nothing in it.
    pub(super) fn empty() -> Self {
        Self { value: Value::Table(BTreeMap::new()), origin: Origin::Default }
    }

    pub(super) fn get(&self, path: &Path) -> Option<&Self> {
        path.0.iter().try_fold(self, |node, step| match (&node.value, step) {
            (Value::Table(table), Step::Key(key)) => table.get(key),
            (Value::Array(items), Step::Index(index)) => items.get(*index),
            (Value::Table(_) | Value::Array(_) | Value::Leaf(_), Step::Key(_) | Step::Index(_)) => None,
        })
    }

    /// Removes a value.
    pub(super) fn remove(&mut self, path: &Path) -> Option<Self> {
        let (last, parents) = path.0.split_last()?;
        let parent = parents.iter().try_fold(self, |node, step| match (&mut node.value, step) {
            (Value::Table(table), Step::Key(key)) => table.get_mut(key),
            (Value::Array(items), Step::Index(index)) => items.get_mut(*index),
            (Value::Table(_) | Value::Array(_) | Value::Leaf(_), Step::Key(_) | Step::Index(_)) => None,
        })?;
        match (&mut parent.value, last) {
            (Value::Table(table), Step::Key(key)) => table.remove(key),
            (Value::Array(items), Step::Index(index)) if *index < items.len() => Some(items.remove(*index)),
            (Value::Table(_) | Value::Array(_) | Value::Leaf(_), Step::Key(_) | Step::Index(_)) => None,
        }
    }

    /// Inserts a value at a dotted path, and the tables on the way.
    pub(super) fn insert(&mut self, keys: &str, node: Self) {
        let Value::Table(table) = &mut self.value else { return };
        match keys.split_once('.') {
            Some((first, rest)) => {
                table.entry(first.to_owned()).or_insert_with(Self::empty).insert(rest, node)
            }
            None => {
                table.insert(keys.to_owned(), node);
            }
        }
    }

    /// Merges another tree into this one: tables are merged, any other value is replaced.
    pub(super) fn overlay(&mut self, upper: Self) {
        match (&mut self.value, upper.value) {
            (Value::Table(lower), Value::Table(table)) => {
                // The origin of a table that was written is its line, even if most of its values are defaults.
                if upper.origin != Origin::Default {
                    self.origin = upper.origin;
                }
                for (key, node) in table {
                    match lower.get_mut(&key) {
                        Some(below) => below.overlay(node),
                        None => {
                            lower.insert(key, node);
                        }
                    }
                }
            }
            (_, value) => *self = Self { value, origin: upper.origin },
        }
    }

    /// The origin of a value, or of the nearest table around it.
    pub(super) fn origin_of(&self, path: &Path) -> Origin {
        let found =
            (0..=path.0.len()).rev().find_map(|length| self.get(&Path(path.0.get(..length)?.to_vec())));
        found.map_or(Origin::Default, |node| node.origin.clone())
    }
}
