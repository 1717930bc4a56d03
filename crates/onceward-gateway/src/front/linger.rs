//! Closing a connection on a client that is still sending.
//!
//! A socket that is closed with unread bytes in it resets the connection. A client that sends its whole request before it
//! reads, as most do, then fails while it sends, and never sees the answer that says why. So bytes that come after the answer are
//! read and discarded, for a bounded while and without a buffer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use onceward::plumbing::time::{Alarm, Instant, deadline, instant};
use tokio::io::{AsyncRead, ReadBuf};

/// The longest that a connection keeps its place after its last answer, as in nginx. At 10 Mbit/s it is enough for 37 MB.
const LINGER_TIME: Duration = Duration::from_secs(30);
/// A client that sends nothing for so long has seen the answer, or is gone: several round trips around the world.
const LINGER_PAUSE: Duration = Duration::from_secs(5);
/// On a fast network the time limit alone would let a client keep a core busy.
const LINGER_BYTES: u64 = 1 << 30;
/// The limit from when the gateway stops.
const LINGER_STOPPING: Duration = Duration::from_secs(1);

/// How much one read takes. It is on the stack.
const SCRATCH_BYTES: usize = 16 << 10;

/// Whether lingering should be short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Haste {
    None,
    /// The gateway stops, and waits for its connections.
    Stopping,
}

#[derive(Debug, Default)]
pub(super) struct Linger(Option<Begun>);

#[derive(Debug)]
struct Begun {
    alarm: Alarm,
    haste: Haste,
    /// When lingering ends at the latest.
    ends: Instant,
    /// When it ends if no bytes come.
    pause_ends: Instant,
    read: u64,
}

impl Linger {
    pub(super) fn has_begun(&self) -> bool {
        self.0.is_some()
    }

    /// Reads until the client has closed, or a limit is reached.
    pub(super) fn poll<I: AsyncRead + Unpin>(
        &mut self,
        io: &mut I,
        haste: Haste,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let begun = self.0.get_or_insert_with(Begun::now);
        begun.hurry(haste);
        // Before reading: a client that never stops sending would use up the task's budget, and the timer would not be polled.
        if begun.alarm.poll_until(begun.ends.min(begun.pause_ends), context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        begun.discard(io, context).map(Ok)
    }
}

impl Begun {
    fn now() -> Self {
        let now = instant();
        let pause_ends = deadline(now, LINGER_PAUSE);
        Self {
            alarm: Alarm::new(pause_ends),
            haste: Haste::None,
            ends: deadline(now, LINGER_TIME),
            pause_ends,
            read: 0,
        }
    }

    fn hurry(&mut self, haste: Haste) {
        if self.haste != haste {
            self.haste = haste;
            self.ends = self.ends.min(deadline(instant(), LINGER_STOPPING));
        }
    }

    fn discard<I: AsyncRead + Unpin>(&mut self, io: &mut I, context: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; SCRATCH_BYTES];
        let before = self.read;
        while self.read < LINGER_BYTES {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *io).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.read += buffer.filled().len() as u64;
                }
                // The client is gone either way.
                Poll::Ready(Ok(()) | Err(_)) => return Poll::Ready(()),
                Poll::Pending => {
                    if self.read > before {
                        self.pause_ends = deadline(instant(), LINGER_PAUSE);
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Always has more, and never waits.
    struct Endless {
        read: u64,
        of: u64,
    }

    impl AsyncRead for Endless {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let left = usize::try_from(self.of - self.read).unwrap_or(usize::MAX);
            let read = buffer.remaining().min(left);
            buffer.initialize_unfilled_to(read);
            buffer.advance(read);
            self.read += read as u64;
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_is_read_to_its_end_or_to_the_limit() {
        for (of, read) in [(1000, 1000), (LINGER_BYTES, LINGER_BYTES), (2 * LINGER_BYTES, LINGER_BYTES)] {
            let mut endless = Endless { read: 0, of };
            let polled =
                Linger::default().poll(&mut endless, Haste::None, &mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Ok(()))));
            assert_eq!(endless.read, read);
        }
    }
}
