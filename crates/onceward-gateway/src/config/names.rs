//! The names of a type's fields or variants, asked from serde: in the order in which they are written, which a schema loses.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

type Names = &'static [&'static str];

/// The fields of a struct, or the variants of an enum.
pub(super) fn names_of<'de, T: Deserialize<'de>>() -> Names {
    let mut names: Names = &[];
    // It always fails, right after it has passed on the names.
    match T::deserialize(NamesOnly(&mut names)) {
        Ok(_) | Err(Stopped) => names,
    }
}

/// A deserializer that keeps the names which a type passes to it, and has no value.
struct NamesOnly<'a>(&'a mut Names);

#[derive(Debug)]
struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("only names were asked for")
    }
}

impl std::error::Error for Stopped {}

impl de::Error for Stopped {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

impl<'de> Deserializer<'de> for NamesOnly<'_> {
    type Error = Stopped;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stopped> {
        Err(Stopped)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: Names,
        _: V,
    ) -> Result<V::Value, Stopped> {
        *self.0 = fields;
        Err(Stopped)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: Names,
        _: V,
    ) -> Result<V::Value, Stopped> {
        *self.0 = variants;
        Err(Stopped)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}
