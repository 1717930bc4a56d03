//! A connection to the upstream that knows how much was sent on it.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// What is known of a connection from outside, while hyper has it.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    written: AtomicU64,
    probing: AtomicBool,
}

impl Gauge {
    /// How many bytes the connection has accepted. What TLS or the kernel took counts as sent, because nobody can tell.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// From now until [`Gauge::probed`], reads ask the kernel itself.
    ///
    /// The runtime learns of a closed connection only when it next asks for events, which on a busy machine is too late:
    /// the request would be written, lost, and its outcome unknown.
    pub(super) fn probe(&self) {
        self.probing.store(true, Ordering::Release);
    }

    pub(super) fn probed(&self) {
        self.probing.store(false, Ordering::Release);
    }
}

/// The bytes to and from the upstream.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    gauge: Arc<Gauge>,
}

#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    pub(super) fn new(stream: Stream) -> (Self, Arc<Gauge>) {
        let gauge = Arc::new(Gauge::default());
        (Self { stream, gauge: gauge.clone() }, gauge)
    }

    fn socket(&self) -> &TcpStream {
        match &self.stream {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Whether the kernel has anything to tell about an idle connection: its end, an error, or bytes that nobody asked for.
    fn is_over(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(self.socket()).peek(&mut byte) {
            Ok(read) => match &self.stream {
                Stream::Plain(_) => true,
                // TLS may send session tickets at any time.
                Stream::Tls(_) => read == 0,
            },
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let written = ready!(written)?;
        self.gauge.written.fetch_add(written as u64, Ordering::AcqRel);
        Poll::Ready(Ok(written))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        if read.is_pending() && self.gauge.probing.load(Ordering::Acquire) && self.is_over() {
            // Nothing was read, which says that the connection has ended.
            return Poll::Ready(Ok(()));
        }
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, buffer),
        };
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
        };
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
