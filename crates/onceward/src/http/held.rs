//! How many bytes of request bodies are held at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A quarter of a GiB: 256 bodies of the default limit at once, and thousands of ordinary ones.
pub(super) const HELD_BYTES: usize = 256 << 20;

/// Room for the bodies of keyed requests. Each draws what it holds and gives it back when it is sent or dropped.
#[derive(Debug)]
pub(super) struct Room {
    limit: usize,
    drawn: AtomicUsize,
}

/// What one body has drawn. Given back when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Drawn {
    /// Nothing where nobody counts.
    room: Option<Arc<Room>>,
    bytes: usize,
}

/// There is no room left.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

impl Room {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, drawn: AtomicUsize::new(0) })
    }

    /// For a body of which nothing was read yet.
    pub(super) fn open(self: &Arc<Self>) -> Drawn {
        Drawn { room: Some(self.clone()), bytes: 0 }
    }
}

impl Drawn {
    /// Draws what is missing to `bytes`. Nobody waits for room: whoever waited would hold a connection and what it has
    /// read already, which is what is short.
    pub(super) fn reach(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let more = bytes.saturating_sub(self.bytes);
        if let Some(room) = &self.room {
            room.drawn
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |drawn| {
                    drawn.checked_add(more).filter(|drawn| *drawn <= room.limit)
                })
                .map_err(|_| NoRoom)?;
        }
        self.bytes += more;
        Ok(())
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        if let Some(room) = &self.room {
            room.drawn.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_to_the_last_byte_and_given_back() {
        let room = Room::new(10);
        let (mut one, mut other) = (room.open(), room.open());
        assert_eq!(one.reach(4), Ok(()));
        assert_eq!(one.reach(2), Ok(()));
        assert_eq!(other.reach(7), Err(NoRoom));
        assert_eq!(other.reach(6), Ok(()));
        assert_eq!(one.reach(5), Err(NoRoom));
        drop(other);
        assert_eq!(one.reach(10), Ok(()));
        drop(one);
        assert_eq!(room.drawn.load(Ordering::Relaxed), 0);
        assert_eq!(Drawn::default().reach(usize::MAX), Ok(()));
    }
}
