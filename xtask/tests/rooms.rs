//! The rooms of ARCHITECTURE.md, held against every path that the source names.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod rooms {
    pub mod source;
    pub mod table;
}

use std::collections::BTreeSet;
use std::fs;

use rooms::source::{Source, root};
use rooms::table::ROOMS;

/// The first cells of the table under "The rooms".
fn rows() -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = page.split("## The rooms").nth(1).unwrap();
    table
        .lines()
        .skip_while(|line| !line.starts_with("| ---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('|').nth(1).unwrap().trim().to_owned())
        .collect()
}

#[test]
fn every_row_of_the_map_has_a_rule_and_every_rule_a_row() {
    let ruled: BTreeSet<_> = ROOMS.iter().map(|room| room.row.to_owned()).collect();
    assert_eq!(rows(), ruled);
}

#[test]
fn every_source_file_lies_in_exactly_one_room() {
    let source = Source::read();
    for path in source.files() {
        let rooms: Vec<_> = ROOMS.iter().filter(|room| room.has(path)).map(|room| room.row).collect();
        assert_eq!(rooms.len(), 1, "{path} lies in {rooms:?}: give it one row of ARCHITECTURE.md");
    }
}

#[test]
fn no_room_names_what_it_must_not_know() {
    let source = Source::read();
    let mut broken = Vec::new();
    for room in ROOMS {
        let named: Vec<_> = source.paths().filter(|(file, _)| room.has(file)).collect();
        assert!(!named.is_empty(), "no file is read for {}", room.row);
        broken.extend(
            named
                .into_iter()
                .filter(|(_, path)| room.forbids(path))
                .map(|(file, path)| format!("{file} names {path}, which {} must not know", room.row)),
        );
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn paths_are_read_through_groups_aliases_modules_and_the_library_root() {
    let source = Source::of(
        "crates/onceward-gateway/src/front/listen.rs",
        "use super::{guard::Guard, tls::{self as keys, *}};\n\
         use onceward::Engine;\n\
         mod inner { use super::super::other::Thing; fn f() { crate::proxy::send::<crate::admin::Role>(); } }\n\
         #[cfg(test)] mod tests { use crate::config::Secret; }\n",
    );
    let found: BTreeSet<_> = source.paths().map(|(_, path)| path.to_owned()).collect();
    let expected = [
        "onceward::engine::Engine",
        "onceward_gateway::admin::Role",
        "onceward_gateway::front::guard::Guard",
        "onceward_gateway::front::other::Thing",
        "onceward_gateway::front::tls",
        "onceward_gateway::front::tls::*",
        "onceward_gateway::proxy::send",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
}
