//! Stands between a socket and hyper, and lets hyper see only requests that are strictly framed.
//!
//! hyper forgives: it takes a bare LF for the end of a line, and a request with both a length and an encoding. What
//! stands behind this gateway may forgive differently, and then one request is two. So the guard follows the bytes
//! itself. A head is passed on whole or not at all; a body flows through as it comes.
//!
//! The usual read, a whole request, goes straight into hyper's buffer and is looked at there: nothing is copied.

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
    /// What was read and not passed on.
    held: BytesMut,
    /// How many of the held bytes may be passed on.
    ready: usize,
    stall: Stall,
    linger: Linger,
    /// A place among the connections, which is free again when the socket is gone, upgraded or not.
    _place: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum Kind {
    /// HTTP/1.1: everything is looked at.
    Http1 { follower: Follower, shared: Arc<Http1State>, state: State },
    /// HTTP/2, which keeps its requests apart by itself: everything passes.
    Http2,
}

#[derive(Debug)]
enum State {
    /// What is held is the beginning of something, and more must be read.
    Reads,
    /// What is held has not been looked at.
    Looks,
    /// A stand-in was put in the place of what was refused. Nothing comes after it.
    Refused,
    /// The body is not what it should be, so it must not be taken for whole.
    Broken(Refusal),
}

/// What was read of a connection before it was known what it is, and what it takes to guard it.
pub(super) struct Opened<I> {
    pub io: I,
    pub read: BytesMut,
    /// How long the client may take none of what is written to it.
    pub stall: Duration,
    pub place: Option<OwnedSemaphorePermit>,
}

impl<I> Guard<I> {
    /// Guards HTTP/1.1.
    pub(super) fn http1(opened: Opened<I>, limits: HeadLimits, shared: Arc<Http1State>) -> Self {
        let kind = Kind::Http1 { follower: Follower::new(limits), shared, state: State::Looks };
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
            held: opened.read,
            ready,
            stall: Stall::new(opened.stall),
            linger: Linger::default(),
            _place: opened.place,
        }
    }

    /// Whether the client may still be sending something that nobody will read.
    fn is_cut_off(&self) -> bool {
        match &self.kind {
            Kind::Http2 => false,
            Kind::Http1 { shared, .. } if shared.is_upgraded() => false,
            Kind::Http1 { state: State::Refused | State::Broken(_), .. } => true,
            Kind::Http1 { follower, state: State::Reads | State::Looks, .. } => {
                !follower.is_between_requests() || !self.held.is_empty()
            }
        }
    }

    /// An answer is being written. If it is to a request that might have ended HTTP here, it did not.
    fn answering(&mut self) {
        if let Kind::Http1 { follower, shared, state } = &mut self.kind
            && follower.waits()
            && !shared.is_upgraded()
        {
            follower.answered();
            if !self.held.is_empty() {
                *state = State::Looks;
            }
            shared.wake_reader();
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Guard<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { io, kind, held, ready, .. } = self.get_mut();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if *ready > 0 {
                let taken = (*ready).min(buffer.remaining());
                buffer.put_slice(&held[..taken]);
                held.advance(taken);
                *ready -= taken;
                return Poll::Ready(Ok(()));
            }
            let Kind::Http1 { follower, shared, state } = kind else {
                return Pin::new(io).poll_read(context, buffer);
            };
            match state {
                // Whoever holds the upgraded connection must not wait for bytes that never come.
                State::Refused if shared.is_upgraded() => {
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                // The end of the stream would make hyper drop requests that are still being answered, and the stand-in
                // among them. Its answer closes the connection.
                State::Refused => return Poll::Pending,
                State::Broken(refusal) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, *refusal)));
                }
                State::Reads | State::Looks => {}
            }
            if follower.waits() {
                shared.register_reader(context.waker());
            }
            if shared.is_upgraded() {
                if held.is_empty() {
                    return Pin::new(io).poll_read(context, buffer);
                }
                *ready = held.len();
                continue;
            }
            if follower.waits() {
                return Poll::Pending;
            }
            if matches!(state, State::Looks) {
                let followed = follower.follow(held);
                *ready = followed.passed;
                *state = settle(followed.rest, shared, held, followed.passed);
                if matches!(state, State::Refused) {
                    *ready = held.len();
                }
                continue;
            }

            if !held.is_empty() && follower.is_between_requests() {
                shared.begin_head();
            }
            let before = buffer.filled().len();
            ready!(Pin::new(&mut *io).poll_read(context, buffer))?;
            let read = &buffer.filled()[before..];
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !held.is_empty() {
                held.extend_from_slice(read);
                buffer.set_filled(before);
                *state = State::Looks;
                continue;
            }
            let followed = follower.follow(read);
            held.extend_from_slice(&read[followed.passed..]);
            buffer.set_filled(before + followed.passed);
            *state = settle(followed.rest, shared, held, 0);
            if matches!(state, State::Refused) {
                *ready = held.len();
            }
            if followed.passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// What becomes of the bytes that may not be passed on as they are: those that are held, from `keep` on.
fn settle(rest: Rest, shared: &Http1State, held: &mut BytesMut, keep: usize) -> State {
    match rest {
        Rest::Nothing | Rest::Incomplete | Rest::Waits => State::Reads,
        Rest::Refused(refusal) => {
            shared.refuse(refusal);
            held.truncate(keep);
            held.extend_from_slice(STAND_IN);
            State::Refused
        }
        Rest::Broken(refusal) => {
            held.truncate(keep);
            State::Broken(refusal)
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
            Kind::Http1 { shared, .. } if shared.is_stopping() => Haste::Stopping,
            Kind::Http1 { .. } | Kind::Http2 => Haste::None,
        };
        this.linger.poll(&mut this.io, haste, context)
    }
}
