//! Follows the bytes of an HTTP/1.1 connection from request to request, and decides which of them may be passed on.

use super::chunks::{Chunks, Progress, Trailers};
use super::head::{BodyLength, Head, HeadLimits, Upgrade};
use super::refusal::Refusal;

/// The position in the bytes of a connection.
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
    /// After a request for an upgrade. Until its answer it is not known what the next bytes are.
    Upgrade,
}

/// How many of the bytes may be passed on, and why the others may not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Followed {
    pub passed: usize,
    pub rest: Rest,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// There is no rest.
    Nothing,
    /// It is the beginning of a head or of trailers, which are only passed on whole. It must be read again, with more behind it.
    Incomplete,
    /// It waits for the answer to a request for an upgrade, and must be read again then.
    Waits,
    /// It is not a valid request.
    Refused(Refusal),
    /// It is not a valid body.
    Broken(Refusal),
}

impl Follower {
    pub(super) fn new(limits: HeadLimits) -> Self {
        Self { limits, at: At::Head(Head::default()) }
    }

    /// Reads on in bytes that begin with the first that was not passed before.
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
                            (BodyLength::Known(0), Upgrade::No) => At::Head(Head::default()),
                            (BodyLength::Known(0), Upgrade::Asked) => At::Upgrade,
                            (BodyLength::Known(length), _) => At::Body(length),
                            (BodyLength::Chunked, _) => At::Chunks(Chunks::default()),
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
                    Progress::Continues => passed = bytes.len(),
                    Progress::Last(length) => {
                        passed += length;
                        self.at = At::Trailers(Trailers::default());
                    }
                    Progress::Malformed(length) => {
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

    /// Whether the next bytes wait for the answer to a request for an upgrade.
    pub(super) fn waits(&self) -> bool {
        matches!(self.at, At::Upgrade)
    }

    /// The answer was given, and was not an upgrade.
    pub(super) fn answered(&mut self) {
        if self.waits() {
            self.at = At::Head(Head::default());
        }
    }

    /// Whether all requests that were passed on are whole.
    pub(super) fn is_between_requests(&self) -> bool {
        matches!(self.at, At::Head(_) | At::Upgrade)
    }
}
