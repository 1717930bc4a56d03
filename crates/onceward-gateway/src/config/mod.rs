//! The configuration: defaults, below a file, below variables, below flags.
//!
//! 1. Each of the four is read into a tree in which every value knows where it came from.
//! 2. The trees are merged. Unknown keys are removed and reported.
//! 3. The tree is deserialized into typed values, and every value of a wrong type is reported.
//! 4. The values are validated together and become [`Settings`].
//!
//! Every error names the file and line, the flag or the variable, and what to write instead.

mod advice;
mod choice;
mod deserialize;
mod document;
mod file;
mod keys;
mod names;
mod overrides;
mod pattern;
mod problem;
mod reconciling;
mod routes;
mod rules;
mod secret_source;
mod show;
mod text_value;
mod tree;
mod unknown_keys;
mod urls;
mod validate;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use onceward::engine::IdentityChange;

pub use self::keys::{Form, Key, keys, schema};
pub use self::problem::{ConfigErrors, Origin, Problem};
pub use self::show::Shown;

use self::document::Document;
use self::tree::{Node, Path, Value};
use crate::settings::{Settings, StoreUrl};

/// The keys of later releases, with what to do instead.
pub(crate) fn later() -> &'static [(&'static str, &'static str)] {
    &unknown_keys::LATER
}

/// The sources of a configuration. They can be loaded again when the file has changed.
#[derive(Clone)]
pub struct Sources {
    file: Option<PathBuf>,
    variables: BTreeMap<String, String>,
    unreadable: Vec<String>,
    flags: Vec<(String, Vec<String>)>,
    identity_change: IdentityChange,
}

/// A configuration that was read and checked.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings to run with.
    pub settings: Settings,
    /// Warnings about settings that are allowed and may still be mistakes.
    pub advice: Vec<Problem>,
    /// The sources, to reload from.
    pub sources: Sources,
    /// What happens when the store was made under another namespace, scope or secret.
    pub identity_change: IdentityChange,
}

/// The merged sources, before they are validated together.
struct Merged {
    tree: Node,
    document: Document,
    problems: Vec<Problem>,
}

impl Sources {
    /// Only these variables. A value that is not UTF-8 is an error only if a key or a secret is read from it.
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut sources = Self {
            file: None,
            variables: BTreeMap::new(),
            unreadable: Vec::new(),
            flags: Vec::new(),
            identity_change: IdentityChange::Refuse,
        };
        for (name, value) in variables {
            match (name.into_string(), value.into_string()) {
                (Ok(name), Ok(value)) => {
                    sources.variables.insert(name, value);
                }
                (Ok(name), Err(_)) => sources.unreadable.push(name),
                // No variable of the gateway has a name that is not UTF-8.
                (Err(_), _) => {}
            }
        }
        sources.file = sources.variables.get(overrides::CONFIG_VARIABLE).map(PathBuf::from);
        sources
    }

    /// Sets the file, in place of the one that a variable names.
    pub fn with_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Adds the values of a flag for the key at a path, one for each time that the flag was given.
    pub fn with_flag(mut self, path: &str, values: Vec<String>) -> Self {
        self.flags.push((path.to_owned(), values));
        self
    }

    /// Sets what happens when the store was made under another namespace, scope or secret.
    pub fn with_identity_change(mut self, change: IdentityChange) -> Self {
        self.identity_change = change;
        self
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&std::path::Path> {
        self.file.as_deref()
    }

    /// Reads and validates everything.
    pub fn load(&self) -> Result<Loaded, ConfigErrors> {
        let (merged, settings) = self.checked()?;
        let advice = advice::about(&merged.document, &merged.tree);
        Ok(Loaded { settings, advice, sources: self.clone(), identity_change: self.identity_change })
    }

    /// The effective values with their origins, if they are valid.
    pub fn show(&self) -> Result<Shown, ConfigErrors> {
        let (mut merged, _) = self.checked()?;
        // The tree has these as they were written, perhaps with a password; their `Display` leaves it out.
        let store = Some(merged.document.store.to_string());
        let cache = merged.document.cache.as_ref().map(ToString::to_string);
        for (key, text) in [("store", store), ("cache", cache)] {
            let Some(text) = text else { continue };
            let origin = merged.tree.origin_of(&Path::of(key));
            merged.tree.insert(key, Node::from_toml(toml::Value::String(text), &origin));
        }
        Ok(Shown::new(&merged.tree))
    }

    /// Only the address of the admin listener, even if other values are wrong.
    pub fn admin_listen(&self) -> Result<SocketAddr, ConfigErrors> {
        Ok(deserialize::one::<values::Address>(&self.merged()?.tree, "admin.listen")?.0)
    }

    /// Only the store, even if other values are wrong.
    pub fn store(&self) -> Result<StoreUrl, ConfigErrors> {
        Ok(deserialize::one::<urls::Store>(&self.merged()?.tree, "store")?.0)
    }

    fn checked(&self) -> Result<(Merged, Settings), ConfigErrors> {
        let mut merged = self.merged()?;
        ConfigErrors::unless_empty(std::mem::take(&mut merged.problems))?;
        let settings = validate::settings(&merged.document, &merged.tree, &self.variables)?;
        Ok((merged, settings))
    }

    fn merged(&self) -> Result<Merged, ConfigErrors> {
        let mut problems = Vec::new();
        let mut tree = defaults()?;
        let mut secrets = BTreeSet::new();
        if let Some(path) = &self.file {
            let file = file::read(path)?;
            overrides::secrets_named_in(&file, &mut secrets);
            tree.overlay(file);
        }
        let flags = overrides::from_flags(&self.flags, &mut problems);
        overrides::secrets_named_in(&flags, &mut secrets);
        tree.overlay(overrides::from_variables(&self.variables, &secrets, &mut problems));
        tree.overlay(flags);
        for name in
            self.unreadable.iter().filter(|name| name.starts_with("ONCEWARD_") || secrets.contains(*name))
        {
            let origin = Origin::Variable(name.clone());
            problems.push(Problem { origin, text: "is not UTF-8: set it to a text".to_owned() });
        }
        problems.extend(unknown_keys::take_unknown(&mut tree));
        let (document, wrong) = deserialize::document(&tree);
        problems.extend(wrong);
        // A scope of a wrong type was reported already.
        let scope = tree.get(&Path::of("scope"));
        if scope.is_none_or(|node| matches!(&node.value, Value::Array(parts) if parts.is_empty())) {
            problems.push(Problem {
                origin: tree.origin_of(&Path::of("scope")),
                text: validate::NO_SCOPE.to_owned(),
            });
        }
        Ok(Merged { tree, document, problems })
    }
}

fn defaults() -> Result<Node, ConfigErrors> {
    match toml::Value::try_from(Document::default()) {
        Ok(value) => Ok(Node::from_toml(value, &Origin::Default)),
        Err(error) => Err(Problem { origin: Origin::Default, text: format!("the defaults: {error}") }.into()),
    }
}

/// Without the variables, which hold secrets.
impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").field("file", &self.file).finish_non_exhaustive()
    }
}
