//! Makes a retried write happen once.

mod digest;
mod key;
mod secret;

pub use key::{ByteClass, Key, KeyError, Syntax};
pub use secret::{Secret, SecretTooShort};
