//! Flags and variables as trees, which override the file.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value as Toml;
use toml::de::DeValue;

use super::keys::{Form, Key, keys};
use super::problem::{Origin, Problem};
use super::secret_source::HOW_TO_GIVE;
use super::tree::{Node, Value};
use super::unknown_keys::{LATER, nearest};

/// Variables that set no key: the file's name, and the folder of the project's own test vectors.
const OTHER_VARIABLES: [&str; 2] = [CONFIG_VARIABLE, "ONCEWARD_VECTORS"];
/// The file's path, unless a flag has one.
pub(super) const CONFIG_VARIABLE: &str = "ONCEWARD_CONFIG";
const PREFIX: &str = "ONCEWARD_";

/// The tree of the command line's flags. A flag may be given more than once where the key is a list.
pub(super) fn from_flags(flags: &[(String, Vec<String>)], problems: &mut Vec<Problem>) -> Node {
    let mut tree = Node::empty();
    for (path, texts) in flags {
        let Some(key) = keys().iter().find(|key| key.path == *path) else { continue };
        let origin = Origin::Flag(key.flag.clone());
        match value(key, texts) {
            Ok(value) => tree.insert(path, Node::from_toml(value, &origin)),
            Err(text) => problems.push(Problem { origin, text }),
        }
    }
    tree
}

/// The tree of the variables that begin with `ONCEWARD_`. Those in `secrets` hold secrets that the file or a flag refers to.
pub(super) fn from_variables(
    variables: &BTreeMap<String, String>,
    secrets: &BTreeSet<String>,
    problems: &mut Vec<Problem>,
) -> Node {
    let mut tree = Node::empty();
    for (name, text) in variables.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        if OTHER_VARIABLES.contains(&name.as_str()) || secrets.contains(name) || is_service_link(name, text) {
            continue;
        }
        let origin = Origin::Variable(name.clone());
        let Some(key) = keys().iter().find(|key| key.variable == *name) else {
            problems.push(Problem { origin, text: unknown_variable(name) });
            continue;
        };
        let value = match source_of_own_secret(key, text) {
            Some(source) => Ok(source),
            None => value(key, std::slice::from_ref(text)),
        };
        match value {
            Ok(value) => tree.insert(&key.path, Node::from_toml(value, &origin)),
            Err(text) => problems.push(Problem { origin, text }),
        }
    }
    tree
}

/// Adds the variables that a tree names as sources of secrets.
pub(super) fn secrets_named_in(node: &Node, names: &mut BTreeSet<String>) {
    match &node.value {
        Value::Table(table) => {
            if let (1, Some(Node { value: Value::Leaf(Toml::String(name)), .. })) =
                (table.len(), table.get("env"))
            {
                names.insert(name.clone());
            }
            table.values().for_each(|child| secrets_named_in(child, names));
        }
        Value::Array(items) => items.iter().for_each(|item| secrets_named_in(item, names)),
        Value::Leaf(_) => {}
    }
}

/// `ONCEWARD_SECRET` may hold the secret itself: then its source is that variable.
fn source_of_own_secret(key: &Key, text: &str) -> Option<Toml> {
    if key.path != "secret" || matches!(inline(text), Some(Toml::Table(_))) {
        return None;
    }
    let name = Toml::String(key.variable.clone());
    Some(Toml::Table([("env".to_owned(), name)].into_iter().collect()))
}

fn unknown_variable(name: &str) -> String {
    let later = LATER.iter().find(|(path, _)| name.strip_prefix(PREFIX) == Some(&path.to_uppercase()));
    if let Some((path, instead)) = later {
        return format!("`{path}` is not in this version yet: unset the variable; {instead}");
    }
    match nearest(name, keys().iter().map(|key| key.variable.as_str())) {
        Some(known) => format!("sets nothing: did you mean {known}? Otherwise unset it"),
        None => "sets nothing: unset it, or see `onceward serve --help` for what can be set".to_owned(),
    }
}

/// Kubernetes sets such variables in every pod for each service, and a service may be called `onceward`.
fn is_service_link(name: &str, text: &str) -> bool {
    let port =
        name.rsplit_once("_SERVICE_PORT").is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with('_'));
    let protocol =
        ["_TCP", "_UDP", "_SCTP"].iter().any(|word| name.contains(word)) && name.contains("_PORT_");
    let url =
        name.ends_with("_PORT") && ["tcp://", "udp://", "sctp://"].iter().any(|word| text.starts_with(word));
    name.ends_with("_SERVICE_HOST") || port || protocol || url
}

/// The value of a key from a flag or a variable. A value of a wrong type is reported later, with those of the file.
fn value(key: &Key, texts: &[String]) -> Result<Toml, String> {
    let last = texts.last().map(String::as_str).unwrap_or_default();
    let name = &key.path;
    if texts.len() > 1 && !matches!(key.form, Form::Texts | Form::Numbers) {
        return Err(format!("`{name}` is one value, but was given {} times: give it once", texts.len()));
    }
    match key.form {
        Form::Text => Ok(Toml::String(last.to_owned())),
        Form::Number => Ok(number(last)),
        Form::Switch => Ok(last.parse().map_or_else(|_| Toml::String(last.to_owned()), Toml::Boolean)),
        Form::Texts | Form::Numbers => {
            if let ([text], Some(Toml::Array(items))) = (texts, inline(last))
                && text.trim_start().starts_with('[')
            {
                return Ok(Toml::Array(items));
            }
            let items =
                texts.iter().flat_map(|text| text.split(',')).map(str::trim).filter(|text| !text.is_empty());
            let item = |text: &str| {
                if key.form == Form::Numbers { number(text) } else { Toml::String(text.to_owned()) }
            };
            Ok(Toml::Array(items.map(item).collect()))
        }
        Form::Toml => match inline(last) {
            Some(value @ (Toml::Table(_) | Toml::Array(_))) => Ok(value),
            Some(_) | None if name == "secret" => Err(format!("`{name}` {HOW_TO_GIVE}")),
            Some(_) | None => Err(format!("`{name}` must be given as TOML, such as {}", example(name))),
        },
    }
}

fn number(text: &str) -> Toml {
    text.parse().map_or_else(|_| Toml::String(text.to_owned()), Toml::Integer)
}

fn example(path: &str) -> &'static str {
    match path {
        "routes" => "[{ match = \"POST /payments\", key = \"required\" }]",
        "admin.tokens" => "[{ name = \"ada\", role = \"operator\", token = { env = \"ADA_TOKEN\" } }]",
        _ => "{ headers = [\"X-Version\"], ignore = [\"/sent_at\"] }",
    }
}

fn inline(text: &str) -> Option<Toml> {
    DeValue::parse(text).ok()?;
    format!("value = {text}").parse::<toml::Table>().ok()?.remove("value")
}
