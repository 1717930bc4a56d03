//! The source of a secret. The secret itself is never in the tree, so nothing that prints the tree can show it.

use std::collections::BTreeMap;
use std::fs;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `{ env = "NAME" }` or `{ file = "PATH" }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum SecretSource {
    /// The name of a variable that holds the secret.
    Env(String),
    /// The path of a file that holds the secret; a line end after it is ignored.
    File(String),
}

/// The error for any other value in the place of a secret's source. The value is not repeated, because it may be the secret.
pub(super) const HOW_TO_GIVE: &str = "must say where the secret is found and never be the secret itself, because files and command lines are read by \
     many: write { env = \"NAME\" }, or { file = \"PATH\" }";

impl SecretSource {
    /// Fetches the secret. The error ends a sentence that begins with "it".
    pub(super) fn fetch(&self, variables: &BTreeMap<String, String>) -> Result<String, String> {
        match self {
            Self::Env(name) => match variables.get(name) {
                Some(secret) if !secret.is_empty() => Ok(secret.clone()),
                Some(_) => Err(format!(
                    "is to be found in the variable {name}, which is empty: put the secret there"
                )),
                None => Err(format!("is to be found in the variable {name}, which is not set: set it")),
            },
            Self::File(path) => match fs::read_to_string(path) {
                Ok(text) => {
                    let secret = text.strip_suffix('\n').unwrap_or(&text);
                    let secret = secret.strip_suffix('\r').unwrap_or(secret);
                    if secret.is_empty() {
                        return Err(format!(
                            "is to be found in the file {path:?}, which is empty: put the secret there"
                        ));
                    }
                    Ok(secret.to_owned())
                }
                Err(error) => Err(format!(
                    "is to be found in the file {path:?}, which cannot be read ({error}): name a file that this user may read"
                )),
            },
        }
    }
}
