//! Setters of option structs, whose fields are public for reading. The structs are `#[non_exhaustive]`, so that a new option
//! breaks no caller.

macro_rules! setters {
    ($($field:ident: $type:ty,)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

/// The same for lists, which are given as arrays or vectors.
#[cfg(feature = "http")]
macro_rules! list_setters {
    ($($field:ident: $type:ty,)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: impl Into<$type>) -> Self {
            self.$field = $field.into();
            self
        }
    )*};
}
