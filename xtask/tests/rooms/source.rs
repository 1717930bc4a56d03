//! Every path that the source names, with the module that it leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemMod, ItemUse, UseTree};

/// The source of all crates, without tests.
pub struct Source {
    /// Files, with the paths that they name from the root of a crate.
    named: BTreeMap<String, BTreeSet<String>>,
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

impl Source {
    /// All of it.
    pub fn read() -> Self {
        let files: Vec<_> =
            files().into_iter().map(|(path, text)| (path, syn::parse_file(&text).unwrap())).collect();
        let tests: BTreeSet<_> = files.iter().flat_map(|(path, file)| test_modules(path, file)).collect();
        let exported = exported();
        let sources = files.iter().filter(|(path, _)| !tests.iter().any(|module| is_within(module, path)));
        Self { named: sources.map(|(path, file)| (path.clone(), named(path, file, &exported))).collect() }
    }

    /// One file only.
    pub fn of(path: &str, text: &str) -> Self {
        Self { named: [(path.to_owned(), named(path, &syn::parse_file(text).unwrap(), &exported()))].into() }
    }

    /// The files, by their paths from the workspace's root.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// Each file with each path that it names.
    pub fn paths(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named
            .iter()
            .flat_map(|(file, paths)| paths.iter().map(move |path| (file.as_str(), path.as_str())))
    }
}

fn files() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> =
        crates.chain([root().join("xtask")]).map(|folder| folder.join("src")).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 200, "only {} files were found", found.len());
    found
}

/// The crate's name and the modules that lead to a file.
fn module_of(path: &str) -> Vec<String> {
    let path = path.strip_prefix("crates/").unwrap_or(path).strip_suffix(".rs").unwrap();
    let (krate, file) = path.split_once("/src/").unwrap();
    let modules = file.split('/').filter(|name| !matches!(*name, "mod" | "lib" | "main"));
    std::iter::once(krate.replace('-', "_")).chain(modules.map(str::to_owned)).collect()
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

fn modules(file: &File) -> impl Iterator<Item = &ItemMod> {
    file.items.iter().filter_map(|item| if let Item::Mod(module) = item { Some(module) } else { None })
}

/// The modules that a file declares for tests only.
fn test_modules(path: &str, file: &File) -> Vec<Vec<String>> {
    let declared = modules(file).filter(|module| is_test(&module.attrs) && module.content.is_none());
    let declared = declared.map(|module| module.ident.to_string());
    declared.map(|name| module_of(path).into_iter().chain([name]).collect()).collect()
}

fn is_within(module: &[String], path: &str) -> bool {
    module_of(path).starts_with(module)
}

/// What the root of the library exports, with the module that it comes from.
fn exported() -> BTreeMap<String, String> {
    let text = fs::read_to_string(root().join("crates/onceward/src/lib.rs")).unwrap();
    let file = syn::parse_file(&text).unwrap();
    let paths = named("crates/onceward/src/lib.rs", &file, &BTreeMap::new());
    let origin =
        |path: String| path.rsplit("::").next().map(|name| (format!("onceward::{name}"), path.clone()));
    paths.into_iter().filter(|path| path.matches("::").count() > 1).filter_map(origin).collect()
}

fn named(path: &str, file: &File, exported: &BTreeMap<String, String>) -> BTreeSet<String> {
    let declared = modules(file).map(|module| module.ident.to_string());
    let mut reader =
        Reader { module: module_of(path), declared: declared.collect(), exported, named: BTreeSet::new() };
    reader.visit_file(file);
    reader.named
}

struct Reader<'a> {
    module: Vec<String>,
    /// The modules that this file declares: a path may begin with one.
    declared: BTreeSet<String>,
    exported: &'a BTreeMap<String, String>,
    named: BTreeSet<String>,
}

impl Reader<'_> {
    /// Notes a path, as it reads from the root of its crate. A name of this module alone leads nowhere else.
    fn note(&mut self, segments: &[String]) {
        let mut base: Vec<String> = match segments.first().map(String::as_str) {
            Some("crate") => self.module[..1].to_vec(),
            Some("self" | "super") => self.module.clone(),
            Some(first) if self.declared.contains(first) => self.module.clone(),
            Some(_) => Vec::new(),
            None => return,
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => drop(base.pop()),
                other => base.push(other.to_owned()),
            }
        }
        let path = base.join("::");
        let origin = self.exported.iter().find(|(name, _)| is_at(name, &path));
        let path = origin.map_or_else(|| path.clone(), |(name, origin)| path.replacen(name, origin, 1));
        self.named.insert(path);
    }

    fn tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &dyn ToString| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.note(&with(&name.ident)),
            UseTree::Rename(rename) => self.note(&with(&rename.ident)),
            UseTree::Glob(_) => self.note(&with(&"*")),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            self.module.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            // Others begin with a type, or with a name that a `use` has brought.
            let known = [
                "crate",
                "super",
                "self",
                "onceward",
                "onceward_postgres",
                "onceward_redis",
                "onceward_sqlite",
                "std",
                "tokio",
                "hyper",
                "http",
            ];
            if known.contains(&segments[0].as_str()) || self.declared.contains(&segments[0]) {
                self.note(&segments);
            }
        }
        visit::visit_path(self, path);
    }
}

/// Whether a path is this place, or lies within it.
pub fn is_at(place: &str, path: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}
