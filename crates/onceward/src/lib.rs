//! Makes a retried write happen once.

mod digest;
pub mod fingerprint;
mod key;
mod secret;

pub use fingerprint::{Fingerprint, Profile, ProfileId};
pub use key::{ByteClass, Key, KeyError, Syntax};
pub use secret::{Secret, SecretTooShort};
