//! Closing a connection on a client that is still sending.
//!
//! A socket that is closed with unread bytes in it resets the connection, and the client may then never see the answer
//! that told it why. So, for a little while, what still comes is read and thrown away.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use onceward::time::sleep;
use tokio::io::{AsyncRead, ReadBuf};

/// What comes in one or two round trips. A client that sends more is not listening.
const LINGER_BYTES: usize = 64 << 10;
/// A round trip around the world, several times.
const LINGER_WAIT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Linger {
    wait: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
    read: usize,
}

impl std::fmt::Debug for Linger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Linger").field("read", &self.read).finish_non_exhaustive()
    }
}

impl Linger {
    pub(super) fn has_begun(&self) -> bool {
        self.wait.is_some()
    }

    /// Reads until the client is done, or it was enough.
    pub(super) fn poll<I: AsyncRead + Unpin>(
        &mut self,
        io: &mut I,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let wait = self.wait.get_or_insert_with(|| Box::pin(sleep(LINGER_WAIT)));
        if wait.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        while self.read < LINGER_BYTES {
            let mut scratch = [0; 1024];
            let mut buffer = ReadBuf::new(&mut scratch);
            // The client is gone either way: how it went does not matter any more.
            if ready!(Pin::new(&mut *io).poll_read(context, &mut buffer)).is_err()
                || buffer.filled().is_empty()
            {
                break;
            }
            self.read += buffer.filled().len();
        }
        Poll::Ready(Ok(()))
    }
}
