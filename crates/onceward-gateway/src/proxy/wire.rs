//! The byte stream to the upstream, which counts what was sent.

use std::io::{self, IoSlice, Read as _};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::opening::OtherProtocol;

/// How much one probe of an idle connection reads: a few TLS session tickets.
const PROBE_BYTES: usize = 1024;

/// Observes a stream from outside while hyper owns it.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    written: AtomicU64,
    probing: AtomicBool,
    opening: OnceLock<Option<OtherProtocol>>,
}

impl Gauge {
    /// How many bytes the kernel has accepted. They count as sent, because it cannot be known whether they were.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// From now until [`Gauge::probed`], reads go to the kernel even if the runtime has seen no event.
    ///
    /// The runtime notices a closed connection when it next polls for events. On a busy machine that is too late: the request
    /// would be written and lost, and its outcome unknown.
    pub(super) fn probe(&self) {
        self.probing.store(true, Ordering::Release);
    }

    pub(super) fn probed(&self) {
        self.probing.store(false, Ordering::Release);
    }

    /// The protocol that the upstream's first bytes belong to, where that is not HTTP/1.1.
    pub(super) fn other_protocol(&self) -> Option<OtherProtocol> {
        *self.opening.get()?
    }
}

/// The bytes to and from the upstream.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(Socket<TcpStream>),
    Tls(Box<TlsStream<Socket<TcpStream>>>),
}

impl Wire {
    pub(super) fn gauge(&self) -> Arc<Gauge> {
        match self {
            Self::Plain(socket) => socket.gauge.clone(),
            Self::Tls(stream) => stream.get_ref().0.gauge.clone(),
        }
    }

    /// Closes the connection with a reset, after which neither side keeps its port. Bytes in flight are lost.
    pub(super) fn reset(self) {
        let socket = match &self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0,
        };
        if let Err(error) = SockRef::from(&socket.socket).set_linger(Some(Duration::ZERO)) {
            tracing::debug!(%error, "a connection to the upstream cannot be reset: its port is kept for a while");
        }
    }
}

/// A socket whose written bytes are counted. It is below TLS, because TLS may write one part of its input, fail with the next,
/// and report only the failure.
#[derive(Debug)]
pub(super) struct Socket<S> {
    socket: S,
    gauge: Arc<Gauge>,
}

/// Reads what the kernel has, whether or not the runtime has seen an event.
pub(super) trait ReadNow {
    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize>;
}

impl ReadNow for TcpStream {
    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*SockRef::from(self)).read(buffer)
    }
}

impl<S> Socket<S> {
    pub(super) fn new(socket: S) -> Self {
        Self { socket, gauge: Arc::default() }
    }

    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let written = ready!(written)?;
        self.gauge.written.fetch_add(written as u64, Ordering::AcqRel);
        Poll::Ready(Ok(written))
    }
}

impl<S: AsyncRead + ReadNow + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if read.is_ready() || !self.gauge.probing.load(Ordering::Acquire) {
            return read;
        }
        let some = PROBE_BYTES.min(buffer.remaining());
        match self.socket.read_now(buffer.initialize_unfilled_to(some)) {
            Ok(read) => {
                buffer.advance(read);
                Poll::Ready(Ok(()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, buffer);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, buffers);
        self.count(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let (read, gauge) = match self.get_mut() {
            Self::Plain(socket) => (Pin::new(&mut *socket).poll_read(context, buffer), &socket.gauge),
            Self::Tls(stream) => {
                (Pin::new(&mut *stream).poll_read(context, buffer), &stream.get_ref().0.gauge)
            }
        };
        if gauge.opening.get().is_none()
            && let Some(first @ [_, ..]) = buffer.filled().get(before..)
        {
            gauge.opening.get_or_init(|| OtherProtocol::of(first));
        }
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, buffer),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(context, buffers),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use tokio::io::{AsyncWriteExt as _, DuplexStream};
    use tokio::net::TcpListener;
    use tokio_rustls::{TlsAcceptor, TlsConnector, server};

    use super::*;

    /// A connection that takes `left` bytes more, and then resets.
    struct Resetting {
        inner: DuplexStream,
        left: usize,
    }

    impl AsyncRead for Resetting {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_read(context, buffer)
        }
    }

    impl ReadNow for Resetting {
        fn read_now(&self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    impl AsyncWrite for Resetting {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.left == 0 {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let some = self.left.min(bytes.len());
            let written = ready!(Pin::new(&mut self.inner).poll_write(context, &bytes[..some]))?;
            self.left -= written;
            Poll::Ready(Ok(written))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Speaks TLS over a connection, from both its ends.
    async fn tls<C, S>(client: C, server: S) -> (TlsStream<Socket<C>>, server::TlsStream<S>)
    where
        C: AsyncRead + AsyncWrite + ReadNow + Unpin,
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let trusting = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let serving = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let (client, server) = tokio::join!(
            TlsConnector::from(Arc::new(trusting)).connect(name, Socket::new(client)),
            TlsAcceptor::from(Arc::new(serving)).accept(server),
        );
        (client.unwrap(), server.unwrap())
    }

    #[tokio::test]
    async fn what_tls_sent_before_it_failed_counts_as_sent() {
        let (client, server) = tokio::io::duplex(1 << 20);
        let (mut client, _server) = tls(Resetting { inner: client, left: usize::MAX }, server).await;
        let gauge = client.get_ref().0.gauge.clone();
        let request = vec![b'x'; 100_000];
        client.get_mut().0.socket.left = 20_000;
        let before = gauge.written();
        let written =
            poll_fn(|context| Pin::new(&mut client).poll_write_vectored(context, &[IoSlice::new(&request)]));
        assert_eq!(written.await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(gauge.written(), before + 20_000);
    }

    #[tokio::test]
    async fn the_end_of_a_tls_connection_is_seen_before_the_runtime_tells_of_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (client, server) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (client, mut server) = tls(client.unwrap(), server.unwrap().0).await;
        let mut wire = Wire::Tls(Box::new(client));
        let gauge = wire.gauge();
        let mut bytes = [0; 16];
        let mut read = |context: &mut Context<'_>| {
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = Pin::new(&mut wire).poll_read(context, &mut buffer);
            read.map(|read| read.map(|()| buffer.filled().len()).unwrap())
        };
        // Session tickets may have come, and do not make it unusable.
        gauge.probe();
        assert_eq!(poll_fn(|context| Poll::Ready(read(context))).await, Poll::Pending);
        gauge.probed();
        // Nothing here waits, so the runtime polls for no events.
        server.shutdown().await.unwrap();
        assert_eq!(poll_fn(|context| Poll::Ready(read(context))).await, Poll::Pending);
        gauge.probe();
        assert_eq!(poll_fn(|context| Poll::Ready(read(context))).await, Poll::Ready(0));
    }
}
