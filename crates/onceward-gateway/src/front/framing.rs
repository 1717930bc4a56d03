//! Follows the bytes of an HTTP/1.1 connection from request to request, and says which of them may be believed.

use super::chunks::{Chunks, Trailers, Went};
use super::head::{Framing, Head, HeadLimits, Upgrade};
use super::refusal::Refusal;

/// Where in the bytes of a connection it is.
#[derive(Debug)]
pub(super) struct Follower {
    limits: HeadLimits,
    at: At,
}

#[derive(Debug)]
enum At {
    Head(Head),
    Body(u64),
    Chunks(Chunks),
    Trailers(Trailers),
    /// After a request that may end HTTP on this connection. What the next bytes mean is not known before its answer.
    Upgrade,
}

/// How many of the bytes may be believed, and why not the others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Followed {
    pub passed: usize,
    pub rest: Rest,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// There is no rest.
    Nothing,
    /// It is the beginning of something that is only believed whole. It must be shown again, with more behind it.
    Incomplete,
    /// It waits for the answer to a request that may end HTTP here. It must be shown again then.
    Waits,
    /// It is no request.
    Refused(Refusal),
    /// It is not the body that it should be.
    Broken(Refusal),
}

impl Follower {
    pub(super) fn new(limits: HeadLimits) -> Self {
        Self { limits, at: At::Head(Head::default()) }
    }

    /// Reads on. The bytes begin with the first that was not passed before.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Followed {
        let mut passed = 0;
        while passed < bytes.len() {
            let rest = &bytes[passed..];
            match &mut self.at {
                At::Head(head) => match head.read(rest, &self.limits) {
                    Ok(None) => return Followed { passed, rest: Rest::Incomplete },
                    Err(refusal) => return Followed { passed, rest: Rest::Refused(refusal) },
                    Ok(Some(head)) => {
                        passed += head.length;
                        self.at = match (head.body, head.upgrade) {
                            (Framing::Length(0), Upgrade::No) => At::Head(Head::default()),
                            (Framing::Length(0), Upgrade::Asked) => At::Upgrade,
                            (Framing::Length(length), _) => At::Body(length),
                            (Framing::Chunked, _) => At::Chunks(Chunks::default()),
                        };
                    }
                },
                At::Body(left) => match usize::try_from(*left) {
                    Ok(left) if left <= rest.len() => {
                        passed += left;
                        self.at = At::Head(Head::default());
                    }
                    Ok(_) | Err(_) => {
                        *left -= rest.len() as u64;
                        passed = bytes.len();
                    }
                },
                At::Chunks(chunks) => match chunks.read(rest) {
                    Went::On => passed = bytes.len(),
                    Went::Last(length) => {
                        passed += length;
                        self.at = At::Trailers(Trailers::default());
                    }
                    Went::Wrong(length) => {
                        return Followed { passed: passed + length, rest: Rest::Broken(Refusal::Chunk) };
                    }
                },
                At::Trailers(trailers) => match trailers.read(rest) {
                    Ok(None) => return Followed { passed, rest: Rest::Incomplete },
                    Err(refusal) => return Followed { passed, rest: Rest::Broken(refusal) },
                    Ok(Some(length)) => {
                        passed += length;
                        self.at = At::Head(Head::default());
                    }
                },
                At::Upgrade => return Followed { passed, rest: Rest::Waits },
            }
        }
        Followed { passed, rest: Rest::Nothing }
    }

    /// Whether what comes next waits for an answer.
    pub(super) fn waits(&self) -> bool {
        matches!(self.at, At::Upgrade)
    }

    /// An answer was given, and it goes on with HTTP.
    pub(super) fn answered(&mut self) {
        if self.waits() {
            self.at = At::Head(Head::default());
        }
    }

    /// Whether everything that was passed is whole.
    pub(super) fn is_between_requests(&self) -> bool {
        matches!(self.at, At::Head(_) | At::Upgrade)
    }
}
