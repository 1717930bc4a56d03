//! Properties of the canonical form, over documents that are made up and then written in many ways.

use proptest::prelude::*;

use super::{
    Numbers, canonicalize, push_escaped,
    tests::{DEPTH, exact, without},
};

/// A document, as a tree that can be written in many ways.
#[derive(Debug, Clone)]
enum Tree {
    Leaf(String),
    Number(u64, i8),
    Text(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

fn tree() -> impl Strategy<Value = Tree> {
    let text = "[a-c\"\\\\\u{1}\n/é\u{e000}😀]{0,5}";
    let leaf = prop_oneof![
        prop_oneof!["null", "true", "false"].prop_map(Tree::Leaf),
        (0u64..1000, -9i8..9).prop_map(|(digits, exponent)| Tree::Number(digits, exponent)),
        text.prop_map(Tree::Text),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Tree::Array),
            prop::collection::btree_map(text, inner, 0..6)
                .prop_map(|members| Tree::Object(members.into_iter().collect())),
        ]
    })
}

/// Writes a tree as the numbers in `choices` say: spaces, order, escapes and the shape of numbers.
struct Writer<'a> {
    choices: std::iter::Cycle<std::slice::Iter<'a, u8>>,
    out: String,
}

impl Writer<'_> {
    fn write(tree: &Tree, choices: &[u8]) -> String {
        let mut writer = Writer { choices: choices.iter().cycle(), out: String::new() };
        writer.tree(tree);
        writer.out
    }

    fn choose(&mut self, of: usize) -> usize {
        usize::from(*self.choices.next().unwrap()) % of
    }

    fn space(&mut self) {
        let space = ["", "", " ", "\r\n\t"][self.choose(4)];
        self.out.push_str(space);
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            if self.choose(2) == 0 {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    self.out.push_str(&format!("\\u{unit:04x}"));
                }
            } else {
                let mut escaped = Vec::new();
                push_escaped(&mut escaped, character);
                self.out.push_str(str::from_utf8(&escaped).unwrap());
            }
        }
        self.out.push('"');
    }

    fn tree(&mut self, tree: &Tree) {
        self.space();
        match tree {
            Tree::Leaf(leaf) => self.out.push_str(leaf),
            Tree::Text(text) => self.text(text),
            Tree::Number(digits, exponent) => {
                let moved = self.choose(4);
                let zeros = "0".repeat(moved);
                let below = i64::from(*exponent) - i64::try_from(moved).unwrap();
                let text = match self.choose(3) {
                    0 if *digits != 0 => format!("{digits}{zeros}e{below}"),
                    1 => format!("{digits}.0{zeros}E+{exponent}").replace("+-", "-"),
                    _ => format!("{digits}e{exponent}"),
                };
                self.out.push_str(&text);
            }
            Tree::Array(elements) => self.list('[', elements.iter().map(|tree| (None, tree)).collect(), ']'),
            Tree::Object(members) => {
                let mut members: Vec<_> =
                    members.iter().map(|(name, tree)| (Some(name.as_str()), tree)).collect();
                for last in (1..members.len()).rev() {
                    let other = self.choose(last + 1);
                    members.swap(last, other);
                }
                self.list('{', members, '}');
            }
        }
        self.space();
    }

    fn list(&mut self, open: char, items: Vec<(Option<&str>, &Tree)>, close: char) {
        self.out.push(open);
        self.space();
        for (index, (name, tree)) in items.into_iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            if let Some(name) = name {
                self.space();
                self.text(name);
                self.space();
                self.out.push(':');
            }
            self.tree(tree);
        }
        self.out.push(close);
    }
}

/// The same tree with its first leaf changed to something else, or an element more where there is none.
fn changed(tree: &Tree) -> Tree {
    match tree.clone() {
        Tree::Leaf(leaf) => Tree::Leaf(if leaf == "null" { "true" } else { "null" }.to_owned()),
        Tree::Number(digits, exponent) => Tree::Number(digits + 1, exponent),
        Tree::Text(text) => Tree::Text(text + "x"),
        Tree::Array(mut elements) => {
            match elements.first_mut() {
                Some(first) => *first = changed(first),
                None => elements.push(Tree::Leaf("null".to_owned())),
            }
            Tree::Array(elements)
        }
        Tree::Object(mut members) => {
            match members.first_mut() {
                Some((name, Tree::Leaf(_))) => name.push('x'),
                Some((_, tree)) => *tree = changed(tree),
                None => members.push(("x".to_owned(), Tree::Leaf("null".to_owned()))),
            }
            Tree::Object(members)
        }
    }
}

/// Every place in the tree, as a pointer.
fn places(tree: &Tree, here: &str, found: &mut Vec<String>) {
    for (name, child) in children(tree) {
        let place = format!("{here}/{name}");
        places(child, &place, found);
        found.push(place);
    }
}

fn children(tree: &Tree) -> Vec<(String, &Tree)> {
    match tree {
        Tree::Leaf(_) | Tree::Number(..) | Tree::Text(_) => Vec::new(),
        Tree::Array(elements) => {
            elements.iter().enumerate().map(|(index, tree)| (index.to_string(), tree)).collect()
        }
        Tree::Object(members) => {
            let token = |name: &str| name.replace('~', "~0").replace('/', "~1");
            members.iter().map(|(name, tree)| (token(name), tree)).collect()
        }
    }
}

/// The tree without these places.
fn pruned(tree: &Tree, here: &str, without: &[&str]) -> Tree {
    let mut kept = children(tree).into_iter().map(|(name, child)| {
        let place = format!("{here}/{name}");
        (!without.contains(&place.as_str())).then(|| pruned(child, &place, without))
    });
    match tree {
        Tree::Leaf(_) | Tree::Number(..) | Tree::Text(_) => tree.clone(),
        Tree::Array(_) => Tree::Array(kept.flatten().collect()),
        Tree::Object(members) => Tree::Object(
            members
                .iter()
                .filter_map(|(name, _)| kept.next().flatten().map(|tree| (name.clone(), tree)))
                .collect(),
        ),
    }
}

proptest! {
    #[test]
    fn ignoring_a_place_is_the_same_as_not_sending_it(
        tree in tree(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        choices in prop::collection::vec(any::<u8>(), 1..50),
    ) {
        let mut all = vec!["/nowhere".to_owned()];
        places(&tree, "", &mut all);
        let pointers: Vec<_> = picks.iter().map(|pick| pick.get(&all).as_str()).collect();
        let form = without(&Writer::write(&tree, &choices), &pointers).unwrap();
        prop_assert_eq!(form, exact(&Writer::write(&pruned(&tree, "", &pointers), &choices)).unwrap());
    }

    #[test]
    fn however_a_document_is_written_its_form_is_the_same(
        tree in tree(),
        one in prop::collection::vec(any::<u8>(), 1..50),
        other in prop::collection::vec(any::<u8>(), 1..50),
    ) {
        prop_assert_eq!(exact(&Writer::write(&tree, &one)).unwrap(), exact(&Writer::write(&tree, &other)).unwrap());
    }

    #[test]
    fn a_single_change_of_meaning_changes_the_form(
        tree in tree(),
        one in prop::collection::vec(any::<u8>(), 1..50),
        other in prop::collection::vec(any::<u8>(), 1..50),
    ) {
        let changed = changed(&tree);
        prop_assert_ne!(exact(&Writer::write(&tree, &one)).unwrap(), exact(&Writer::write(&changed, &other)).unwrap());
    }

    #[test]
    fn the_form_reads_as_the_document_does(tree in tree(), choices in prop::collection::vec(any::<u8>(), 1..50)) {
        let text = Writer::write(&tree, &choices);
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let double = canonicalize(text.as_bytes(), Numbers::Rfc8785, DEPTH).unwrap();
        let again = canonicalize(serde_json::to_string(&read(&text)).unwrap().as_bytes(), Numbers::Rfc8785, DEPTH);
        prop_assert_eq!(again.unwrap(), double);
    }

    #[test]
    fn arbitrary_text_never_panics(text in "[\\[\\]{}\",:\\\\u0-9eE+.a-f\u{e9} -]{0,60}") {
        let _ = exact(&text);
        let _ = without(&text, &["/0", "/a/0", "//", "/a"]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        let _ = canonicalize(&bytes, Numbers::Exact, DEPTH);
        let _ = canonicalize(&bytes, Numbers::Rfc8785, DEPTH);
    }
}
