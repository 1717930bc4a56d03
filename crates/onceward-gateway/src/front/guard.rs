//! Stands between a socket and hyper, and lets hyper see only requests that are strictly framed.
//!
//! hyper is lenient: it takes a bare LF for the end of a line, and a request with both a length and an encoding. The upstream may
//! be lenient in other ways, and read two requests where hyper read one. So the guard follows the bytes itself. A head is passed on
//! whole or not at all; a body is passed on as it comes.
//!
//! The usual read, a whole request, goes straight into hyper's buffer and is checked there: nothing is copied.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

use super::framing::{Follower, Rest};
use super::head::HeadLimits;
use super::http1_state::Http1State;
use super::linger::{Haste, Linger};
use super::refusal::{Refusal, STAND_IN};
use super::stall::Stall;

/// A connection, guarded.
#[derive(Debug)]
pub(super) struct Guard<I> {
    io: I,
    kind: Kind,
    /// Bytes that were read and not passed on.
    buffered: BytesMut,
    /// How many of the buffered bytes may be passed on now.
    ready: usize,
    stall: Stall,
    linger: Linger,
    /// A place among the connections, which is free again when the socket is gone, upgraded or not.
    _place: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum Kind {
    /// HTTP/1.1: every byte is checked.
    Http1 { follower: Follower, state: Arc<Http1State>, reading: Reading },
    /// HTTP/2, which frames requests itself: every byte passes.
    Http2,
}

#[derive(Debug)]
enum Reading {
    /// The buffered bytes were checked and are incomplete: more must be read.
    NeedsMore,
    /// The buffered bytes were not checked yet.
    Unchecked,
    /// A stand-in replaces a refused request. No bytes come after it.
    Refused,
    /// The body is malformed, so hyper gets an error and not its end.
    Broken(Refusal),
}

/// What was read of a connection before it was known what it is, and what it takes to guard it.
pub(super) struct Opened<I> {
    pub io: I,
    pub read: BytesMut,
    /// How long the client may accept none of the bytes that are written to it.
    pub stall: Duration,
    pub place: Option<OwnedSemaphorePermit>,
}

impl<I> Guard<I> {
    /// Guards HTTP/1.1.
    pub(super) fn http1(opened: Opened<I>, limits: HeadLimits, state: Arc<Http1State>) -> Self {
        let kind = Kind::Http1 { follower: Follower::new(limits), state, reading: Reading::Unchecked };
        Self::new(opened, kind, 0)
    }

    /// Passes on HTTP/2 as it is.
    pub(super) fn http2(opened: Opened<I>) -> Self {
        let ready = opened.read.len();
        Self::new(opened, Kind::Http2, ready)
    }

    fn new(opened: Opened<I>, kind: Kind, ready: usize) -> Self {
        Self {
            io: opened.io,
            kind,
            buffered: opened.read,
            ready,
            stall: Stall::new(opened.stall),
            linger: Linger::default(),
            _place: opened.place,
        }
    }

    /// Whether the client may still be sending bytes that will not be read.
    fn is_cut_off(&self) -> bool {
        match &self.kind {
            Kind::Http2 => false,
            Kind::Http1 { state, .. } if state.is_upgraded() => false,
            Kind::Http1 { reading: Reading::Refused | Reading::Broken(_), .. } => true,
            Kind::Http1 { follower, reading: Reading::NeedsMore | Reading::Unchecked, .. } => {
                !follower.is_between_requests() || !self.buffered.is_empty()
            }
        }
    }

    /// An answer is being written. If its request asked for an upgrade and the connection is not upgraded, HTTP goes on.
    fn answering(&mut self) {
        if let Kind::Http1 { follower, state, reading } = &mut self.kind
            && follower.waits()
            && !state.is_upgraded()
        {
            follower.answered();
            if !self.buffered.is_empty() {
                *reading = Reading::Unchecked;
            }
            state.wake_reader();
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Guard<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { io, kind, buffered, ready, .. } = self.get_mut();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if *ready > 0 {
                let taken = (*ready).min(buffer.remaining());
                buffer.put_slice(&buffered[..taken]);
                buffered.advance(taken);
                *ready -= taken;
                return Poll::Ready(Ok(()));
            }
            let Kind::Http1 { follower, state, reading } = kind else {
                return Pin::new(io).poll_read(context, buffer);
            };
            match reading {
                // The holder of the upgraded connection would wait for bytes that never come.
                Reading::Refused if state.is_upgraded() => {
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                // At the end of the stream hyper would drop requests that are still being answered, the stand-in among them.
                // The stand-in's answer closes the connection.
                Reading::Refused => return Poll::Pending,
                Reading::Broken(refusal) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, *refusal)));
                }
                Reading::NeedsMore | Reading::Unchecked => {}
            }
            if follower.waits() {
                state.register_reader(context.waker());
            }
            if state.is_upgraded() {
                if buffered.is_empty() {
                    return Pin::new(io).poll_read(context, buffer);
                }
                *ready = buffered.len();
                continue;
            }
            if follower.waits() {
                return Poll::Pending;
            }
            if matches!(reading, Reading::Unchecked) {
                let followed = follower.follow(buffered);
                *ready = followed.passed;
                *reading = after_check(followed.rest, state, buffered, followed.passed);
                if matches!(reading, Reading::Refused) {
                    *ready = buffered.len();
                }
                continue;
            }

            if !buffered.is_empty() && follower.is_between_requests() {
                state.begin_head();
            }
            let before = buffer.filled().len();
            ready!(Pin::new(&mut *io).poll_read(context, buffer))?;
            let read = &buffer.filled()[before..];
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !buffered.is_empty() {
                buffered.extend_from_slice(read);
                buffer.set_filled(before);
                *reading = Reading::Unchecked;
                continue;
            }
            let followed = follower.follow(read);
            buffered.extend_from_slice(&read[followed.passed..]);
            buffer.set_filled(before + followed.passed);
            *reading = after_check(followed.rest, state, buffered, 0);
            if matches!(reading, Reading::Refused) {
                *ready = buffered.len();
            }
            if followed.passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Acts on the result of a check: what is refused or broken is cut from the buffer, from `keep` on.
fn after_check(rest: Rest, state: &Http1State, buffered: &mut BytesMut, keep: usize) -> Reading {
    match rest {
        Rest::Nothing | Rest::Incomplete | Rest::Waits => Reading::NeedsMore,
        Rest::Refused(refusal) => {
            state.refuse(refusal);
            buffered.truncate(keep);
            buffered.extend_from_slice(STAND_IN);
            Reading::Refused
        }
        Rest::Broken(refusal) => {
            buffered.truncate(keep);
            Reading::Broken(refusal)
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guard<I> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.answering();
        let written = Pin::new(&mut this.io).poll_write(context, bytes);
        this.stall.watch(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.answering();
        let written = Pin::new(&mut this.io).poll_write_vectored(context, slices);
        this.stall.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(context);
        this.stall.watch(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.linger.has_begun() {
            let shut = Pin::new(&mut this.io).poll_shutdown(context);
            ready!(this.stall.watch(context, shut))?;
            if !this.is_cut_off() {
                return Poll::Ready(Ok(()));
            }
        }
        let haste = match &this.kind {
            Kind::Http1 { state, .. } if state.is_stopping() => Haste::Stopping,
            Kind::Http1 { .. } | Kind::Http2 => Haste::None,
        };
        this.linger.poll(&mut this.io, haste, context)
    }
}
