//! The table of keys, generated from the types, so that each key has a flag and a variable.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::document::{Admin, Document, Limits, Logs, Tls, Token, Traces, UpstreamTls};
use super::names::names_of;
use super::rules::{Defaults, Route};

/// A key of the configuration, with its flag and its variable.
#[derive(Debug, Clone)]
pub struct Key {
    /// Its path: `admin.listen`.
    pub path: String,
    /// Without its dashes: `admin-listen`. Keys of `[defaults]` have no prefix.
    pub flag: String,
    /// `ONCEWARD_ADMIN_LISTEN`.
    pub variable: String,
    /// What it means.
    pub meaning: String,
    /// Its default as TOML; `None` where it has none.
    pub default: Option<String>,
    /// The words to choose from; empty where any value is allowed.
    pub choices: Vec<String>,
    /// How a flag or a variable writes it.
    pub form: Form,
    /// Stands for its value in a help text.
    pub placeholder: String,
}

/// How a flag or a variable writes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As it is.
    Text,
    /// A whole number.
    Number,
    /// `true` or `false`; a flag alone means `true`.
    Switch,
    /// Separated by commas, or given more than once.
    Texts,
    /// Whole numbers, separated by commas, or given more than once.
    Numbers,
    /// As TOML: a table, or an array of tables.
    Toml,
}

/// Every key, in the order of the types.
pub fn keys() -> &'static [Key] {
    &KEYS
}

static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    TABLES.iter().flat_map(|(table, fields)| fields().iter().filter_map(|field| key(table, field))).collect()
});

type Fields = fn() -> &'static [&'static str];

/// The tables that have no list around them. A test compares their keys with the schema's.
const TABLES: [(&str, Fields); 8] = [
    ("", names_of::<Document>),
    ("admin", names_of::<Admin>),
    ("defaults", names_of::<Defaults>),
    ("tls", names_of::<Tls>),
    ("upstream_tls", names_of::<UpstreamTls>),
    ("limits", names_of::<Limits>),
    ("logs", names_of::<Logs>),
    ("traces", names_of::<Traces>),
];

/// The keys of a table inside a list, in order.
pub(super) fn item_fields(path: &str) -> &'static [&'static str] {
    match path {
        "routes" => names_of::<Route>(),
        "admin.tokens" => names_of::<Token>(),
        _ => &[],
    }
}

fn key(table: &str, field: &str) -> Option<Key> {
    if TABLES.iter().any(|(name, _)| table.is_empty() && *name == field) {
        return None;
    }
    let path = if table.is_empty() { field.to_owned() } else { format!("{table}.{field}") };
    let schema = schema_of(&path)?;
    let name = path.strip_prefix("defaults.").unwrap_or(&path).replace('.', "_");
    let default = toml::Value::try_from(Document::default()).ok();
    let default = path.split('.').try_fold(default?, |value, key| value.get(key).cloned());
    Some(Key {
        flag: name.replace('_', "-"),
        variable: format!("ONCEWARD_{}", name.to_uppercase()),
        meaning: schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned(),
        default: default.map(|value| value.to_string()),
        choices: choices(schema),
        form: form(schema),
        placeholder: placeholder(&path, schema),
        path,
    })
}

/// The JSON Schema without references, for look-ups.
pub(super) static INLINED: LazyLock<Value> = LazyLock::new(|| {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Document>().to_value()
});

/// The JSON Schema, for editors.
pub fn schema() -> Value {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Document>().to_value()
}

/// The schema of a key; the path leaves out the indices of lists.
pub(super) fn schema_of(path: &str) -> Option<&'static Value> {
    path.split('.').try_fold(&*INLINED, |schema, key| property(schema, key))
}

/// The schema of a key of a table, of the items of a list, or of one of several alternatives.
pub(super) fn property<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    let direct = schema.get("properties").and_then(|properties| properties.get(key));
    let item = || schema.get("items").and_then(|items| property(items, key));
    direct.or_else(item).or_else(|| alternatives(schema).find_map(|schema| property(schema, key)))
}

/// The names of a table's keys.
pub(super) fn property_names(schema: &Value) -> Vec<&str> {
    let direct = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let mut names: Vec<&str> = direct.map(|(name, _)| name.as_str()).collect();
    names.extend(schema.get("items").map(property_names).unwrap_or_default());
    names.extend(alternatives(schema).flat_map(property_names));
    names
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf"].into_iter().filter_map(|word| schema.get(word)?.as_array()).flatten()
}

/// The words to choose from.
pub(super) fn choices(schema: &Value) -> Vec<String> {
    let own = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    let single = schema.get("const").into_iter();
    let mut words: Vec<String> = own.chain(single).filter_map(Value::as_str).map(str::to_owned).collect();
    words.extend(alternatives(schema).flat_map(choices));
    words
}

fn has_type(schema: &Value, name: &str) -> bool {
    let own = match schema.get("type") {
        Some(Value::String(text)) => text == name,
        Some(Value::Array(types)) => types.iter().any(|text| text == name),
        Some(_) | None => false,
    };
    own || alternatives(schema).any(|schema| has_type(schema, name))
}

/// How a flag or a variable writes a value of this schema.
pub(super) fn form(schema: &Value) -> Form {
    let items = schema.get("items");
    match items {
        Some(items) if has_type(items, "object") => Form::Toml,
        Some(items) if has_type(items, "integer") => Form::Numbers,
        Some(_) => Form::Texts,
        None if has_type(schema, "object") => Form::Toml,
        None if has_type(schema, "integer") && !has_type(schema, "string") => Form::Number,
        None if has_type(schema, "boolean") => Form::Switch,
        None => Form::Text,
    }
}

fn placeholder(path: &str, schema: &Value) -> String {
    let example =
        || Some(schema.get("examples")?.as_array()?.iter().filter_map(Value::as_str).collect::<Vec<_>>());
    let words = choices(schema);
    let word = match (form(schema), path) {
        (Form::Text, _) if !words.is_empty() => return words.join("|"),
        (Form::Text, "listen" | "admin.listen") => "ADDRESS",
        (Form::Text, "upstream" | "store" | "cache" | "public_url" | "traces.otlp") => "URL",
        (Form::Text, "tls.certificate" | "tls.key" | "upstream_tls.ca") => "FILE",
        (Form::Text, "logs.level") => "LEVEL",
        (Form::Text, "namespace") => "NAME",
        (Form::Text, _) if example().is_some_and(|texts| texts.contains(&"30s")) => "TIME",
        (Form::Text, _) => "SIZE",
        (Form::Number, _) => "NUMBER",
        (Form::Switch, _) => "true|false",
        (Form::Texts, _) => "LIST",
        (Form::Numbers, _) => "STATUSES",
        (Form::Toml, _) => "TOML",
    };
    word.to_owned()
}
