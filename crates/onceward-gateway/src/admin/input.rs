//! Reads JSON bodies, queries and ids. Everything has a limit, and unknown fields are refused.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr as _;
use std::time::Duration;

use axum::body::Body;
use http::Uri;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use onceward::OperationId;
use percent_encoding::percent_decode_str;
use serde::de::{self, DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer};

use super::problem::Problem;

/// A reply of the largest size that engines keep by default (2 MiB) in base64, and what is around it.
pub(super) const BODY_BYTES_MAX: usize = 4 << 20;

/// Reads a JSON body. Errors show the example, which is the smallest valid body.
pub(super) async fn json<T: DeserializeOwned>(body: Body, example: &str) -> Result<T, Problem> {
    let read = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            Problem::TooLarge { limit: BODY_BYTES_MAX }
        } else {
            Problem::Invalid("the body broke off".to_owned())
        }
    })?;
    let bytes = read.to_bytes();
    if bytes.trim_ascii().is_empty() {
        return Err(Problem::Invalid(format!("the body is empty: send {example}")));
    }
    let mut reader = serde_json::Deserializer::from_slice(&bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        // Serde's message may quote a value, which may be a key or a body. The kind of error and its place are enough.
        let inner = error.into_inner();
        let why = match inner.classify() {
            serde_json::error::Category::Data => {
                format!("{}: send at least {example}", field_error(&inner.to_string()))
            }
            serde_json::error::Category::Io
            | serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof => format!("is not JSON near column {}", inner.column()),
        };
        Problem::Invalid(format!("the body at {path:?} {why}"))
    })?;
    reader.end().map_err(|_| Problem::Invalid("the body goes on after its end".to_owned()))?;
    Ok(value)
}

/// A version or a fence: a number, or the same as a text, because a version is above what many JSON readers keep exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number(pub u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or its digits in quotes")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
        Ok(Number(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.map(Number).ok_or_else(|| E::invalid_type(de::Unexpected::Str(text), &self))
    }
}

/// Serde's message if it quotes only names of fields, which are not secret, as values may be.
fn field_error(message: &str) -> String {
    const ABOUT_NAMES: [&str; 4] = ["unknown field", "missing field", "duplicate field", "unknown variant"];
    let message = message.split(" at line ").next().unwrap_or(message);
    if ABOUT_NAMES.iter().any(|kind| message.starts_with(kind)) {
        return format!("is not as expected: {}", message.chars().take(255).collect::<String>());
    }
    "has a value of another type than expected".to_owned()
}

/// Reads an operation's id from a path, with or without its window.
pub(super) fn operation(text: &str) -> Result<OperationId, Problem> {
    OperationId::from_str(text).map_err(|error| Problem::Invalid(error.to_string()))
}

/// Reads a query, in which only these names may stand, each once.
pub(super) fn query(uri: &Uri, known: &[&'static str]) -> Result<BTreeMap<&'static str, String>, Problem> {
    let mut found = BTreeMap::new();
    for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(name) = known.iter().find(|known| **known == name) else {
            let name: String = name.chars().take(64).collect();
            return Err(Problem::Invalid(format!("the query has {name:?}, but only {known:?} are known")));
        };
        let value = value.replace('+', " ");
        let value = percent_decode_str(&value).decode_utf8();
        let value = value.map_err(|_| Problem::Invalid(format!("{name} in the query is not UTF-8")))?;
        if found.insert(*name, value.into_owned()).is_some() {
            return Err(Problem::Invalid(format!("the query has {name:?} twice")));
        }
    }
    // A form sends a field that was left empty; it filters nothing.
    found.retain(|_, value| !value.is_empty());
    Ok(found)
}

/// Reads a span of time such as `90s` or `7d`.
pub(super) fn duration(name: &str, text: &str) -> Result<Duration, Problem> {
    humantime::parse_duration(text).map_err(|error| {
        let text: String = text.chars().take(32).collect();
        Problem::Invalid(format!(
            "{name} = {text:?} is no span of time ({error}): write it like \"90s\" or \"7d\""
        ))
    })
}
