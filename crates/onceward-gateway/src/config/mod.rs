//! The configuration: defaults, below a file, below variables, below flags.
//!
//! 1. Each of the four is read into a tree in which every value knows where it came from.
//! 2. The trees are laid over each other. Keys that nobody knows are taken out and told about.
//! 3. The tree is read into typed values, and every value that does not fit is told about.
//! 4. What was read is checked as a whole and becomes [`Settings`].
//!
//! What is wrong is told with file and line, flag or variable, and what to write instead.

mod advice;
mod document;
mod file;
mod given;
mod keys;
mod pattern;
mod problem;
mod read;
mod resolve;
mod routes;
mod rules;
mod secret;
mod show;
mod text;
mod tree;
mod unknown;
mod urls;
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
    &unknown::LATER
}

/// Where a configuration is read from. It can be read again, when the file has changed.
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
    /// What to go by.
    pub settings: Settings,
    /// What is allowed and may still be a mistake.
    pub advice: Vec<Problem>,
    /// Where it came from, to be read again.
    pub sources: Sources,
    /// What happens when the store was made under another namespace, scope or secret.
    pub identity_change: IdentityChange,
}

/// What the sources say together, before it is checked as a whole.
struct Merged {
    tree: Node,
    document: Document,
    problems: Vec<Problem>,
}

impl Sources {
    /// Nothing but these variables; values that are no text count only if a key or a secret is looked for in them.
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
                // A name that is no text can be none of ours.
                (Err(_), _) => {}
            }
        }
        sources.file = sources.variables.get(given::CONFIG_VARIABLE).map(PathBuf::from);
        sources
    }

    /// Names the file, whatever the variable says.
    pub fn with_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Adds what a flag says about the key at a path, as often as it was given.
    pub fn with_flag(mut self, path: &str, values: Vec<String>) -> Self {
        self.flags.push((path.to_owned(), values));
        self
    }

    /// Says what happens when the store was made under another namespace, scope or secret.
    pub fn with_identity_change(mut self, change: IdentityChange) -> Self {
        self.identity_change = change;
        self
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&std::path::Path> {
        self.file.as_deref()
    }

    /// Reads and checks everything.
    pub fn load(&self) -> Result<Loaded, ConfigErrors> {
        let (merged, settings) = self.checked()?;
        let advice = advice::about(&merged.document, &merged.tree);
        Ok(Loaded { settings, advice, sources: self.clone(), identity_change: self.identity_change })
    }

    /// The effective values with their origins, if nothing is wrong with them.
    pub fn show(&self) -> Result<Shown, ConfigErrors> {
        let (mut merged, _) = self.checked()?;
        // These may have a password in them, which their own text leaves out.
        let store = Some(merged.document.store.to_string());
        let cache = merged.document.cache.as_ref().map(ToString::to_string);
        for (key, text) in [("store", store), ("cache", cache)] {
            let Some(text) = text else { continue };
            let origin = merged.tree.origin_of(&Path::of(key));
            merged.tree.insert(key, Node::from_toml(toml::Value::String(text), &origin));
        }
        Ok(Shown::new(&merged.tree))
    }

    /// Only the address of the admin listener, whatever else may be wrong.
    pub fn admin_listen(&self) -> Result<SocketAddr, ConfigErrors> {
        Ok(read::one::<values::Address>(&self.merged()?.tree, "admin.listen")?.0)
    }

    /// Only the store, whatever else may be wrong.
    pub fn store(&self) -> Result<StoreUrl, ConfigErrors> {
        Ok(read::one::<urls::Store>(&self.merged()?.tree, "store")?.0)
    }

    fn checked(&self) -> Result<(Merged, Settings), ConfigErrors> {
        let mut merged = self.merged()?;
        ConfigErrors::unless_empty(std::mem::take(&mut merged.problems))?;
        let settings = resolve::settings(&merged.document, &merged.tree, &self.variables)?;
        Ok((merged, settings))
    }

    fn merged(&self) -> Result<Merged, ConfigErrors> {
        let mut problems = Vec::new();
        let mut tree = defaults()?;
        let mut secrets = BTreeSet::new();
        if let Some(path) = &self.file {
            let file = file::read(path)?;
            given::secrets_named_in(&file, &mut secrets);
            tree.overlay(file);
        }
        let flags = given::from_flags(&self.flags, &mut problems);
        given::secrets_named_in(&flags, &mut secrets);
        tree.overlay(given::from_variables(&self.variables, &secrets, &mut problems));
        tree.overlay(flags);
        for name in
            self.unreadable.iter().filter(|name| name.starts_with("ONCEWARD_") || secrets.contains(*name))
        {
            let origin = Origin::Variable(name.clone());
            problems.push(Problem { origin, text: "is not UTF-8: set it to a text".to_owned() });
        }
        problems.extend(unknown::take_unknown(&mut tree));
        let (document, wrong) = read::document(&tree);
        problems.extend(wrong);
        // One that is wrong has been told about already.
        let scope = tree.get(&Path::of("scope"));
        if scope.is_none_or(|node| matches!(&node.value, Value::Array(parts) if parts.is_empty())) {
            problems.push(Problem {
                origin: tree.origin_of(&Path::of("scope")),
                text: resolve::NO_SCOPE.to_owned(),
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
