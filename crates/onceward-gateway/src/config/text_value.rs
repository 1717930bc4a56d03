//! Values that a file has as one string: how each is parsed, printed and described in the schema.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserializer, Visitor};

/// A value that a file has as one string.
pub(super) trait TextValue: Sized + fmt::Display {
    /// Ends the sentence "it must be".
    const EXPECTED: &'static str;
    /// Examples, for the schema.
    const EXAMPLES: &'static [&'static str];

    /// Parses it. The error ends a sentence that begins with "it".
    fn read(text: &str) -> Result<Self, String>;

    /// Reads it from a plain number, if the type allows one.
    fn read_number(number: u64) -> Option<Self> {
        let _ = number;
        None
    }
}

/// Reads a [`TextValue`] from a string or a number.
pub(super) fn deserialize<'de, T: TextValue, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(TextVisitor(PhantomData))
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: TextValue> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::read(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        u64::try_from(number)
            .ok()
            .and_then(T::read_number)
            .ok_or_else(|| E::invalid_type(de::Unexpected::Signed(number), &self))
    }
}

/// Implements serde's and the schema's traits for a [`TextValue`].
macro_rules! text_value {
    ($type:ty, $name:literal) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::config::text_value::deserialize(deserializer)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let description = format!("Must be {}.", <Self as $crate::config::text_value::TextValue>::EXPECTED);
                let examples = <Self as $crate::config::text_value::TextValue>::EXAMPLES;
                let number = <Self as $crate::config::text_value::TextValue>::read_number(1).is_some();
                let kind = if number { serde_json::json!(["string", "integer"]) } else { "string".into() };
                schemars::json_schema!({ "type": kind, "description": description, "examples": examples })
            }
        }
    };
}

pub(super) use text_value;
