//! Public test data, read from the folder that `ONCEWARD_VECTORS` names. Where it is not set, each test says what it
//! did not check, and passes: the data belongs to others and is not kept here.
//!
//! | folder | from |
//! | --- | --- |
//! | `structured-fields` | httpwg/structured-field-tests |
//! | `json-canonicalization` | cyberphone/json-canonicalization (`testdata`) |
//! | `json-test-suite` | nst/JSONTestSuite |

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot read its vectors has failed")]

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use onceward::{
    Fingerprint, Key, Profile,
    fingerprint::{Comparison, Numbers, Parts, canonicalize},
    key::{KeyError, Syntax},
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

/// The files of a folder of vectors, in order; none, after saying so, if the variable is not set.
fn vectors(folder: &str) -> Vec<PathBuf> {
    let Some(root) = std::env::var_os("ONCEWARD_VECTORS") else {
        println!("ONCEWARD_VECTORS is not set: the vectors in {folder} were not checked");
        return Vec::new();
    };
    let folder = Path::new(&root).join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn structured_field_items_are_keys_exactly_if_they_are_strings() {
    let mut accepted = 0;
    let mut limited = 0;
    let mut refused = 0;
    for file in vectors("structured-fields").iter().filter(|file| name(file).ends_with(".json")) {
        let tests: Vec<Value> = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        for test in tests.iter().filter(|test| test["header_type"] == "item") {
            let title = format!("{}: {}", name(file), test["name"]);
            let lines: Vec<_> =
                test["raw"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
            let parse = |syntax| Key::from_header_lines(lines.iter().map(|line| line.as_bytes()), syntax, 1);
            let strict = parse(Syntax::Strict);
            let Some(string) = test["expected"][0].as_str() else {
                // Must fail, or is an item of another type.
                assert!(strict.is_err(), "{title}");
                refused += 1;
                continue;
            };
            match string.len() {
                // The vectors let a parser refuse a String that was cut in two lines, or join it with a comma. A key
                // is never joined: two lines are two keys.
                _ if lines.len() > 1 => {
                    assert_eq!(test["can_fail"], true, "{title}");
                    assert_eq!(strict, Err(KeyError::SeveralLines), "{title}");
                    refused += 1;
                }
                // Strings without end are fine in a structured field, but not as a key.
                0 => {
                    assert_eq!(strict, Err(KeyError::Empty), "{title}");
                    limited += 1;
                }
                found @ 256.. => {
                    assert_eq!(strict, Err(KeyError::TooLong { found }), "{title}");
                    limited += 1;
                }
                1..=255 => {
                    assert_eq!(strict.as_ref().unwrap().as_ref().unwrap().as_str(), string, "{title}");
                    accepted += 1;
                }
            }
            assert_eq!(parse(Syntax::Lenient), strict, "{title}");
        }
    }
    println!(
        "structured-fields: {accepted} keys, {limited} refused for Onceward's limits, {refused} refused as no String"
    );
}

#[test]
fn canonical_forms_are_those_of_rfc_8785() {
    let files = vectors("json-canonicalization/input");
    for input in &files {
        let output = input.ancestors().nth(2).unwrap().join("output").join(name(input));
        let form = canonicalize(&fs::read(input).unwrap(), Numbers::Rfc8785, Profile::MAX_DEPTH);
        assert_eq!(form, Ok(fs::read(output).unwrap()), "{}", name(input));
    }
    println!("json-canonicalization: {} documents", files.len());
}

#[test]
fn no_two_different_documents_have_one_fingerprint() {
    let files = [vectors("json-test-suite/test_parsing"), vectors("json-test-suite/test_transform")].concat();
    let profile = Profile::builder().build().unwrap();
    let documents: Vec<_> = files
        .iter()
        .map(|file| {
            let body = fs::read(file).unwrap();
            let fingerprint = fingerprint(&profile, &body);
            (name(file), fingerprint, meaning(&body), body)
        })
        .collect();
    let mut alike = 0;
    for (index, (name, fingerprint, meaning, body)) in documents.iter().enumerate() {
        for (other_name, other_fingerprint, other_meaning, other_body) in &documents[..index] {
            let same_meaning = meaning.is_some() && meaning == other_meaning;
            let same = fingerprint.compare(other_fingerprint) == Comparison::Same;
            assert_eq!(same, same_meaning || body == other_body, "{name} and {other_name}");
            alike += usize::from(same);
        }
    }
    println!("json-test-suite: {} documents, {alike} pairs of the same meaning", documents.len());
}

fn fingerprint(profile: &Profile, body: &[u8]) -> Fingerprint {
    let headers = [("content-type", &b"application/json"[..])];
    let (method, path) = ("POST", "/");
    profile.fingerprint(&Parts { method, path, query: None, headers: &headers, body })
}

/// What a document says, found with `serde_json` and none of the code under test.
#[derive(PartialEq)]
enum Meaning {
    /// `null`, `true` or `false`.
    Word(String),
    Number(Decimal),
    Text(String),
    Array(Vec<Meaning>),
    Object(BTreeMap<String, Meaning>),
}

/// A value of digits times ten to an exponent; the digits neither begin nor end with zero.
#[derive(PartialEq)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i128,
}

/// `None` if it is no JSON, or JSON that does not mean the same to everyone: two members of one name.
fn meaning(text: &[u8]) -> Option<Meaning> {
    let raw: &RawValue = serde_json::from_slice(text).ok()?;
    let text = raw.get();
    Some(match text.as_bytes()[0] {
        b'"' => Meaning::Text(serde_json::from_str(text).ok()?),
        b'[' => {
            let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Meaning::Array(elements.iter().map(|raw| meaning(raw.get().as_bytes())).collect::<Option<_>>()?)
        }
        b'{' => {
            let Members(members) = serde_json::from_str(text).ok()?;
            let mut object = BTreeMap::new();
            for (name, raw) in members {
                if object.insert(name, meaning(raw.get().as_bytes())?).is_some() {
                    return None;
                }
            }
            Meaning::Object(object)
        }
        b'-' | b'0'..=b'9' => Meaning::Number(decimal(text)?),
        _ => Meaning::Word(text.to_owned()),
    })
}

fn decimal(text: &str) -> Option<Decimal> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let magnitude = mantissa.trim_start_matches('-');
    let (whole, fraction) = magnitude.split_once('.').unwrap_or((magnitude, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Some(Decimal { negative: false, digits: String::new(), exponent: 0 });
    }
    let shift =
        i128::try_from(digits.len() - significant.len()).ok()? - i128::try_from(fraction.len()).ok()?;
    let exponent = exponent.parse::<i128>().ok()? + shift;
    let digits = significant.trim_start_matches('0').to_owned();
    Some(Decimal { negative: mantissa.starts_with('-'), digits, exponent })
}

/// The members of an object in the order they came, duplicates included.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
