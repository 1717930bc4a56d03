//! One spelling for every JSON document, so that a retry by another serializer is still the same request.
//!
//! The form is that of RFC 8785: no white space, members sorted by the UTF-16 code units of their names, one way to
//! escape each character. Numbers may keep every digit ([`Numbers::Exact`]) instead of being rounded to a double.
//!
//! How it is done, without a tree of values:
//!
//! 1. `scan` checks the text and writes it out again token by token, members in the order they came, and notes where
//!    each member begins and ends. A text that needs no change is copied in long runs.
//! 2. When an object ends, its members are compared. Only if they are out of order are they sorted and remembered.
//! 3. `emit` copies what was written, jumping to the members of remembered objects in their sorted order.
//!
//! Nothing recurses, so depth costs memory and not stack; every token is read a constant number of times, and sorting
//! compares at most n·log n bytes of names, so the cost is O(n log n) for a body of n bytes. In addition to the body it may
//! take up to [`WORST_GROWTH`] times its length.

mod emit;
mod escape;
mod number;
mod order;
mod scan;

pub(super) use escape::push_escaped;

use super::pointer::Pointer;

/// How the numbers of a document are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Numbers {
    /// Every digit counts: laid out as ECMAScript does, but never rounded. `1`, `1.0` and `1e0` are one number;
    /// 9007199254740993 and 9007199254740992 are two, although a double cannot tell them apart. `-0` is `0`.
    Exact,
    /// As RFC 8785 has it: the shortest text that reads back as the same double.
    Rfc8785,
}

/// Why a text has no canonical form. Names the place, never the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NotCanonical {
    /// JSON is exchanged as UTF-8.
    #[error("the text is not UTF-8 from byte {at} on")]
    InvalidUtf8 {
        /// Offset of the first wrong byte.
        at: usize,
    },
    /// Not the grammar of RFC 8259. A byte order mark is not part of it either.
    #[error("the text is not JSON from byte {at} on")]
    InvalidJson {
        /// Offset of the first byte that fits no rule.
        at: usize,
    },
    /// Receivers differ on which of two members wins, so two such documents may not be declared equal.
    #[error("an object that ends before byte {at} has two members of one name")]
    DuplicateName {
        /// Offset just after the object.
        at: usize,
    },
    /// Half a surrogate pair is not a character, and receivers replace it in different ways.
    #[error("a \\u escape before byte {at} is half a surrogate pair")]
    LoneSurrogate {
        /// Offset just after the escape.
        at: usize,
    },
    /// More containers within each other than allowed.
    #[error("containers are nested deeper than {limit}")]
    TooDeep {
        /// The limit that was passed in.
        limit: usize,
    },
    /// No finite double ([`Numbers::Rfc8785`]), or an exponent of more than 18 digits ([`Numbers::Exact`]).
    #[error("the number before byte {at} is out of range")]
    NumberOutOfRange {
        /// Offset just after the number.
        at: usize,
    },
    /// Longer than [`MAX_CANONICAL_BYTES`].
    #[error("the text has {found} bytes, more than the {MAX_CANONICAL_BYTES} that have a canonical form")]
    TooLong {
        /// Its length.
        found: usize,
    },
}

/// Offsets are kept in 32 bits, and a text of `1e20`s may grow fivefold: this leaves room for both.
pub const MAX_CANONICAL_BYTES: usize = 256 << 20;

/// Memory taken in addition to a body, in multiples of its length, by a body that was made to take the most:
/// `[1e20,1e20,…]` grows 4.4 times in writing, and a member of 6 bytes may cost twice 20 bytes of notes, in vectors that
/// double. Real bodies take about 3.
pub const WORST_GROWTH: usize = 20;

/// Writes a document in its canonical form, or says why it has none.
///
/// `max_depth` limits how many containers may be open at once.
///
/// ```
/// use onceward::fingerprint::{Numbers, canonicalize};
///
/// let text = br#"{ "b": 1.0, "a": "\u0041" }"#;
/// assert_eq!(canonicalize(text, Numbers::Exact, 8)?, br#"{"a":"A","b":1}"#);
///
/// let large = b"9007199254740993";
/// assert_eq!(canonicalize(large, Numbers::Exact, 8)?, large);
/// assert_eq!(canonicalize(large, Numbers::Rfc8785, 8)?, b"9007199254740992");
/// # Ok::<(), onceward::fingerprint::NotCanonical>(())
/// ```
pub fn canonicalize(bytes: &[u8], numbers: Numbers, max_depth: usize) -> Result<Vec<u8>, NotCanonical> {
    let mut scratch = Scratch::default();
    let rules = Rules { numbers, max_depth, ignored: &[] };
    scratch.canonicalize(bytes, rules).map(<[u8]>::to_vec)
}

#[derive(Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) numbers: Numbers,
    pub(super) max_depth: usize,
    /// At most [`super::Profile::MAX_IGNORED`], because they are tracked in the bits of one word.
    pub(super) ignored: &'a [Pointer],
}

/// Buffers that are worth keeping from one body to the next.
#[derive(Default)]
pub(super) struct Scratch {
    /// Canonical tokens, members still in the order they came.
    text: Vec<u8>,
    open: Vec<scan::Open>,
    /// Members of containers that are still open, innermost last.
    pending: Vec<Member>,
    /// Members of the containers that have to be rewritten, in their final order.
    members: Vec<Member>,
    containers: Vec<Container>,
    steps: Vec<emit::Step>,
    sorted: Vec<u8>,
}

/// A member of an object, or a stretch of elements of an array that ignored pointers lead into; offsets are into
/// `text`.
#[derive(Clone, Copy)]
struct Member {
    start: u32,
    /// Just after the closing quote of the name; `start` for elements.
    name_end: u32,
    end: u32,
    /// The first container within the value.
    container: u32,
    spelling: order::Spelling,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Ignored,
}

/// Containers are kept in the order in which they begin.
#[derive(Clone, Copy)]
struct Container {
    start: u32,
    end: u32,
    /// The first container that begins after this one ended.
    next: u32,
    /// Where in `members` its members are, if they are to be written in another way than they came.
    rewritten: Option<(u32, u32)>,
}

impl Scratch {
    /// Buffers above this are given back: one large body must not pin memory on every thread for good.
    const KEPT_BYTES: usize = 256 << 10;

    pub(super) fn canonicalize(&mut self, bytes: &[u8], rules: Rules<'_>) -> Result<&[u8], NotCanonical> {
        if bytes.len() > MAX_CANONICAL_BYTES {
            return Err(NotCanonical::TooLong { found: bytes.len() });
        }
        let source =
            str::from_utf8(bytes).map_err(|error| NotCanonical::InvalidUtf8 { at: error.valid_up_to() })?;
        self.clear();
        scan::scan(self, source, rules)?;
        if self.containers.iter().all(|container| container.rewritten.is_none()) {
            return Ok(&self.text);
        }
        self.emit();
        Ok(&self.sorted)
    }

    fn clear(&mut self) {
        self.text.clear();
        self.open.clear();
        self.pending.clear();
        self.members.clear();
        self.containers.clear();
        self.steps.clear();
        self.sorted.clear();
    }

    /// Whether the buffers are small enough to be kept for the next body.
    pub(super) fn is_small(&self) -> bool {
        let notes = self.pending.capacity() + self.members.capacity() + self.containers.capacity();
        self.text.capacity() + self.sorted.capacity() + notes * size_of::<Member>() <= Self::KEPT_BYTES
    }
}

/// Offsets fit 32 bits because of [`MAX_CANONICAL_BYTES`]; were that ever wrong, slicing would fail rather than wrap.
fn offset(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
