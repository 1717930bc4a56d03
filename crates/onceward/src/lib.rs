//! Makes a retried write happen once.

mod digest;
mod secret;

pub use secret::{Secret, SecretTooShort};
