//! Replies as JSON: `{status, headers, body}`, where a body is text or `{"base64": "…"}`.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onceward::Reply;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::problem::Problem;

/// A reply that a worker or an operator sends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplyJson {
    #[serde(default = "ok")]
    status: u16,
    #[serde(default)]
    headers: BTreeMap<String, Values>,
    #[serde(default)]
    body: BytesJson,
}

const fn ok() -> u16 {
    200
}

/// One value of a header, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Values {
    One(String),
    Many(Vec<String>),
}

/// Bytes, as JSON can carry them.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum BytesJson {
    Text(String),
    Encoded(Encoded),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Encoded {
    base64: String,
}

impl Default for BytesJson {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl BytesJson {
    pub(super) fn bytes(self) -> Result<Bytes, Problem> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::Encoded(Encoded { base64 }) => match STANDARD.decode(&base64) {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => Err(Problem::Invalid(format!(
                    "the base64 of {} bytes cannot be read: {error}",
                    base64.len()
                ))),
            },
        }
    }
}

impl ReplyJson {
    /// The reply, if an HTTP message can carry it.
    pub(super) fn reply(self) -> Result<Arc<Reply>, Problem> {
        if !(200..=599).contains(&self.status) {
            let why = format!("reply.status = {} must lie between 200 and 599", self.status);
            return Err(Problem::Invalid(why));
        }
        let mut headers = Vec::new();
        for (name, values) in self.headers {
            let values = match values {
                Values::One(value) => vec![value],
                Values::Many(values) => values,
            };
            for value in values {
                if HeaderName::from_bytes(name.as_bytes()).is_err() || HeaderValue::from_str(&value).is_err()
                {
                    let why = format!("reply.headers: {:?} is no header that HTTP can carry", cut(&name));
                    return Err(Problem::Invalid(why));
                }
                headers.push((name.to_ascii_lowercase(), value.into()));
            }
        }
        Ok(Arc::new(Reply { status: self.status, headers, body: self.body.bytes()?, version: 1 }))
    }
}

/// Whether an answer has the headers and bodies of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bodies {
    /// Sizes only.
    Hidden,
    /// Headers and bodies, which may hold secrets of users.
    Shown,
}

pub(super) fn reply_json(reply: &Reply, bodies: Bodies) -> Value {
    let mut shown = json!({ "status": reply.status, "version": reply.version, "bytes": reply.bytes() });
    if bodies == Bodies::Shown {
        let mut headers = Map::new();
        for (name, value) in &reply.headers {
            match headers.get_mut(name) {
                None => drop(headers.insert(name.clone(), bytes_json(value))),
                Some(Value::Array(values)) => values.push(bytes_json(value)),
                Some(first) => *first = Value::Array(vec![first.take(), bytes_json(value)]),
            }
        }
        shown["headers"] = Value::Object(headers);
        shown["body"] = bytes_json(&reply.body);
    }
    shown
}

/// Bytes as text if they are UTF-8, and as base64 otherwise.
pub(super) fn bytes_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}
