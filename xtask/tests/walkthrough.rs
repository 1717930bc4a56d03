//! `docs/walkthrough.md`, held against the source.
#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A request must be readable: more functions than these and its way has grown too long.
const STEPS_MAX: usize = 80;

/// A row of the tables: its number, file and function.
fn steps() -> Vec<(usize, String, String)> {
    let page = fs::read_to_string(root().join("docs/walkthrough.md")).unwrap();
    let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
    page.lines()
        .map(cells)
        .filter_map(|cells| {
            let [_, number, file, function, said, _] = cells.as_slice() else { return None };
            let number = number.parse().ok()?;
            assert!(said.ends_with('.') && said.len() > 10, "step {number} says nothing");
            Some((number, file.trim_matches('`').to_owned(), function.trim_matches('`').to_owned()))
        })
        .collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn every_step_of_the_walkthrough_is_a_function_in_its_file() {
    let mut files = BTreeMap::new();
    for (number, file, function) in steps() {
        let source = files.entry(file.clone()).or_insert_with(|| {
            fs::read_to_string(root().join(&file))
                .unwrap_or_else(|error| panic!("step {number}: {file}: {error}"))
        });
        let found =
            [format!("fn {function}("), format!("fn {function}<")].iter().any(|head| source.contains(head));
        assert!(found, "step {number}: {file} has no function {function}");
    }
}

#[test]
fn the_walkthrough_is_numbered_from_one_and_has_at_most_eighty_steps() {
    let numbers: Vec<_> = steps().into_iter().map(|(number, ..)| number).collect();
    assert!(numbers.len() > 40, "the tables are not read: {numbers:?}");
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
    assert!(numbers.len() <= STEPS_MAX, "{} steps", numbers.len());
}
